//! A channel of two transports.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use comm_core::{AbortHandle, Armed, Error, Group, Interest, Result, Transport};
use comm_shm::SharedMemoryTransport;
use comm_tcp::TcpTransport;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;

/// A channel that uses shared memory with some members and sockets with the others.
#[derive(Debug)]
pub(crate) struct Both {
    shm: SharedMemoryTransport,
    tcp: TcpTransport,
    /// Indexed by rank in the channel.
    is_over_tcp: Box<[bool]>,
    /// Readable while the descriptor of either transport is readable.
    epoll: OwnedFd,
    abort: Arc<Abort>,
}

impl Both {
    /// Combines two transports of one group, which connect this rank with disjoint sets of peers.
    pub(crate) fn new(
        shm: SharedMemoryTransport,
        tcp: TcpTransport,
        is_over_tcp: Box<[bool]>,
    ) -> Result<Self> {
        let failed = |errno: Errno| Error::io("watch the two transports of a channel", errno.into());
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        for descriptor in [shm.descriptor(), tcp.descriptor()] {
            epoll::add(&epoll, descriptor, EventData::new_u64(0), EventFlags::IN).map_err(failed)?;
        }
        let handles = [shm.abort_handle(), tcp.abort_handle()];
        Ok(Self { shm, tcp, is_over_tcp, epoll, abort: Arc::new(Abort { cause: OnceLock::new(), handles }) })
    }

    pub(crate) fn is_over_tcp(&self, peer: usize) -> bool {
        self.is_over_tcp.get(peer).copied().unwrap_or(false)
    }

    pub(crate) fn is_read_in_place(&self, memory: &[u8]) -> bool {
        self.shm.is_read_in_place(memory)
    }

    pub(crate) fn is_window(&self, memory: &[u8]) -> bool {
        self.shm.is_window(memory)
    }

    pub(crate) fn cached_bytes(&self) -> usize {
        self.shm.cached_bytes()
    }

    pub(crate) fn peers_run_elsewhere(&self) -> bool {
        self.shm.peers_run_elsewhere()
    }

    pub(crate) fn run_now(&self, peers: &[usize]) -> bool {
        !peers.iter().any(|peer| self.is_over_tcp(*peer)) && self.shm.run_now(peers)
    }

    pub(crate) fn sends_by_system_call(&self, to: usize) -> bool {
        if self.is_over_tcp(to) {
            self.tcp.sends_by_system_call(to)
        } else {
            self.shm.sends_by_system_call(to)
        }
    }

    pub(crate) const fn shm(&mut self) -> &mut SharedMemoryTransport {
        &mut self.shm
    }

    pub(crate) const fn tcp(&mut self) -> &mut TcpTransport {
        &mut self.tcp
    }

    pub(crate) fn released(&self, to: usize) -> u64 {
        if self.is_over_tcp(to) { self.tcp.released(to) } else { self.shm.released(to) }
    }

    pub(crate) fn is_open(&self, peer: usize) -> bool {
        if self.is_over_tcp(peer) { self.tcp.is_open(peer) } else { self.shm.is_open(peer) }
    }

    pub(crate) fn is_full_mesh(&self) -> bool {
        self.tcp.is_full_mesh() && self.shm.is_full_mesh()
    }

    pub(crate) fn group(&self) -> Group {
        self.shm.group()
    }

    pub(crate) fn now_roughly(&mut self) -> Instant {
        self.shm.now_roughly()
    }

    pub(crate) fn revoke(&mut self) {
        self.shm.revoke();
        self.tcp.revoke();
    }

    /// Arms both transports. Shared memory comes last, because arming it tells the peers that this
    /// rank sleeps.
    pub(crate) fn arm(&mut self, interest: &Interest) -> Result<Armed> {
        match self.tcp.arm(interest)? {
            Armed::Ready => Ok(Armed::Ready),
            Armed::Sleep => self.shm.arm(interest),
        }
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    pub(crate) fn abort_handle(&self) -> Arc<dyn AbortHandle> {
        Arc::<Abort>::clone(&self.abort)
    }
}

/// Ends all waiting on both transports. The cause is the same on both, even if two threads abort
/// concurrently.
struct Abort {
    cause: OnceLock<Error>,
    handles: [Arc<dyn AbortHandle>; 2],
}

impl AbortHandle for Abort {
    fn abort(&self, cause: Error) {
        let first = self.cause.get_or_init(|| cause);
        self.handles.iter().for_each(|handle| handle.abort(first.clone()));
    }
}

impl std::fmt::Debug for Abort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Abort").field("cause", &self.cause).finish_non_exhaustive()
    }
}
