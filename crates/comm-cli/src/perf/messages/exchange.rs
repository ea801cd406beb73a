//! The memory of one rank, and what it sends and receives in a call.

use std::sync::Arc;

use comm::{Comm, ReduceOp, Source, Work};

use super::Kind;
use crate::perf::error::{PerfError, Result};

/// Of messages, and of the answer to a window of them.
const DATA: u64 = 0;
const DONE: u64 = 1;

/// What no message has in it where it differs from this.
const UNTOUCHED: u8 = 0xa5;

/// One rank's side of the messages of a call.
#[derive(Debug)]
pub(super) struct Buffers<'a> {
    comm: &'a Comm,
    kind: Kind,
    part: Part,
    /// All messages of a window are sent from here.
    outgoing: Arc<[u8]>,
    /// One per message of a window, except while these are under way.
    incoming: Vec<Vec<u8>>,
}

/// What a rank does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Rank 0, which sends first.
    First { peer: usize },
    /// The last rank, which answers.
    Last { peer: usize },
    /// Every other.
    None,
}

impl<'a> Buffers<'a> {
    /// With memory whose every page has been written to.
    pub(super) fn new(comm: &'a Comm, kind: Kind, bytes: usize) -> Result<Self> {
        let last = comm.size() - 1;
        let part = match comm.rank() {
            0 => Part::First { peer: last },
            rank if rank == last => Part::Last { peer: 0 },
            _ => Part::None,
        };
        let (sends, receives) = match (kind, part) {
            (_, Part::None) => (false, false),
            (Kind::Bandwidth, Part::First { .. }) => (true, false),
            (Kind::Bandwidth, Part::Last { .. }) => (false, true),
            (Kind::Latency | Kind::Bidirectional, _) => (true, true),
        };
        let rank = comm.rank();
        let outgoing = (0..if sends { bytes } else { 0 }).map(|index| pattern(rank, index)).collect();
        let count = if receives { kind.window(bytes) } else { 0 };
        let incoming = (0..count).map(|_| buffer(bytes)).collect::<Result<_>>()?;
        Ok(Self { comm, kind, part, outgoing, incoming })
    }

    /// Makes the call once: a message there and back, or a window of them and the answer to it.
    pub(super) fn call(&mut self) -> comm::Result<()> {
        match (self.part, self.kind) {
            (Part::None, _) => Ok(()),
            (Part::First { peer }, Kind::Latency) => self.send(peer).and_then(|()| self.receive(peer)),
            (Part::Last { peer }, Kind::Latency) => self.receive(peer).and_then(|()| self.send(peer)),
            (Part::First { peer } | Part::Last { peer }, Kind::Bandwidth | Kind::Bidirectional) => {
                self.window(peer)
            }
        }
    }

    fn send(&self, peer: usize) -> comm::Result<()> {
        self.comm.send(peer, DATA, &*self.outgoing)
    }

    fn receive(&mut self, peer: usize) -> comm::Result<()> {
        match self.incoming.first_mut() {
            Some(buffer) => self.comm.recv(Source::Rank(peer), DATA, &mut buffer[..]).map(drop),
            None => Ok(()),
        }
    }

    /// All messages of a window under way at once. Who sent them hears when all have come.
    fn window(&mut self, peer: usize) -> comm::Result<()> {
        let received = std::mem::take(&mut self.incoming)
            .into_iter()
            .map(|buffer| self.comm.recv_async::<u8, _>(Source::Rank(peer), DATA, buffer))
            .collect::<comm::Result<Vec<Work<_>>>>()?;
        let sends = if self.outgoing.is_empty() { 0 } else { self.kind.window(self.outgoing.len()) };
        let sent = (0..sends)
            .map(|_| self.comm.send_async::<u8, _>(peer, DATA, Arc::clone(&self.outgoing)))
            .collect::<comm::Result<Vec<Work<_>>>>()?;
        sent.into_iter().try_for_each(|work| work.wait().map(drop))?;
        let receives = !received.is_empty();
        let buffers = received.into_iter().map(|work| Ok(work.wait()?.0));
        self.incoming = buffers.collect::<comm::Result<_>>()?;
        if receives {
            self.comm.send(peer, DONE, &[0_u8])?;
        }
        if sends > 0 {
            self.comm.recv(Source::Rank(peer), DONE, &mut [0_u8])?.exactly(1)?;
        }
        Ok(())
    }

    /// Makes the call once more, and counts on all ranks the received bytes that are not what was
    /// sent.
    pub(super) fn wrong(&mut self) -> Result<u64> {
        self.incoming.iter_mut().for_each(|buffer| buffer.fill(UNTOUCHED));
        self.call()?;
        let peer = match self.part {
            Part::First { peer } | Part::Last { peer } => peer,
            Part::None => 0,
        };
        let of = |buffer: &Vec<u8>| {
            buffer.iter().enumerate().filter(|(index, byte)| **byte != pattern(peer, *index)).count() as u64
        };
        let mut wrong = [self.incoming.iter().map(of).sum()];
        self.comm.all_reduce(&mut wrong, ReduceOp::Sum)?;
        Ok(wrong[0])
    }
}

/// Another byte in every place that could be mistaken for this one, and never what was there
/// before.
fn pattern(rank: usize, index: usize) -> u8 {
    let byte = (index * 31 + index / 256 * 7 + rank * 101) as u8;
    if byte == UNTOUCHED { 0 } else { byte }
}

fn buffer(bytes: usize) -> Result<Vec<u8>> {
    let mut buffer = Vec::new();
    let refused = |_| PerfError::usage(format!("--max: no memory for {bytes} bytes"));
    buffer.try_reserve_exact(bytes).map_err(refused)?;
    buffer.resize(bytes, UNTOUCHED);
    Ok(buffer)
}
