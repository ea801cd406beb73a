//! Sends and receives the messages of a call on one rank.

use std::sync::Arc;

use comm::{Comm, ReduceOp, Source, Work};
use comm_sim::exact;

use super::Kind;
use crate::error::Result;
use crate::perf::buffers::{Memory, allocate};

/// The tags of messages, and of the acknowledgement of a window.
const DATA: u64 = 0;
const ACK: u64 = 1;

/// A byte that no message contains.
const UNTOUCHED: u8 = 0xa5;

/// A message that is sent several times at once.
#[derive(Clone)]
struct Outgoing(Arc<Memory<u8>>);

impl AsRef<[u8]> for Outgoing {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// The buffer of a receive.
struct Incoming(Memory<u8>);

impl AsMut<[u8]> for Incoming {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

/// The buffers and the role of one rank.
pub(super) struct Endpoint<'a> {
    comm: &'a Comm,
    kind: Kind,
    role: Role,
    /// The contents of every message of a window.
    outgoing: Outgoing,
    /// One buffer per message of a window.
    incoming: Vec<Incoming>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Rank 0 sends first.
    First { peer: usize },
    /// The last rank replies.
    Last { peer: usize },
    /// All other ranks.
    Idle,
}

impl<'a> Endpoint<'a> {
    /// Allocates the buffers for messages of this size, from the communicator if `alloc`.
    pub(super) fn new(comm: &'a Comm, kind: Kind, bytes: usize, alloc: bool) -> Result<Self> {
        let last = comm.size() - 1;
        let role = match comm.rank() {
            0 => Role::First { peer: last },
            rank if rank == last => Role::Last { peer: 0 },
            _ => Role::Idle,
        };
        let (sends, receives) = match (kind, role) {
            (_, Role::Idle) => (false, false),
            (Kind::Bandwidth, Role::First { .. }) => (true, false),
            (Kind::Bandwidth, Role::Last { .. }) => (false, true),
            (Kind::Latency | Kind::Bidirectional, _) => (true, true),
        };
        let buffer = |bytes| allocate(alloc.then_some(comm), bytes);
        let mut outgoing = buffer(if sends { bytes } else { 0 })?;
        outgoing.iter_mut().enumerate().for_each(|(index, byte)| *byte = pattern(comm.rank(), index));
        let count = if receives { kind.window(bytes) } else { 0 };
        let incoming = (0..count).map(|_| buffer(bytes).map(Incoming)).collect::<Result<_>>()?;
        Ok(Self { comm, kind, role, outgoing: Outgoing(Arc::new(outgoing)), incoming })
    }

    /// Makes the call once: a round trip, or a window with its acknowledgement.
    pub(super) fn call(&mut self) -> comm::Result<()> {
        match (self.role, self.kind) {
            (Role::Idle, _) => Ok(()),
            (Role::First { peer }, Kind::Latency) => self.send(peer).and_then(|()| self.receive(peer)),
            (Role::Last { peer }, Kind::Latency) => self.receive(peer).and_then(|()| self.send(peer)),
            (Role::First { peer } | Role::Last { peer }, Kind::Bandwidth | Kind::Bidirectional) => {
                self.window(peer)
            }
        }
    }

    fn send(&self, peer: usize) -> comm::Result<()> {
        self.comm.send(peer, DATA, self.outgoing.as_ref())
    }

    fn receive(&mut self, peer: usize) -> comm::Result<()> {
        match self.incoming.first_mut() {
            Some(buffer) => self.comm.recv(Source::Rank(peer), DATA, buffer.as_mut()).map(drop),
            None => Ok(()),
        }
    }

    /// Transfers all messages of a window concurrently. The receiver then sends an acknowledgement.
    fn window(&mut self, peer: usize) -> comm::Result<()> {
        let received = std::mem::take(&mut self.incoming)
            .into_iter()
            .map(|buffer| self.comm.recv_async::<u8, _>(Source::Rank(peer), DATA, buffer))
            .collect::<comm::Result<Vec<Work<_>>>>()?;
        let bytes = self.outgoing.as_ref().len();
        let sends = if bytes == 0 { 0 } else { self.kind.window(bytes) };
        let sent = (0..sends)
            .map(|_| self.comm.send_async::<u8, _>(peer, DATA, self.outgoing.clone()))
            .collect::<comm::Result<Vec<Work<_>>>>()?;
        sent.into_iter().try_for_each(|work| work.wait().map(drop))?;
        let receives = !received.is_empty();
        let buffers = received.into_iter().map(|work| Ok(work.wait()?.0));
        self.incoming = buffers.collect::<comm::Result<_>>()?;
        if receives {
            self.comm.send(peer, ACK, &[0_u8])?;
        }
        if sends > 0 {
            self.comm.recv(Source::Rank(peer), ACK, &mut [0_u8])?.exactly(1)?;
        }
        Ok(())
    }

    /// Repeats the call, and returns the number of wrong bytes on all ranks.
    pub(super) fn count_wrong(&mut self) -> Result<u64> {
        self.incoming.iter_mut().for_each(|buffer| buffer.as_mut().fill(UNTOUCHED));
        self.call()?;
        let peer = match self.role {
            Role::First { peer } | Role::Last { peer } => peer,
            Role::Idle => 0,
        };
        let wrong = |buffer: &Incoming| {
            buffer.0.iter().enumerate().filter(|(index, byte)| **byte != pattern(peer, *index)).count() as u64
        };
        let mut wrong = [self.incoming.iter().map(wrong).sum()];
        self.comm.all_reduce(&mut wrong, ReduceOp::Sum)?;
        Ok(wrong[0])
    }
}

fn pattern(rank: usize, index: usize) -> u8 {
    exact::block_number(rank, 0, index) as u8
}
