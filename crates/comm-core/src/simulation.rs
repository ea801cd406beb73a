//! The operating system of the calling thread: the real one, or that of a simulation.
//!
//! Code that waits, reads the clock, draws random numbers, opens sockets or starts threads asks
//! here whether a simulation does that for it, so that the same code runs in virtual time over a
//! faulty network. Descriptors are real in both cases, and so are reads, writes and polls: a
//! simulated network holds the other ends.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use crate::scheduler::{EndOfTurns, Turns};
use crate::{Result, Scheduler};

/// The operating system of the processes of a simulation. All methods act for the process to which
/// the calling thread belongs.
pub trait SimulatedSystem: Sync {
    /// Returns whether the calling thread belongs to a process of the simulation.
    fn is_used(&self) -> bool;

    /// Returns the virtual time.
    fn now(&self) -> Instant;

    /// Sleeps until a descriptor of the process may have become ready, at most until a certain
    /// time. Call it only after a poll that found none ready. May return early.
    ///
    /// # Errors
    /// [`Error::Internal`](crate::Error::Internal) if the process has died.
    fn sleep(&self, until: Option<Instant>) -> Result<()>;

    /// Wakes the threads of the process, because one of them has made a descriptor ready.
    fn wake(&self);

    /// Returns a random number.
    fn random(&self) -> u64;

    /// Returns the scheduler of the threads of the process.
    fn scheduler(&self) -> Option<Arc<dyn Scheduler>>;

    /// Listens on an address; port 0 stands for one that is free. The descriptor is readable while
    /// there are connections to accept.
    ///
    /// # Errors
    /// As of `bind(2)`.
    fn listen(&self, address: SocketAddr) -> io::Result<OwnedFd>;

    /// Accepts a connection, if there is one. Returns it and the address of the other side.
    ///
    /// # Errors
    /// As of `accept(2)`.
    fn accept(&self, listener: BorrowedFd<'_>) -> io::Result<Option<(OwnedFd, SocketAddr)>>;

    /// Begins to connect to an address. The descriptor becomes writable when it is connected, or
    /// cannot be.
    ///
    /// # Errors
    /// As of `socket(2)`.
    fn connect(&self, to: SocketAddr) -> io::Result<OwnedFd>;

    /// Returns the reason why a descriptor could not be connected, if it could not.
    fn take_error(&self, socket: BorrowedFd<'_>) -> Option<io::Error>;

    /// Returns the address of this side of a listener or a connection.
    fn local_address(&self, socket: BorrowedFd<'_>) -> Option<SocketAddr>;
}

#[cfg(feature = "simulation")]
static SYSTEM: std::sync::OnceLock<&'static dyn SimulatedSystem> = std::sync::OnceLock::new();

/// Makes a simulated system known. Only the first one of a program is used, and only by threads
/// that belong to its processes.
#[cfg(feature = "simulation")]
pub fn install(system: &'static dyn SimulatedSystem) {
    SYSTEM.get_or_init(|| system);
}

/// Returns the simulated system of the calling thread, if there is one.
#[must_use]
#[inline]
pub fn simulated() -> Option<&'static dyn SimulatedSystem> {
    #[cfg(feature = "simulation")]
    return SYSTEM.get().copied().filter(|system| system.is_used());
    #[cfg(not(feature = "simulation"))]
    None
}

/// Returns the time on the clock of the calling thread.
#[must_use]
#[inline]
pub fn now() -> Instant {
    simulated().map_or_else(Instant::now, |system| system.now())
}

/// A thread that belongs to a process of a simulation, or not.
#[derive(Debug)]
pub struct ScheduledThread {
    end: Option<EndOfTurns>,
}

impl ScheduledThread {
    /// Wraps the body of a thread that the caller is about to start. Also returns a handle with
    /// which to wait for its end.
    pub fn new(body: impl FnOnce() + Send + 'static) -> (Self, impl FnOnce() + Send + 'static) {
        let turns = simulated().and_then(|system| system.scheduler()).map(Turns::new);
        let end = turns.as_ref().map(Turns::end);
        let scheduled = move || {
            turns.iter().for_each(Turns::begin);
            body();
            drop(turns);
        };
        (Self { end }, scheduled)
    }

    /// Lets the other threads of a simulation run until this one has ended. It can then be joined
    /// without waiting. Outside of a simulation, returns immediately.
    pub fn await_end(&self) {
        self.end.iter().for_each(EndOfTurns::wait);
    }
}
