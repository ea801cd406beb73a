//! A communicator: its members, its state, and its enqueued operations.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};

use nccl_sys::{ncclComm_t, ncclResult_t};

use crate::device::Device;
use crate::handles::Handles;
use crate::sync::{Marker, lock, wait_on};

use super::element::Element;
use super::failure::{Failure, Outcome};
use super::mesh::Mesh;
use super::operation::{Factor, Kind, Operation};
use super::wire::{Channel, Header, Place, Shape};

static COMMUNICATORS: Handles<Communicator> = Handles::new("communicator", 0xCC);

/// Returns the number of communicators that were neither destroyed nor aborted.
pub(crate) fn live() -> usize {
    COMMUNICATORS.live()
}

pub(super) fn insert(communicator: Arc<Communicator>) -> ncclComm_t {
    ncclComm_t(COMMUNICATORS.insert(communicator).cast())
}

pub(super) fn remove(handle: ncclComm_t) -> Outcome<Arc<Communicator>> {
    COMMUNICATORS.remove(handle.0.cast()).ok_or_else(invalid)
}

pub(super) fn of_handle(handle: ncclComm_t) -> Outcome<Arc<Communicator>> {
    COMMUNICATORS.get(handle.0.cast()).ok_or_else(invalid)
}

fn invalid() -> Failure {
    Failure::argument("comm argument is not a communicator")
}

/// The members of a communicator and the connections to them.
#[derive(Debug, Clone)]
pub(super) struct Link {
    pub(super) mesh: Arc<Mesh>,
    /// Distinguishes the messages of communicators that share a mesh.
    pub(super) context: u64,
    /// The rank in the mesh of each rank of the communicator.
    pub(super) members: Vec<u32>,
    pub(super) rank: usize,
}

impl Link {
    pub(super) fn place(&self, channel: Channel, sequence: u64) -> Place {
        Place { context: self.context, channel, sequence }
    }
}

#[derive(Debug)]
pub(super) struct Communicator {
    pub(super) device: Arc<Device>,
    pub(super) blocking: bool,
    link: OnceLock<Link>,
    state: Mutex<State>,
    idle: Condvar,
    aborted: AtomicBool,
    /// The marker after the last operation. Operations of one communicator do not overlap, whatever
    /// their streams.
    pub(super) last: Mutex<Option<Arc<Marker>>>,
    counts: Mutex<Counts>,
    factors: Mutex<BTreeMap<u32, (Element, Factor)>>,
}

#[derive(Debug)]
struct State {
    /// The number of calls that have returned but not completed.
    pending: usize,
    finalized: bool,
    error: ncclResult_t,
}

/// The numbers of enqueued operations.
#[derive(Debug, Default)]
struct Counts {
    collectives: u64,
    divisions: u64,
    sent: BTreeMap<usize, u64>,
    received: BTreeMap<usize, u64>,
    factors: u32,
}

impl Communicator {
    pub(super) fn new(device: Arc<Device>, blocking: bool) -> Arc<Self> {
        Arc::new(Self {
            device,
            blocking,
            link: OnceLock::new(),
            state: Mutex::new(State { pending: 0, finalized: false, error: ncclResult_t::ncclSuccess }),
            idle: Condvar::new(),
            aborted: AtomicBool::new(false),
            last: Mutex::default(),
            counts: Mutex::default(),
            factors: Mutex::default(),
        })
    }

    /// Returns the link, once it is connected.
    pub(super) fn link(&self) -> Outcome<&Link> {
        self.link.get().ok_or_else(|| Failure::argument("the communicator is not initialized"))
    }

    pub(super) fn connect(&self, link: Link) {
        let _only_once = self.link.set(link);
    }

    /// Returns an error if no operation can begin, because one is in progress or an earlier one has
    /// failed.
    pub(super) fn ready(&self) -> Outcome<&Link> {
        let state = lock(&self.state);
        if state.pending > 0 {
            let words = "Attempt to use communicator before the previous operation returned ncclSuccess";
            return Err(Failure::argument(words));
        }
        if state.finalized {
            return Err(Failure::usage("the communicator was finalized"));
        }
        if state.error != ncclResult_t::ncclSuccess {
            return Err(Failure::new(state.error, "the communicator has failed"));
        }
        self.running()?;
        self.link()
    }

    /// Returns an error once the communicator is aborted.
    pub(super) fn running(&self) -> Outcome {
        if self.aborted.load(Ordering::SeqCst) { Err(Failure::aborted()) } else { Ok(()) }
    }

    pub(super) fn abort(&self) {
        self.aborted.store(true, Ordering::SeqCst);
    }

    /// Returns the first asynchronous error, or that a call is in progress.
    pub(super) fn asynchronous_error(&self) -> ncclResult_t {
        let state = lock(&self.state);
        match state.pending {
            0 => state.error,
            _ => ncclResult_t::ncclInProgress,
        }
    }

    /// Records an error, unless there is one already.
    pub(super) fn fail(&self, code: ncclResult_t) {
        let mut state = lock(&self.state);
        if state.error == ncclResult_t::ncclSuccess {
            state.error = code;
        }
    }

    pub(super) fn finalize(&self) {
        lock(&self.state).finalized = true;
    }

    /// Marks a call as in progress, as long as the returned value lives.
    pub(super) fn busy(self: &Arc<Self>) -> Busy {
        lock(&self.state).pending += 1;
        Busy(self.clone())
    }

    /// Waits until no call is in progress.
    pub(super) fn wait_until_idle(&self) {
        let mut state = lock(&self.state);
        while state.pending > 0 {
            state = wait_on(&self.idle, state);
        }
    }

    /// Waits until all enqueued operations have ended.
    pub(super) fn drain(&self) {
        let last = lock(&self.last).clone();
        if let Some(marker) = last {
            marker.wait();
        }
    }

    /// Returns the number that distinguishes `operation` from earlier ones.
    pub(super) fn number(&self, operation: &Operation) -> u64 {
        let mut counts = lock(&self.counts);
        let counts = &mut *counts;
        let count = match operation.kind {
            Kind::Send => counts.sent.entry(operation.root).or_default(),
            Kind::Recv => counts.received.entry(operation.root).or_default(),
            _ => &mut counts.collectives,
        };
        *count += 1;
        *count
    }

    pub(super) fn number_of_division(&self) -> u64 {
        let mut counts = lock(&self.counts);
        counts.divisions += 1;
        counts.divisions
    }

    /// Stores a factor for sums under a number above the numbers of built-in operators.
    pub(super) fn keep_factor(&self, element: Element, factor: Factor) -> u32 {
        let mut counts = lock(&self.counts);
        counts.factors += 1;
        // The numbers of one communicator are invalid for another one.
        let salt = (std::ptr::from_ref(self).addr() >> 4) as u32 & 0xFF_FF00;
        let number = (salt | 0x100_0000).wrapping_add(counts.factors);
        lock(&self.factors).insert(number, (element, factor));
        number
    }

    pub(super) fn factor(&self, number: u32) -> Option<(Element, Factor)> {
        lock(&self.factors).get(&number).copied()
    }

    pub(super) fn forget_factor(&self, number: u32) -> bool {
        lock(&self.factors).remove(&number).is_some()
    }
}

/// A call in progress.
#[derive(Debug)]
pub(super) struct Busy(Arc<Communicator>);

impl Drop for Busy {
    fn drop(&mut self) {
        lock(&self.0.state).pending -= 1;
        self.0.idle.notify_all();
    }
}

/// Sends `payload` to all members, and returns the payloads of all members in rank order.
pub(super) fn exchange(
    link: &Link,
    sequence: u64,
    payload: &[u8],
    stop: &dyn Fn() -> Outcome,
) -> Outcome<Vec<Vec<u8>>> {
    let place = link.place(Channel::Division, sequence);
    for member in &link.members {
        let header = Header { place, shape: Shape::default(), factor: [0; 8], length: 0 };
        link.mesh.send(*member, header, payload.to_vec());
    }
    let take = |member: &u32| link.mesh.mailbox.take(*member, place, stop).map(|message| message.payload);
    link.members.iter().map(take).collect()
}
