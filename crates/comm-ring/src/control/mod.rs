//! The control channel: how ranks that are blocked, fail or leave tell the others.
//!
//! Nobody waits for the control channel. It is read before a rank sleeps, and now and then while it never does, and written without
//! blocking.

mod frame;

pub(crate) use frame::{Announce, Cause, Frame, PastCall};

use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::BorrowedFd;

use comm_core::{Armed, Error, Group, Interest, Loss, Result, Signature, Transport, wire};

/// How many bytes may wait to be sent to one peer. A peer that is behind by more than this does not read, and misses
/// announcements; aborts and goodbyes are always queued.
const OUTBOX_MAX: usize = 64 << 10;

/// How many bytes at once are read from one peer.
const READ_BYTES: usize = 4096;

/// How often one peer is read in a turn at most, so that one that never stops sending keeps nobody from its deadline.
const READS_PER_TURN: usize = 8;

/// What is known of a peer.
#[derive(Debug, Default)]
struct Peer {
    /// Bytes that arrived and do not make a whole frame yet.
    inbox: Vec<u8>,
    /// Bytes that wait to be sent.
    outbox: VecDeque<u8>,
    /// How its stream ended.
    loss: Option<Loss>,
    /// The last call that it completed before it left in order.
    goodbye: Option<u64>,
    /// The calls that it listed as it left.
    past: Vec<PastCall>,
    /// Whether it gave up: then its end has a cause that it told, and is none itself.
    gave_up: bool,
    /// Which call it said last that it is blocked in.
    announced: Option<Announce>,
    /// Whether it has said so since this rank asked everybody last.
    answered: bool,
    /// The highest number of a call that it spoke of: it made that call.
    made: u64,
}

/// What arrived since the last look, other than what is remembered of each peer.
#[derive(Debug)]
pub(crate) enum Event {
    /// A peer gave up.
    Abort {
        /// Who says so.
        from: usize,
        /// The first call that cannot be completed.
        sequence: u64,
        /// Why.
        cause: Cause,
    },
    /// A peer said which call it is in.
    Announce {
        /// Who.
        from: usize,
        /// What it said.
        announce: Announce,
    },
    /// A peer left in order.
    Goodbye {
        /// Who.
        from: usize,
        /// The last call that it completed.
        sequence: u64,
        /// Its last calls up to that one.
        past: Vec<PastCall>,
    },
}

/// The control channel of a group.
#[derive(Debug)]
pub(crate) struct Control<T> {
    transport: T,
    group: Group,
    peers: Vec<Peer>,
    interest: Interest,
    /// Whether no peer has left, was lost or has announced anything so far.
    quiet: bool,
    /// The call in which this rank asked everybody last where they are.
    asked_in: Option<u64>,
}

impl<T: Transport> Control<T> {
    pub(crate) fn new(transport: T) -> Self {
        let group = transport.group();
        let peers = (0..group.size()).map(|_| Peer::default()).collect();
        let interest = Interest::with_capacity(group.size());
        Self { transport, group, peers, interest, quiet: true, asked_in: None }
    }

    /// Queues a frame for a peer and sends what can go.
    pub(crate) fn send(&mut self, to: usize, frame: &Frame) {
        let peer = &mut self.peers[to];
        let droppable = matches!(frame, Frame::Announce(_));
        if peer.loss.is_some() || (droppable && peer.outbox.len() > OUTBOX_MAX) {
            return;
        }
        peer.outbox.extend(frame.encode());
        self.flush(to);
    }

    /// Queues a frame for every peer and sends what can go.
    pub(crate) fn send_all(&mut self, frame: &Frame) {
        for peer in self.group.peers() {
            self.send(peer, frame);
        }
    }

    /// Whether something still waits to be sent to a peer that is there.
    pub(crate) fn is_flushed(&self) -> bool {
        self.peers.iter().all(|peer| peer.outbox.is_empty() || peer.loss.is_some())
    }

    fn flush(&mut self, to: usize) {
        let peer = &mut self.peers[to];
        while !peer.outbox.is_empty() {
            let (first, second) = peer.outbox.as_slices();
            match self.transport.try_send(to, &[IoSlice::new(first), IoSlice::new(second)]) {
                Ok(0) => break,
                Ok(sent) => drop(peer.outbox.drain(..sent)),
                Err(error) => {
                    // What the peer said before its stream broke may still lie there to be read.
                    tracing::debug!(peer = to, %error, "control channel cannot be written");
                    peer.outbox.clear();
                    break;
                }
            }
        }
    }

    /// Reads what has arrived, a bounded part of it from each peer, and sends everything that can go.
    pub(crate) fn poll(&mut self, events: &mut Vec<Event>) {
        for peer in self.group.peers() {
            self.flush(peer);
            if self.peers[peer].loss.is_none() {
                self.read(peer, events);
            }
        }
        let silent = |peer: &Peer| peer.loss.is_none() && peer.goodbye.is_none() && peer.announced.is_none();
        self.quiet = self.peers.iter().all(silent);
    }

    /// Whether no peer has left, was lost or has announced anything, as far as was heard.
    #[inline]
    pub(crate) const fn is_quiet(&self) -> bool {
        self.quiet
    }

    fn read(&mut self, from: usize, events: &mut Vec<Event>) {
        let mut bytes = [0; READ_BYTES];
        for _ in 0..READS_PER_TURN {
            match self.transport.try_recv(from, &mut bytes) {
                Ok(0) => return,
                Ok(received) => self.peers[from].inbox.extend_from_slice(&bytes[..received]),
                Err(error) => {
                    self.peers[from].loss = Some(loss(error));
                    return;
                }
            }
            if let Err(garbage) = self.take_frames(from, events) {
                self.peers[from].loss = Some(Loss::Garbage(garbage.to_string()));
                return;
            }
        }
    }

    fn take_frames(&mut self, from: usize, events: &mut Vec<Event>) -> wire::Result<()> {
        let peer = &mut self.peers[from];
        let mut taken = 0;
        while let Some((frame, length)) = Frame::decode(&peer.inbox[taken..])? {
            taken += length;
            match frame {
                Frame::Goodbye { sequence, past } => {
                    peer.goodbye = Some(sequence);
                    peer.past.clone_from(&past);
                    events.push(Event::Goodbye { from, sequence, past });
                }
                Frame::Abort { sequence, cause } => {
                    peer.gave_up = true;
                    events.push(Event::Abort { from, sequence, cause });
                }
                Frame::Announce(announce) => {
                    peer.made = peer.made.max(announce.sequence);
                    if !announce.waiting_for.is_empty() {
                        peer.announced = Some(announce.clone());
                        peer.answered = true;
                    }
                    events.push(Event::Announce { from, announce });
                }
            }
        }
        peer.inbox.drain(..taken);
        Ok(())
    }

    /// A rank that announced to be blocked in another call under this number, or left after one, and that call.
    pub(crate) fn contradiction(&self, sequence: u64, ours: &Signature) -> Option<(usize, &Signature)> {
        self.peers.iter().enumerate().find_map(|(rank, peer)| {
            let blocked = peer.announced.as_ref().filter(|announced| announced.sequence == sequence);
            let theirs =
                blocked.map(|announced| &announced.call).or_else(|| self.past_call(rank, sequence))?;
            (theirs != ours).then_some((rank, theirs))
        })
    }

    /// What a rank that has left called under this number, if it listed that call.
    pub(crate) fn past_call(&self, rank: usize, sequence: u64) -> Option<&Signature> {
        let peer = &self.peers[rank];
        peer.goodbye.filter(|&after| after >= sequence)?;
        peer.past.iter().rfind(|past| past.first <= sequence).map(|past| &past.call)
    }

    /// The last call that a rank completed before it left in order.
    pub(crate) fn left_after(&self, rank: usize) -> Option<u64> {
        self.peers[rank].goodbye
    }

    /// The members that have neither left nor been lost.
    pub(crate) fn present(&self) -> Vec<usize> {
        self.group.peers().filter(|&peer| !self.has_ended(peer)).collect()
    }

    /// A member that cannot take part in call `sequence` any more, and how that shows. One that died comes first: it is
    /// why others leave.
    pub(crate) fn lost(&self, sequence: u64) -> Option<(usize, Loss)> {
        let mut members = self.peers.iter().enumerate().filter(|(_, peer)| !peer.gave_up);
        let gone = |(rank, peer): (usize, &Peer)| match (peer.goodbye, &peer.loss) {
            (Some(after), _) if after < sequence => Some((rank, Loss::Left { after })),
            (Some(_), _) | (None, None) => None,
            (None, Some(loss)) => Some((rank, loss.clone())),
        };
        self.dead().or_else(|| members.find_map(gone))
    }

    /// The first of [`Control::deaths`].
    pub(crate) fn dead(&self) -> Option<(usize, Loss)> {
        self.deaths().next()
    }

    /// The members whose streams ended although they neither left nor gave up, nor were in the middle of saying so.
    pub(crate) fn deaths(&self) -> impl Iterator<Item = (usize, Loss)> {
        self.peers.iter().enumerate().filter_map(|(rank, peer)| match &peer.loss {
            Some(loss) if peer.goodbye.is_none() && !peer.gave_up && peer.inbox.is_empty() => {
                Some((rank, loss.clone()))
            }
            _ => None,
        })
    }

    /// Whether this peer's stream has ended or it said goodbye.
    pub(crate) fn has_ended(&self, peer: usize) -> bool {
        let peer = &self.peers[peer];
        peer.loss.is_some() || peer.goodbye.is_some()
    }

    /// Whether this peer has said anything that shows that it made call `sequence`.
    pub(crate) fn has_made(&self, peer: usize, sequence: u64) -> bool {
        let peer = &self.peers[peer];
        peer.made >= sequence || peer.goodbye.is_some_and(|after| after >= sequence)
    }

    /// Begins to wait for everybody's answer to a question that is asked in this call.
    pub(crate) fn begin_to_ask(&mut self, sequence: u64) {
        self.asked_in = Some(sequence);
        self.peers.iter_mut().for_each(|peer| peer.answered = false);
    }

    /// Whether everybody was asked in this call where they are.
    pub(crate) fn has_asked(&self, sequence: u64) -> bool {
        self.asked_in == Some(sequence)
    }

    /// Whether what a rank announced last still holds, as far as call `sequence` can tell. A rank that answers is
    /// blocked where it says, be it in an earlier call; one that does not may have stopped since.
    fn is_blocked(&self, rank: usize, announced: &Announce, sequence: u64) -> bool {
        if self.has_asked(sequence) { self.peers[rank].answered } else { announced.sequence >= sequence }
    }

    /// The members that call `sequence` is waiting for: those that can be reached from `waiting_for` through what
    /// blocked ranks announced, and are not known to be blocked themselves.
    pub(crate) fn absent(&self, sequence: u64, waiting_for: &[usize]) -> Vec<usize> {
        let mut seen = vec![false; self.group.size()];
        seen[self.group.rank()] = true;
        let mut open: Vec<usize> = waiting_for.to_vec();
        let mut absent = Vec::new();
        while let Some(rank) = open.pop() {
            if rank >= seen.len() || std::mem::replace(&mut seen[rank], true) {
                continue;
            }
            match &self.peers[rank].announced {
                Some(announced) if self.is_blocked(rank, announced, sequence) => {
                    open.extend_from_slice(&announced.waiting_for);
                }
                _ => absent.push(rank),
            }
        }
        absent.sort_unstable();
        absent
    }

    /// Prepares to sleep until something arrives from anybody, or what is queued can go.
    pub(crate) fn arm(&mut self) -> Result<Armed> {
        self.interest.clear();
        for rank in self.group.peers() {
            let peer = &self.peers[rank];
            if peer.loss.is_none() {
                self.interest.add_recv(rank);
            }
            if !peer.outbox.is_empty() {
                self.interest.add_send(rank);
            }
        }
        self.transport.arm(&self.interest)
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.transport.descriptor()
    }
}

/// How an error of the transport shows as the loss of a peer.
fn loss(error: Error) -> Loss {
    match error {
        Error::PeerLost { loss, .. } => loss,
        other => Loss::Garbage(other.to_string()),
    }
}
