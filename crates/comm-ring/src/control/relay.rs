//! Messages to all ranks of a group in which a rank is connected only with some of the others.
//!
//! A rank tells the ranks with which it is connected, and each rank passes on what is new to it.
//! Most messages of this kind are the same on many ranks (all leave after the same call, and all
//! propose the same group), so a rank passes on a message together with the set of all ranks that
//! are known to have sent it. So the number of messages grows with the number of connections, and
//! not with the square of the number of ranks.
//!
//! Ranks usually leave at about the same time. So one that has left collects the goodbyes of others
//! for a moment ([`COLLECT`]), instead of passing on each as a message of its own.

use std::time::{Duration, Instant};

use super::frame::ControlFrame;
use super::rank_set::RankSet;
use super::shrink::ShrinkFrame;

/// The number of different aborts that are passed on, besides the aborts of earlier calls. When
/// many ranks fail, each for a reason of its own, all of them know one.
const ABORTS_MAX: usize = 8;

/// The time for which a rank that has left collects the goodbyes of others.
const COLLECT: Duration = Duration::from_millis(1);

/// The messages to all ranks that this rank knows.
#[derive(Debug)]
pub(super) struct Relay {
    entries: Vec<RelayEntry>,
    /// The peers that were told all entries that have not changed.
    pub(super) told: RankSet,
    /// When goodbyes are passed on again, after other messages were.
    collects_until: Option<Instant>,
}

/// A message, and the ranks that have sent it.
#[derive(Debug)]
struct RelayEntry {
    frame: ControlFrame,
    ranks: RankSet,
    /// Whether ranks were added since the entry was last passed on.
    has_changed: bool,
}

impl Relay {
    /// Creates the state before any message. `told` are the ranks that are connected already.
    pub(super) const fn new(told: RankSet) -> Self {
        Self { entries: Vec::new(), told, collects_until: None }
    }

    /// Adds ranks that have sent a message. Returns those of which this was not known, and of which
    /// no later message of the same kind is known.
    pub(super) fn add(&mut self, frame: &ControlFrame, ranks: &RankSet) -> RankSet {
        let (kind, age) = order(frame);
        let same_kind = |entry: &&mut RelayEntry| order(&entry.frame).0 == kind;
        let mut new = ranks.clone();
        for entry in self.entries.iter_mut().filter(same_kind) {
            let common = entry.ranks.common(ranks);
            let is_older = order(&entry.frame).1 < age;
            if is_older { &mut entry.ranks } else { &mut new }.remove_all(&common);
        }
        self.entries.retain(|entry| !entry.ranks.is_empty());
        if new.is_empty() {
            return new;
        }
        let is_redundant = self.is_redundant(frame);
        match self.entries.iter_mut().find(|entry| entry.frame == *frame) {
            Some(entry) => {
                entry.ranks.add_all(&new);
                entry.has_changed = true;
            }
            None if is_redundant => {}
            None => {
                self.entries.push(RelayEntry { frame: frame.clone(), ranks: new.clone(), has_changed: true })
            }
        }
        new
    }

    /// Returns whether this knows which ranks have sent a message after which they send none of the
    /// kind. It does not if the message is one of too many aborts.
    pub(super) fn remembers(&self, frame: &ControlFrame) -> bool {
        let is_last = matches!(frame, ControlFrame::Goodbye { .. } | ControlFrame::Abort { .. });
        is_last && self.entries.iter().any(|entry| entry.frame == *frame)
    }

    /// Returns the messages, and the ranks that have sent each.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&ControlFrame, &RankSet)> {
        self.entries.iter().map(|entry| (&entry.frame, &entry.ranks))
    }

    /// Whether a message is an abort that no rank needs to know.
    fn is_redundant(&self, frame: &ControlFrame) -> bool {
        let ControlFrame::Abort { sequence, .. } = frame else { return false };
        let known = self.entries.iter().filter_map(|entry| match &entry.frame {
            ControlFrame::Abort { sequence, .. } => Some(*sequence),
            _ => None,
        });
        known.clone().count() >= ABORTS_MAX && known.min() <= Some(*sequence)
    }

    /// Returns the messages that have changed since the last call, to pass them on at this time.
    pub(super) fn take_changed(&mut self, now: Instant) -> Vec<u8> {
        let changed: Vec<u8> = self.changed().flat_map(RelayEntry::encode).collect();
        if !changed.is_empty() {
            self.collects_until = Some(now + COLLECT);
        }
        self.entries.iter_mut().for_each(|entry| entry.has_changed = false);
        changed
    }

    fn changed(&self) -> impl Iterator<Item = &RelayEntry> {
        self.entries.iter().filter(|entry| entry.has_changed)
    }

    /// Returns whether a message has changed since it was last passed on.
    pub(super) fn has_changed(&self) -> bool {
        self.changed().next().is_some()
    }

    /// Returns the time for which this rank waits for more goodbyes before it passes on those that
    /// it has, if it does.
    pub(super) fn collects_for(&self, own: usize, now: Instant) -> Option<Duration> {
        let left = self.collects_until?.checked_duration_since(now)?;
        let has_left = || self.entries.iter().any(|entry| entry.is_goodbye() && entry.ranks.contains(own));
        let collects = self.has_changed() && self.changed().all(RelayEntry::is_goodbye) && has_left();
        (collects && !left.is_zero()).then_some(left)
    }

    /// Makes this rank pass on its collected news at once.
    pub(super) const fn stop_collecting(&mut self) {
        self.collects_until = None;
    }

    /// Returns all messages.
    pub(super) fn all(&self) -> Vec<u8> {
        self.entries.iter().flat_map(RelayEntry::encode).collect()
    }
}

impl RelayEntry {
    const fn is_goodbye(&self) -> bool {
        matches!(self.frame, ControlFrame::Goodbye { .. })
    }

    fn encode(&self) -> Vec<u8> {
        ControlFrame::Relay { ranks: self.ranks.clone(), frame: Box::new(self.frame.clone()) }.encode()
    }
}

/// Whether a message to all ranks is sent as one that is passed on. An abort is not, because the
/// end of the stream after it must not look like a death, but its receivers pass it on.
pub(super) const fn is_passed_on(frame: &ControlFrame) -> bool {
    matches!(frame, ControlFrame::Goodbye { .. } | ControlFrame::Shrink(_))
}

/// Returns the kind of a message, and a number that is larger for later ones of this kind from one
/// rank.
fn order(frame: &ControlFrame) -> (u8, (u32, usize)) {
    match frame {
        ControlFrame::Shrink(ShrinkFrame::Propose(proposal)) => (1, proposal.age()),
        ControlFrame::Shrink(ShrinkFrame::Connected { attempt }) => (2, (*attempt, 0)),
        ControlFrame::Shrink(ShrinkFrame::Done { attempt }) => (3, (*attempt, 0)),
        ControlFrame::Shrink(ShrinkFrame::Formed) => (4, (0, 0)),
        ControlFrame::Shrink(ShrinkFrame::Committed) => (5, (0, 0)),
        ControlFrame::Abort { .. } => (6, (0, 0)),
        _ => (0, (0, 0)),
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use comm_core::{Loss, Transport};
    use comm_sim::AlteredTransport;
    use comm_sim::network::{FaultPlan, Network, NetworkTransport};

    use super::*;
    use crate::control::{Cause, Control, Proposal};

    /// The smallest group in which a rank does not watch all others.
    const RANKS: usize = 6;

    fn transports(capacity: usize) -> (Network, Vec<NetworkTransport>) {
        Network::new(RANKS, 1, &FaultPlan::calm().on_demand(true).capacity(capacity)).unwrap()
    }

    fn goodbye(sequence: u64) -> ControlFrame {
        ControlFrame::Goodbye { sequence, past: Vec::new() }
    }

    fn propose(attempt: u32, excluded: &[usize]) -> ControlFrame {
        let excluded = excluded.iter().copied().collect();
        ControlFrame::Shrink(ShrinkFrame::Propose(Proposal { attempt, completed: 3, excluded }))
    }

    fn set(ranks: &[usize]) -> RankSet {
        ranks.iter().copied().collect()
    }

    fn decode(mut bytes: &[u8]) -> Vec<ControlFrame> {
        let mut frames = Vec::new();
        while let Some((frame, length)) = ControlFrame::decode(bytes).unwrap() {
            frames.push(frame);
            bytes = &bytes[length..];
        }
        frames
    }

    fn relayed(frame: ControlFrame, ranks: &[usize]) -> ControlFrame {
        ControlFrame::Relay { ranks: set(ranks), frame: Box::new(frame) }
    }

    #[test]
    fn equal_messages_are_passed_on_once_with_all_their_senders() {
        let (mut relay, now) = (Relay::new(RankSet::default()), Instant::now());
        assert_eq!(relay.add(&goodbye(7), &set(&[1, 5])), set(&[1, 5]));
        assert_eq!(relay.add(&goodbye(7), &set(&[5, 99])), set(&[99]));
        assert_eq!(relay.add(&goodbye(7), &set(&[1, 99])), set(&[]));
        assert_eq!(decode(&relay.take_changed(now)), [relayed(goodbye(7), &[1, 5, 99])]);
        assert!(relay.take_changed(now).is_empty());
        assert_eq!(relay.add(&goodbye(8), &set(&[2])), set(&[2]));
        assert_eq!(decode(&relay.take_changed(now)), [relayed(goodbye(8), &[2])]);
        assert_eq!(decode(&relay.all()).len(), 2);
    }

    #[test]
    fn a_bounded_number_of_aborts_is_passed_on_and_always_the_one_of_the_earliest_call() {
        let mut relay = Relay::new(RankSet::default());
        for rank in (0..100).rev() {
            let cause = Cause::Aborted { by: rank, reason: "too late".into() };
            let frame = ControlFrame::Abort { sequence: 20 + (rank as u64 % 10), cause };
            assert_eq!(relay.add(&frame, &set(&[rank])), set(&[rank]));
        }
        let sequences = decode(&relay.take_changed(Instant::now())).into_iter().map(|frame| match frame {
            ControlFrame::Relay { frame, .. } => match *frame {
                ControlFrame::Abort { sequence, .. } => sequence,
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        });
        let sequences: Vec<u64> = sequences.collect();
        assert!(sequences.len() <= 10 && sequences.contains(&20), "{sequences:?}");
    }

    #[test]
    fn only_the_last_proposal_of_a_rank_counts_in_whatever_order_they_arrive() {
        let mut relay = Relay::new(RankSet::default());
        relay.add(&propose(0, &[4]), &set(&[1, 2, 3]));
        assert_eq!(relay.add(&propose(0, &[4, 5]), &set(&[1])), set(&[1]));
        assert_eq!(relay.add(&propose(1, &[4, 5]), &set(&[2])), set(&[2]));
        assert!(relay.add(&propose(0, &[]), &set(&[1, 2, 3])).is_empty());
        assert_eq!(relay.add(&propose(0, &[]), &set(&[6])), set(&[6]));
        assert_eq!(relay.add(&propose(2, &[4, 5]), &set(&[1, 2, 3, 6])), set(&[1, 2, 3, 6]));
        assert_eq!(decode(&relay.all()), [relayed(propose(2, &[4, 5]), &[1, 2, 3, 6])]);
    }

    /// The bytes of all messages do not fit on a link, so a peer has never read all of them when it
    /// is looked at.
    #[test]
    fn nothing_is_sent_again_to_a_peer_while_another_one_does_not_read() {
        let (mut network, transports) = transports(10);
        let mut transports = transports.into_iter();
        let sent = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&sent);
        let transport = transports.next().unwrap();
        let mut first = Control::new(Box::new(AlteredTransport {
            transport,
            alteration: move |transport: &mut NetworkTransport, to: usize, bytes: &[IoSlice<'_>]| {
                let sent = transport.try_send(to, bytes)?;
                count.fetch_add(if to == 1 { sent } else { 0 }, Ordering::Relaxed);
                Ok(sent)
            },
        }));
        let mut others: Vec<_> = transports.map(|transport| Control::new(Box::new(transport))).collect();
        let mut events = Vec::new();
        [1, 2].into_iter().for_each(|peer| first.contact(peer));
        first.send_all(&goodbye(7));
        first.send_all(&propose(0, &[4]));
        for _ in 0..1000 {
            first.poll(&mut events);
            others[0].poll(&mut events);
            network.advance();
        }
        let [goodbye, propose] =
            [goodbye(7), propose(0, &[4])].map(|frame| relayed(frame, &[0]).encode().len());
        assert_eq!(sent.load(Ordering::Relaxed), 2 * goodbye + propose);
        for _ in 0..100 {
            first.poll(&mut events);
            others[1].poll(&mut events);
            network.advance();
        }
        for other in &others[..2] {
            assert_eq!(other.left_after(0), Some(7));
            assert!(other.shrink_state(0).proposal.is_some());
        }
    }

    /// Lets rank 1 hear of the goodbyes of others one after the other, and counts its frames to
    /// rank 2.
    /// 2.
    fn passes_on(then: impl FnOnce(&mut Network, &mut Control)) -> usize {
        let (mut network, transports) = transports(10_000);
        let mut transports = transports.into_iter().skip(1);
        let sent = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&sent);
        let mut control = Control::new(Box::new(AlteredTransport {
            transport: transports.next().unwrap(),
            alteration: move |transport: &mut NetworkTransport, to: usize, bytes: &[IoSlice<'_>]| {
                let is_message = bytes.iter().any(|part| !part.is_empty());
                count.fetch_add(usize::from(to == 2 && is_message), Ordering::Relaxed);
                transport.try_send(to, bytes)
            },
        }));
        let mut second = Control::new(Box::new(transports.next().unwrap()));
        let mut events = Vec::new();
        control.contact(2);
        control.send_all(&goodbye(7));
        for rank in [0, 3, 4, 5] {
            second.send(1, &relayed(goodbye(7), &[rank]));
            network.advance_by(COLLECT / 10);
            control.poll(&mut events);
        }
        then(&mut network, &mut control);
        for _ in 0..3 {
            network.advance_by(COLLECT);
            second.poll(&mut events);
        }
        assert!((0..RANKS).all(|rank| rank == 2 || second.left_after(rank) == Some(7)));
        sent.load(Ordering::Relaxed)
    }

    #[test]
    fn a_rank_that_has_left_passes_on_the_goodbyes_of_others_together() {
        let sent = passes_on(|network, control| {
            assert!(!control.is_flushed());
            network.advance_by(COLLECT);
            control.poll(&mut Vec::new());
            assert!(control.is_flushed());
        });
        assert_eq!(sent, 2);
    }

    #[test]
    fn a_failure_is_reported_after_the_goodbyes_that_were_collected() {
        let cause = Cause::Aborted { by: 1, reason: "too late".into() };
        assert_eq!(passes_on(|_, control| control.send_all(&ControlFrame::Abort { sequence: 8, cause })), 3);
    }

    #[test]
    fn a_rank_to_which_all_others_have_connected_at_once_reads_what_they_pass_on() {
        let (mut network, mut transports) = transports(1000);
        let mut events = Vec::new();
        for transport in &mut transports[1..] {
            transport.try_send(0, &[]).unwrap();
        }
        let mut controls: Vec<_> =
            transports.into_iter().map(|transport| Control::new(Box::new(transport))).collect();
        assert_eq!(controls[0].connected(), [1, 2, 3, 4, 5]);
        controls[5].contact(1);
        controls[5].send_all(&goodbye(7));
        // It reads nothing from rank 5 itself.
        controls[0].peers[5].loss = Some(Loss::Closed);
        for _ in 0..100 {
            controls[..2].iter_mut().for_each(|control| control.poll(&mut events));
            network.advance();
        }
        assert_eq!(controls[0].left_after(5), Some(7));
    }
}
