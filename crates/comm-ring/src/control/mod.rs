//! The control channel, on which ranks announce that they are blocked, fail or leave.
//!
//! It never blocks. It is read before a rank sleeps, and at intervals while the rank does not
//! sleep.
//!
//! In a large group, a rank is connected only with some of the others when the group is created:
//! it watches them, and the ranks pass on what concerns all of them ([`Relay`]). A message to
//! another rank connects the two.

mod blocked;
mod ended;
mod frame;
mod rank_set;
mod relay;
mod shrink;

pub(crate) use frame::{Announce, Cause, ControlFrame, PastCall};
pub(crate) use shrink::{Proposal, ShrinkFrame, ShrinkState};

use std::collections::{BTreeSet, VecDeque};
use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use comm_core::{Armed, Error, Group, Interest, Loss, Result, Transport, wire};

use crate::peer_table::PeerTable;
use rank_set::RankSet;
use relay::Relay;

/// The limit on bytes queued for one peer. A peer beyond it is not reading, and misses
/// announcements; aborts and goodbyes are always queued.
const OUTBOX_MAX: usize = 64 << 10;

/// The number of connected peers for which memory is allocated at once.
const PEERS_EXPECTED: usize = 64;

/// The number of bytes that one read takes from a peer.
const READ_BYTES: usize = 4096;

/// The most reads per peer and poll, so that a peer that never stops sending cannot delay a
/// deadline.
const READS_PER_TURN: usize = 8;

/// The state of a peer.
#[derive(Debug, Clone, Default)]
struct ControlPeer {
    /// Received bytes that do not form a complete frame yet.
    inbox: Vec<u8>,
    /// Bytes that wait to be sent.
    outbox: VecDeque<u8>,
    /// The reason why its stream ended.
    loss: Option<Loss>,
    /// Whether it could not be connected when this rank had a message for it: it has died, or has
    /// left and its goodbye is on its way.
    is_unreachable: bool,
    /// The last call that it completed before it left normally. The relay has what was passed on,
    /// also of aborts.
    goodbye: Option<u64>,
    /// The calls that its goodbye listed.
    past: Vec<PastCall>,
    /// The cause that it reported when it aborted.
    gave_up: Option<Box<Cause>>,
    /// The call in which it last announced that it was blocked.
    announced: Option<Box<Announce>>,
    /// Whether it was asked for its state, and has announced since.
    asked: bool,
    answered: bool,
    /// The highest number of a call that it announced and so has made.
    made: u64,
    /// Its messages about a smaller group.
    shrink: ShrinkState,
}

/// An event since the last poll that is not part of the state of a peer.
#[derive(Debug)]
pub(crate) enum Event {
    /// A peer aborted.
    Abort {
        /// The peer.
        from: usize,
        /// The first call that cannot be completed.
        sequence: u64,
        /// The cause.
        cause: Cause,
    },
    /// A peer announced its call.
    Announce {
        /// The peer.
        from: usize,
        /// The announcement.
        announce: Announce,
    },
    /// A peer left normally.
    Goodbye {
        /// The peer.
        from: usize,
        /// The last call that it completed.
        sequence: u64,
        /// Its last calls up to that one.
        past: Vec<PastCall>,
    },
}

impl Event {
    /// Returns the event that a message of a rank is, if it is one.
    fn of(from: usize, frame: ControlFrame) -> Option<Self> {
        match frame {
            ControlFrame::Goodbye { sequence, past } => Some(Self::Goodbye { from, sequence, past }),
            ControlFrame::Abort { sequence, cause } => Some(Self::Abort { from, sequence, cause }),
            ControlFrame::Announce(announce) => Some(Self::Announce { from, announce }),
            ControlFrame::Shrink(_) | ControlFrame::Relay { .. } => None,
        }
    }
}

/// The control channel of a group.
pub(crate) struct Control {
    transport: Box<dyn Transport>,
    group: Group,
    peers: PeerTable<ControlPeer>,
    /// The messages that ranks pass on. `None` in a group in which all are connected.
    relay: Option<Relay>,
    interest: Interest,
    /// The first call that no peer has announced, as far as is known; no call if a peer has left or
    /// been lost.
    quiet_from: u64,
    /// The call in which this rank last asked all peers for their state.
    asked_in: Option<u64>,
}

impl Control {
    pub(crate) fn new(transport: Box<dyn Transport>) -> Self {
        let group = transport.group();
        let peers = PeerTable::new(group.size(), ControlPeer::default());
        let interest = Interest::with_capacity(group.size().min(PEERS_EXPECTED));
        // Peers may have connected to this rank already, so open streams do not show it.
        let is_complete = transport.is_full_mesh() || group.peers().all(|peer| group.watches(peer));
        let relay = (!is_complete).then(|| Relay::new(open_peers(&*transport).collect()));
        Self { transport, group, peers, relay, interest, quiet_from: 0, asked_in: None }
    }

    /// Returns whether all ranks are connected with all others from the start.
    pub(crate) const fn is_complete(&self) -> bool {
        self.relay.is_none()
    }

    /// Returns whether there is a stream to a peer, which may have ended.
    pub(crate) fn is_open(&self, peer: usize) -> bool {
        self.transport.is_open(peer)
    }

    /// Returns the peers to which there is a stream.
    pub(crate) fn connected(&self) -> Vec<usize> {
        open_peers(&*self.transport).collect()
    }

    /// Connects with a peer, if this rank is not connected with it, to learn whether it is alive.
    pub(crate) fn contact(&mut self, peer: usize) {
        if !self.is_open(peer) && !self.is_disconnected(peer) {
            self.peers[peer].is_unreachable = self.transport.try_send(peer, &[]).is_err();
        }
    }

    /// Queues a frame for a peer, connects it if necessary, and sends as much as possible now.
    pub(crate) fn send(&mut self, to: usize, frame: &ControlFrame) {
        let droppable = matches!(frame, ControlFrame::Announce(_));
        if droppable && self.peers[to].outbox.len() > OUTBOX_MAX {
            return;
        }
        self.send_bytes(to, &frame.encode());
    }

    fn send_bytes(&mut self, to: usize, bytes: &[u8]) {
        let peer = &mut self.peers[to];
        if peer.loss.is_none() && !peer.is_unreachable {
            peer.outbox.extend(bytes);
            self.flush(to);
        }
    }

    /// Sends a frame to every peer, or to those with which this rank is connected, which pass it
    /// on.
    pub(crate) fn send_all(&mut self, frame: &ControlFrame) {
        let own = self.group.rank();
        if let Some(relay) = &mut self.relay
            && relay::is_passed_on(frame)
            && !relay.add(frame, &[own].into_iter().collect()).is_empty()
        {
            self.pass_on();
            return;
        }
        // The others must know who has left before they hear of a failure.
        if let Some(relay) = &mut self.relay {
            relay.stop_collecting();
            self.pass_on();
        }
        // A frame that was sent before only shows that this rank is alive.
        let mut next = self.next_told(0);
        while let Some(peer) = next {
            self.send(peer, frame);
            next = self.next_told(peer + 1);
        }
    }

    /// Returns the first peer from this one on to which messages for all ranks are sent.
    fn next_told(&self, from: usize) -> Option<usize> {
        let has_relay = self.relay.is_some();
        if has_relay { self.transport.next_open(from) } else { self.group.peers().find(|&peer| peer >= from) }
    }

    /// Passes on news to the peers with which this rank is connected.
    fn pass_on(&mut self) {
        let Some(relay) = &mut self.relay else { return };
        let mut changed = Vec::new();
        if relay.has_changed() {
            let now = self.transport.now();
            if relay.collects_for(self.group.rank(), now).is_some() {
                return;
            }
            changed = relay.take_changed(now);
        }
        for peer in self.connected() {
            let Some(relay) = &mut self.relay else { return };
            let was_told = relay.told.contains(peer);
            if was_told && changed.is_empty() {
                continue;
            }
            // A peer that has not read the last messages gets the next ones together.
            if self.peers[peer].outbox.is_empty() {
                relay.told.insert(peer);
                let bytes = if was_told { changed.clone() } else { relay.all() };
                self.send_bytes(peer, &bytes);
            } else {
                relay.told.remove(peer);
            }
        }
    }

    /// Watches as many of the remaining ranks as before: in place of each one that is excluded, the
    /// next one. So these ranks stay connected with each other, whichever others are lost.
    pub(crate) fn rewire(&mut self, excluded: &BTreeSet<usize>) {
        let Some(relay) = &self.relay else { return };
        let (own, size, all) = (self.group.rank(), self.group.size(), relay.all());
        for distance in self.group.watched_distances() {
            let mut next = (0..size).map(|step| (own + distance + step) % size);
            let Some(peer) = next.find(|rank| !excluded.contains(rank)) else { continue };
            if peer != own && !self.is_open(peer) && self.peers[peer].outbox.is_empty() {
                self.send_bytes(peer, &all);
            }
        }
    }

    /// Returns whether no connected peer has queued bytes, and there is nothing to pass on.
    pub(crate) fn is_flushed(&self) -> bool {
        let is_flushed = |peer: &ControlPeer| peer.loss.is_some() || peer.outbox.is_empty();
        let is_told =
            |relay: &Relay, peer: usize| relay.told.contains(peer) || self.peers[peer].loss.is_some();
        let has_passed_on =
            |relay: &Relay| !relay.has_changed() && self.connected().iter().all(|&peer| is_told(relay, peer));
        self.peers.iter().all(|(_, peer)| is_flushed(peer)) && self.relay.as_ref().is_none_or(has_passed_on)
    }

    /// Returns the first peer from this one on to which there is a stream or that has queued bytes.
    fn next_used(&self, from: usize) -> Option<usize> {
        let open = self.transport.next_open(from);
        let before = from..open.unwrap_or(self.group.size());
        self.peers.find(before, |peer| !peer.outbox.is_empty()).or(open)
    }

    fn flush(&mut self, to: usize) {
        if self.peers[to].outbox.is_empty() {
            return;
        }
        let peer = &mut self.peers[to];
        while !peer.outbox.is_empty() {
            let (first, second) = peer.outbox.as_slices();
            match self.transport.try_send(to, &[IoSlice::new(first), IoSlice::new(second)]) {
                Ok(0) => break,
                Ok(sent) if sent == peer.outbox.len() => peer.outbox = VecDeque::new(),
                Ok(sent) => drop(peer.outbox.drain(..sent)),
                Err(error) => {
                    // Frames that the peer sent before its stream broke may still be readable.
                    tracing::debug!(peer = to, %error, "control channel cannot be written");
                    peer.outbox.clear();
                    peer.is_unreachable |= !self.transport.is_open(to);
                    break;
                }
            }
        }
    }

    /// Reads bytes that have arrived, a bounded number from each peer, and sends queued bytes.
    pub(crate) fn poll(&mut self, events: &mut Vec<Event>) {
        let mut next = self.next_used(0);
        while let Some(peer) = next {
            self.flush(peer);
            if self.peers[peer].loss.is_none() && self.transport.is_open(peer) {
                self.read(peer, events);
            }
            next = self.next_used(peer + 1);
        }
        self.pass_on();
        let is_present = |peer: &ControlPeer| peer.loss.is_none() && peer.goodbye.is_none();
        let are_present =
            self.peers.iter().all(|(_, peer)| is_present(peer)) && self.relayed_goodbyes().next().is_none();
        let announced = self.peers.iter().filter_map(|(_, peer)| peer.announced.as_ref());
        let after_last = announced.map(|announced| announced.sequence.saturating_add(1)).max().unwrap_or(0);
        self.quiet_from = if are_present { after_last } else { u64::MAX };
    }

    /// Returns whether, as of the last poll, no peer has left or been lost, and none has announced
    /// this call or a later one.
    #[inline]
    pub(crate) const fn is_quiet(&self, sequence: u64) -> bool {
        sequence >= self.quiet_from
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
            if let Err(error) = self.take_frames(from, events) {
                self.peers[from].loss = Some(Loss::Protocol(error.to_string()));
                return;
            }
        }
    }

    fn take_frames(&mut self, from: usize, events: &mut Vec<Event>) -> wire::Result<()> {
        let mut taken = 0;
        while let Some((frame, length)) = ControlFrame::decode(&self.peers[from].inbox[taken..])? {
            taken += length;
            if let Some(rank) = frame.unknown_rank(self.group.size()) {
                return Err(wire::WireError::Unknown { what: "rank", value: rank as u64 });
            }
            match frame {
                ControlFrame::Relay { ranks, frame } => self.take_relayed(&ranks, &frame, events),
                frame @ ControlFrame::Abort { .. } if !self.is_complete() => {
                    self.take_relayed(&[from].into_iter().collect(), &frame, events);
                }
                frame => self.take_frame(from, frame, events),
            }
        }
        // Few messages come from a peer, and a large group has many peers.
        let inbox = &mut self.peers[from].inbox;
        if taken == inbox.len() {
            *inbox = Vec::new()
        } else {
            drop(inbox.drain(..taken))
        }
        Ok(())
    }

    /// Handles a message of these ranks that is passed on.
    fn take_relayed(&mut self, ranks: &RankSet, frame: &ControlFrame, events: &mut Vec<Event>) {
        let Some(relay) = &mut self.relay else { return };
        let mut new = relay.add(frame, ranks);
        new.remove(self.group.rank());
        if relay.remembers(frame) {
            // The relay says which ranks have sent it, and it has the same effect for each of them.
            let event = new.iter().next().and_then(|first| Event::of(first, frame.clone()));
            events.extend(event);
        } else {
            new.iter().for_each(|rank| self.take_frame(rank, frame.clone(), events));
        }
    }

    /// Handles a message of a rank.
    fn take_frame(&mut self, from: usize, frame: ControlFrame, events: &mut Vec<Event>) {
        let peer = &mut self.peers[from];
        match &frame {
            ControlFrame::Goodbye { sequence, past } => {
                peer.goodbye = Some(*sequence);
                peer.past.clone_from(past);
            }
            ControlFrame::Abort { cause, .. } => {
                peer.gave_up.get_or_insert_with(|| Box::new(cause.clone()));
            }
            ControlFrame::Announce(announce) => {
                peer.made = peer.made.max(announce.sequence);
                if !announce.waiting_for.is_empty() {
                    peer.announced = Some(Box::new(announce.clone()));
                    peer.answered = true;
                }
            }
            ControlFrame::Shrink(frame) => peer.shrink.update(frame.clone()),
            // Decoding has refused a relayed one.
            ControlFrame::Relay { .. } => {}
        }
        events.extend(Event::of(from, frame));
    }

    /// Returns the messages of this peer about a smaller group.
    pub(crate) fn shrink_state(&self, peer: usize) -> &ShrinkState {
        &self.peers[peer].shrink
    }

    /// Prepares to sleep until bytes arrive from any peer, or queued bytes can be sent.
    pub(crate) fn arm(&mut self) -> Result<Armed> {
        self.interest.clear();
        let mut next = self.next_used(0);
        while let Some(rank) = next {
            let peer = &self.peers[rank];
            if peer.loss.is_none() && self.transport.is_open(rank) {
                self.interest.add_recv(rank);
            }
            if !peer.outbox.is_empty() {
                self.interest.add_send(rank);
            }
            next = self.next_used(rank + 1);
        }
        self.transport.arm(&self.interest)
    }

    /// Sleeps until the channel or the other descriptor is ready, there is something to pass on, or
    /// the timeout has passed.
    pub(crate) fn sleep(&self, also: Option<BorrowedFd<'_>>, timeout: Duration) -> Result<()> {
        let collects = |relay: &Relay| relay.collects_for(self.group.rank(), self.transport.now());
        let collects_for = self.relay.as_ref().and_then(collects);
        self.transport.sleep(also, collects_for.map_or(timeout, |left| left.min(timeout)))
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.transport.descriptor()
    }
}

/// Returns the peers to which there is a stream.
fn open_peers(transport: &dyn Transport) -> impl Iterator<Item = usize> {
    std::iter::successors(transport.next_open(0), |&peer| transport.next_open(peer + 1))
}

/// Converts an error of the transport to the loss of a peer.
fn loss(error: Error) -> Loss {
    match error {
        Error::PeerLost { loss, .. } => loss,
        other => Loss::Protocol(other.to_string()),
    }
}
