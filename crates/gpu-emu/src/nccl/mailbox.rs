//! Stores received messages until an operation takes them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use nccl_sys::ncclResult_t;

use crate::settings::{self, Setting};
use crate::sync::lock;

use super::failure::{Failure, Outcome};
use super::wire::{Header, Place};

/// The interval at which a waiter checks whether it must stop.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub(super) struct Message {
    pub(super) header: Header,
    pub(super) payload: Vec<u8>,
}

#[derive(Debug, Default)]
pub(super) struct Mailbox {
    arrived: Mutex<Arrived>,
    notify: Condvar,
}

#[derive(Debug, Default)]
struct Arrived {
    messages: BTreeMap<(u32, Place), Message>,
    lost: BTreeSet<u32>,
}

impl Mailbox {
    pub(super) fn put(&self, from: u32, message: Message) {
        lock(&self.arrived).messages.insert((from, message.header.place), message);
        self.notify.notify_all();
    }

    /// Marks `peer` as lost.
    pub(super) fn lose(&self, peer: u32) {
        lock(&self.arrived).lost.insert(peer);
        self.notify.notify_all();
    }

    /// Waits for the message of `place` from `peer`, until `stop` returns a failure, which takes
    /// precedence over a message that has arrived. A setting decides whether the loss of the peer
    /// ends the wait, because NCCL does not always detect it.
    pub(super) fn take(&self, peer: u32, place: Place, stop: &dyn Fn() -> Outcome) -> Outcome<Message> {
        let _seen = Waiting::begin(format!("for rank {peer} of the first communicator: {place:?}"));
        let mut arrived = lock(&self.arrived);
        loop {
            stop()?;
            if let Some(message) = arrived.messages.remove(&(peer, place)) {
                return Ok(message);
            }
            if arrived.lost.contains(&peer) && settings::is_on(Setting::PeerLossFails) {
                let words = format!("connection to rank {peer} lost");
                return Err(Failure::new(ncclResult_t::ncclRemoteError, words));
            }
            let waited = self.notify.wait_timeout(arrived, POLL_INTERVAL);
            arrived = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

static WAITING: Mutex<BTreeMap<u64, String>> = Mutex::new(BTreeMap::new());

/// Describes the cause of the wait of each operation at this moment, one line each.
pub(crate) fn waiting() -> String {
    lock(&WAITING).values().map(|line| format!("{line}\n")).collect()
}

/// A wait that is reported to tests as long as this value lives.
#[derive(Debug)]
pub(super) struct Waiting(u64);

impl Waiting {
    pub(super) fn begin(line: String) -> Self {
        let mut waiting = lock(&WAITING);
        let number = waiting.last_key_value().map_or(0, |(last, _)| last + 1);
        waiting.insert(number, line);
        Self(number)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        lock(&WAITING).remove(&self.0);
    }
}
