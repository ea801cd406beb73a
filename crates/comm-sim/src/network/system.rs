//! The operating system of the processes of a run.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use comm_core::simulation::{self, SimulatedSystem};
use comm_core::{Error, Result, Scheduler};

use super::faults::FOREVER;
use super::turns::{self, NetworkScheduler, with_current};
use super::world::World;

/// The system of all runs: each call acts for the rank of the calling thread.
#[derive(Debug)]
struct NetworkSystem;

/// Lets code that asks for the simulated system find the system of its run.
pub(super) fn install() {
    simulation::install(&NetworkSystem);
}

/// Calls a function with the world and the rank of the calling thread.
fn with_world<R>(f: impl FnOnce(&mut World, usize) -> io::Result<R>) -> io::Result<R> {
    with_current(|world, rank| f(&mut world.lock(), rank))
        .unwrap_or_else(|| Err(io::ErrorKind::NotFound.into()))
}

impl SimulatedSystem for NetworkSystem {
    fn is_used(&self) -> bool {
        turns::is_in_run()
    }

    fn now(&self) -> Instant {
        turns::now()
    }

    fn sleep(&self, until: Option<Instant>) -> Result<()> {
        let slept = with_current(|world, rank| {
            let now = turns::now();
            let left = until.map_or(FOREVER, |until| until.saturating_duration_since(now));
            world.sleep_in_system(rank, left.min(FOREVER))
        });
        slept.unwrap_or_else(|| Err(Error::Internal("a thread sleeps outside of a run".into())))
    }

    fn wake(&self) {
        with_current(|world, rank| world.lock().wake_system(rank));
    }

    fn random(&self) -> u64 {
        with_current(|world, _| world.lock().system_random.next()).unwrap_or_default()
    }

    fn scheduler(&self) -> Option<Arc<dyn Scheduler>> {
        with_current(|world, rank| {
            Arc::new(NetworkScheduler { rank, world: world.clone() }) as Arc<dyn Scheduler>
        })
    }

    fn listen(&self, address: SocketAddr) -> io::Result<OwnedFd> {
        with_world(|world, rank| world.listen(rank, address))
    }

    fn accept(&self, listener: BorrowedFd<'_>) -> io::Result<Option<(OwnedFd, SocketAddr)>> {
        with_world(|world, _| world.accept(listener))
    }

    fn connect(&self, to: SocketAddr) -> io::Result<OwnedFd> {
        with_world(|world, rank| world.connect_socket(rank, to))
    }

    fn take_error(&self, socket: BorrowedFd<'_>) -> Option<io::Error> {
        with_current(|world, _| world.lock().sockets.take_error(socket))?
    }

    fn local_address(&self, socket: BorrowedFd<'_>) -> Option<SocketAddr> {
        with_current(|world, _| world.lock().sockets.local_address(socket))?
    }
}
