//! A wrapper of a transport with blocking operations.

use std::io::IoSlice;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use comm_core::{Armed, ChannelId, ChannelKind, Error, Fabric, GroupId, Interest, Result, Transport};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::CreateFabrics;
use crate::random::mix;
use crate::run_each;

/// The time after which an operation is considered to hang. It is long, because test machines are
/// busy.
pub(super) const TIMEOUT: Duration = Duration::from_secs(30);

/// A transport, and the interest for its waits.
pub(super) struct Port<T> {
    pub(super) transport: T,
    interest: Interest,
    /// The number of times that this port has slept.
    pub(super) sleeps: usize,
}

/// A single-use barrier that does not hang if one of the threads has panicked.
pub(super) struct Gate {
    missing: Mutex<usize>,
    open: Condvar,
}

impl Gate {
    pub(super) const fn new(threads: usize) -> Self {
        Self { missing: Mutex::new(threads), open: Condvar::new() }
    }

    /// Waits until all threads have called this.
    pub(super) fn wait(&self) {
        let mut missing = self.missing.lock().unwrap_or_else(PoisonError::into_inner);
        *missing = missing.saturating_sub(1);
        self.open.notify_all();
        let waited = self.open.wait_timeout_while(missing, TIMEOUT, |missing| *missing > 0);
        let (missing, _) = waited.unwrap_or_else(PoisonError::into_inner);
        assert_eq!(*missing, 0, "the number of threads that did not reach the gate");
    }
}

/// Runs a scenario with one thread per rank.
pub(super) fn each<L: Fabric, T: Send>(
    create: CreateFabrics<'_, L>,
    n: usize,
    body: impl Fn(&L) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    run_each(create(n), |fabric| body(&fabric)).into_iter().collect()
}

/// Returns the channel of this kind in the group of the world.
pub(super) const fn channel(kind: ChannelKind) -> ChannelId {
    ChannelId { group: GroupId::WORLD, kind }
}

/// Opens the world's channel for collectives.
pub(super) fn open<L: Fabric>(fabric: &L) -> Result<Port<L::Channel>> {
    Port::open(fabric, channel(ChannelKind::Collective))
}

/// Returns the time after which an operation that starts now is considered to hang.
pub(super) fn limit() -> Instant {
    Instant::now() + TIMEOUT
}

impl<T: Transport> Port<T> {
    pub(super) fn open<L: Fabric<Channel = T>>(fabric: &L, channel: ChannelId) -> Result<Self> {
        fabric.open(channel, fabric.now() + TIMEOUT).map(Self::new)
    }

    pub(super) fn open_among<L: Fabric<Channel = T>>(
        fabric: &L,
        channel: ChannelId,
        members: &[usize],
    ) -> Result<Self> {
        fabric.open_among(channel, members, (fabric.now() + TIMEOUT).into()).map(Self::new)
    }

    pub(super) fn new(transport: T) -> Self {
        Self { transport, interest: Interest::default(), sleeps: 0 }
    }

    pub(super) fn rank(&self) -> usize {
        self.transport.group().rank()
    }

    /// Arms the transport with this interest.
    pub(super) fn arm(&mut self, recv: &[usize], send: &[usize]) -> Result<Armed> {
        self.interest.clear();
        recv.iter().for_each(|&peer| self.interest.add_recv(peer));
        send.iter().for_each(|&peer| self.interest.add_send(peer));
        self.transport.arm(&self.interest)
    }

    /// Waits until something in the interest may be able to move.
    pub(super) fn wait(&mut self, recv: &[usize], send: &[usize]) -> Result<()> {
        if self.arm(recv, send)? == Armed::Sleep {
            self.sleeps += 1;
            let rank = self.rank();
            assert!(
                self.sleep(TIMEOUT)?,
                "rank {rank} was not woken, waiting to receive from {recv:?} and send to {send:?}"
            );
        }
        Ok(())
    }

    /// Sleeps on the descriptor for at most `time`, and returns whether it became readable.
    pub(super) fn sleep(&self, time: Duration) -> Result<bool> {
        let until = Instant::now() + time;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
            let descriptor = self.transport.descriptor();
            match poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&timeout)) {
                Ok(ready) => return Ok(ready > 0),
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(Error::io("poll a transport's descriptor", errno.into())),
            }
        }
    }

    /// Sends all of `bytes`.
    pub(super) fn send(&mut self, to: usize, mut bytes: &[u8]) -> Result<()> {
        let limit = limit();
        while !bytes.is_empty() {
            let sent = self.transport.try_send(to, &[IoSlice::new(bytes)])?;
            bytes = &bytes[sent..];
            if sent == 0 {
                self.wait(&[], &[to])?;
            }
            assert!(Instant::now() < limit, "sending to {to} hangs");
        }
        Ok(())
    }

    /// Receives until `into` is full.
    pub(super) fn recv(&mut self, from: usize, mut into: &mut [u8]) -> Result<()> {
        let limit = limit();
        while !into.is_empty() {
            let received = self.transport.try_recv(from, into)?;
            into = &mut into[received..];
            if received == 0 {
                self.wait(&[from], &[])?;
            }
            assert!(Instant::now() < limit, "receiving from {from} hangs");
        }
        Ok(())
    }

    /// Receives one byte.
    pub(super) fn recv_byte(&mut self, from: usize) -> Result<u8> {
        let mut byte = [0];
        self.recv(from, &mut byte)?;
        Ok(byte[0])
    }

    /// Sends to a peer and receives from it at the same time.
    pub(super) fn exchange(&mut self, peer: usize, mut out: &[u8], mut into: &mut [u8]) -> Result<()> {
        while !out.is_empty() || !into.is_empty() {
            let sent = self.transport.try_send(peer, &[IoSlice::new(out)])?;
            let received = self.transport.try_recv(peer, into)?;
            out = &out[sent..];
            into = &mut into[received..];
            if sent == 0 && received == 0 {
                let (recv, send) =
                    (&[peer][usize::from(into.is_empty())..], &[peer][usize::from(out.is_empty())..]);
                self.wait(recv, send)?;
            }
        }
        Ok(())
    }

    /// Waits until the first `position` bytes to a peer are released.
    pub(super) fn flush(&mut self, to: usize, position: u64) -> Result<()> {
        let limit = limit();
        while self.transport.released(to) < position {
            self.wait(&[], &[to])?;
            assert!(Instant::now() < limit, "{position} bytes to {to} are never released");
        }
        Ok(())
    }

    /// Waits until receiving from a peer fails, and returns the error.
    pub(super) fn recv_error(&mut self, from: usize) -> Result<Error> {
        let limit = limit();
        loop {
            assert!(Instant::now() < limit, "the exit of rank {from} was not detected");
            match self.transport.try_recv(from, &mut [0]) {
                Err(error) => return Ok(error),
                Ok(received) => assert_eq!(received, 0, "bytes that rank {from} never sent"),
            }
            self.wait(&[from], &[])?;
        }
    }
}

/// Returns the peer that an error reports as lost.
pub(super) const fn lost<T>(result: &Result<T>) -> Option<usize> {
    match result {
        Err(Error::PeerLost { peer, .. }) => Some(*peer),
        _ => None,
    }
}

/// Returns the byte at a position of the stream between two ranks. It depends on the stream and on
/// the position.
pub(super) const fn byte(from: usize, to: usize, position: usize) -> u8 {
    mix((from as u64) << 48 ^ (to as u64) << 32 ^ position as u64) as u8
}

/// Returns the first bytes of the stream between two ranks.
pub(super) fn bytes(from: usize, to: usize, count: usize) -> Vec<u8> {
    (0..count).map(|position| byte(from, to, position)).collect()
}
