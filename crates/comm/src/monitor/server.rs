//! The thread that answers.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use comm_core::{ObservedComms, Process};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{Shutdown, shutdown};
use rustix::process::{Uid, geteuid};
use serde::Deserialize;

use super::{MonitorName, MonitorReport};
use crate::flight::Origin;

/// The time for which a client may take to ask or to read. Others wait meanwhile.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(1);
/// The time until the next attempt after an accept that failed, for example because there was no
/// descriptor left.
const RETRY_AFTER: Duration = Duration::from_millis(100);
/// The largest request in bytes.
const REQUEST_MAX: u64 = 256;
/// The largest number of worlds of a process.
const NUMBERS: u32 = 10_000;
const STACK_BYTES: usize = 256 << 10;

/// A request: one line of JSON.
#[derive(Debug, Deserialize)]
struct Request {
    /// The largest number of last calls to send of each communicator.
    calls: usize,
}

/// The part that the thread and its owner share.
#[derive(Debug)]
struct Shared {
    listener: UnixListener,
    is_closing: AtomicBool,
}

/// The owner of the thread, which ends when this is dropped.
#[derive(Debug)]
pub(super) struct Server {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    process: Process,
}

impl Server {
    /// Listens at this name, or with the next number that is free, and answers for these
    /// communicators.
    pub(super) fn start(name: MonitorName, origin: Origin, comms: ObservedComms) -> io::Result<Self> {
        let shared = Arc::new(Shared { listener: bind(name)?, is_closing: AtomicBool::new(false) });
        let ours = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("comm-monitor".into())
            .stack_size(STACK_BYTES)
            .spawn(move || ours.serve(&comms, &origin))?;
        Ok(Self { shared, thread: Some(thread), process: Process::current() })
    }
}

fn bind(mut name: MonitorName) -> io::Result<UnixListener> {
    loop {
        let bound = SocketAddr::from_abstract_name(name.to_string())
            .and_then(|address| UnixListener::bind_addr(&address));
        match bound {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && name.number < NUMBERS => {
                name.number += 1;
            }
            bound => return bound,
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !self.process.is_current() {
            // The thread is the parent's, and so is the listener, which a shutdown would end.
            return std::mem::forget(self.thread.take());
        }
        self.shared.is_closing.store(true, Ordering::Relaxed);
        // This ends the accept of the thread.
        if let Err(error) = shutdown(&self.shared.listener, Shutdown::Both) {
            tracing::debug!(%error, "cannot end the thread that answers commctl top");
            return;
        }
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            tracing::error!("the thread that answers commctl top panicked");
        }
    }
}

impl Shared {
    fn serve(&self, comms: &ObservedComms, origin: &Origin) {
        loop {
            let accepted = self.listener.accept();
            if self.is_closing.load(Ordering::Relaxed) {
                return;
            }
            match accepted {
                Ok((client, _)) => {
                    if let Err(error) = answer(client, comms, origin) {
                        tracing::debug!(%error, "a client of the monitor got no answer");
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "the monitor cannot accept a client");
                    thread::sleep(RETRY_AFTER);
                }
            }
        }
    }
}

/// Answers the request of a client, unless it belongs to another user.
fn answer(mut client: UnixStream, comms: &ObservedComms, origin: &Origin) -> io::Result<()> {
    let user = socket_peercred(&client)?.uid;
    if user != geteuid() && user != Uid::ROOT {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("user {}", user.as_raw())));
    }
    client.set_read_timeout(Some(CLIENT_TIMEOUT))?;
    client.set_write_timeout(Some(CLIENT_TIMEOUT))?;
    let mut line = String::new();
    BufReader::new((&client).take(REQUEST_MAX)).read_line(&mut line)?;
    let request: Request = serde_json::from_str(&line)?;
    let report = MonitorReport::new(comms, origin, request.calls);
    client.write_all(&serde_json::to_vec(&report)?)
}
