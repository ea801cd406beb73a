//! Finds the ranks that have left, aborted or died, and the calls that ranks have made.

use comm_core::{Loss, Signature};

use super::rank_set::RankSet;
use super::relay::Relay;
use super::{Cause, Control, ControlFrame, ControlPeer, PastCall};

impl Control {
    /// Returns a rank that announced a different call with this number, or left after making one,
    /// and that call.
    pub(crate) fn contradiction(&self, sequence: u64, ours: &Signature) -> Option<(usize, &Signature)> {
        let own = self.peers.iter().find_map(|(rank, peer)| {
            let blocked = peer.announced.as_ref().filter(|announced| announced.sequence == sequence);
            let theirs =
                blocked.map(|announced| &announced.call).or_else(|| self.past_call(rank, sequence))?;
            (theirs != ours).then_some((rank, theirs))
        });
        let relayed = self.relayed_goodbyes().filter_map(|(after, past, ranks)| {
            let theirs = call_in(past, sequence).filter(|theirs| after >= sequence && *theirs != ours)?;
            Some((ranks.iter().find(|rank| *rank != self.group.rank())?, theirs))
        });
        own.into_iter().chain(relayed).min_by_key(|(rank, _)| *rank)
    }

    /// Returns the call with this number of a rank that has left, if its goodbye listed that call.
    pub(crate) fn past_call(&self, rank: usize, sequence: u64) -> Option<&Signature> {
        let (after, past) = self.goodbye(rank)?;
        call_in(past, sequence).filter(|_| after >= sequence)
    }

    /// Returns the last call that a rank completed before it left normally.
    pub(crate) fn left_after(&self, rank: usize) -> Option<u64> {
        self.goodbye(rank).map(|(after, _)| after)
    }

    /// Returns the last call that a rank completed before it left normally, and its last calls.
    fn goodbye(&self, rank: usize) -> Option<(u64, &[PastCall])> {
        let peer = &self.peers[rank];
        let relayed = || self.relayed_goodbyes().find(|(_, _, ranks)| ranks.contains(rank));
        peer.goodbye
            .map(|after| (after, &peer.past[..]))
            .or_else(|| relayed().map(|(after, past, _)| (after, past)))
    }

    /// Returns the goodbyes that were passed on to this rank, and the ranks that have sent each.
    pub(super) fn relayed_goodbyes(&self) -> impl Iterator<Item = (u64, &[PastCall], &RankSet)> {
        self.relay.iter().flat_map(Relay::entries).filter_map(|(frame, ranks)| match frame {
            ControlFrame::Goodbye { sequence, past } => Some((*sequence, &past[..], ranks)),
            _ => None,
        })
    }

    /// Returns the members that have neither left nor been lost.
    pub(crate) fn present(&self) -> Vec<usize> {
        let has_ended = |peer: &usize| self.peers[*peer].loss.is_some() || self.left_after(*peer).is_some();
        self.group.peers().filter(|peer| !has_ended(peer)).collect()
    }

    /// Returns a member that can no longer take part in call `sequence`, and its loss. A member
    /// that died comes first, because its death causes others to leave.
    pub(crate) fn lost(&self, sequence: u64) -> Option<(usize, Loss)> {
        let is_counted = |rank: &usize| *rank != self.group.rank() && self.abort_cause(*rank).is_none();
        let mut members = self.peers.iter().filter(|(rank, _)| is_counted(rank));
        let gone = |(rank, peer): (usize, &ControlPeer)| match (self.left_after(rank), &peer.loss) {
            (Some(after), _) if after < sequence => Some((rank, Loss::Left { after })),
            (Some(_), _) | (None, None) => None,
            (None, Some(loss)) => Some((rank, loss.clone())),
        };
        let relayed = self.relayed_goodbyes().filter(|(after, ..)| *after < sequence);
        let left = relayed
            .filter_map(|(after, _, ranks)| Some((ranks.iter().find(is_counted)?, Loss::Left { after })));
        self.dead().or_else(|| members.find_map(gone).into_iter().chain(left).min_by_key(|(rank, _)| *rank))
    }

    /// Returns the first of [`Control::deaths`].
    pub(crate) fn dead(&self) -> Option<(usize, Loss)> {
        self.deaths().next()
    }

    /// Returns the members whose streams ended although they neither left nor aborted, and had not
    /// sent a part of a frame.
    pub(crate) fn deaths(&self) -> impl Iterator<Item = (usize, Loss)> {
        let has_said_why = |rank| self.left_after(rank).is_some() || self.abort_cause(rank).is_some();
        self.peers.iter().filter_map(move |(rank, peer)| match &peer.loss {
            Some(loss) if peer.inbox.is_empty() && !has_said_why(rank) => Some((rank, loss.clone())),
            _ => None,
        })
    }

    /// Returns the cause that this peer reported when it aborted.
    pub(crate) fn abort_cause(&self, peer: usize) -> Option<&Cause> {
        let relayed = || {
            self.relay.iter().flat_map(Relay::entries).find_map(|(frame, ranks)| match frame {
                ControlFrame::Abort { cause, .. } if ranks.contains(peer) => Some(cause),
                _ => None,
            })
        };
        self.peers[peer].gave_up.as_deref().or_else(relayed)
    }

    /// Returns whether this peer's stream has ended or cannot be opened, or it sent a goodbye.
    pub(crate) fn has_ended(&self, peer: usize) -> bool {
        self.is_disconnected(peer) || self.left_after(peer).is_some()
    }

    /// Returns whether this peer's stream has ended or cannot be opened. A peer that only sent a
    /// goodbye may still take part in creating a smaller group, if others did not leave as it
    /// expected.
    pub(crate) fn is_disconnected(&self, peer: usize) -> bool {
        self.peers[peer].loss.is_some() || self.peers[peer].is_unreachable
    }

    /// Returns whether a frame of this peer shows that it made call `sequence`.
    pub(crate) fn has_made(&self, peer: usize, sequence: u64) -> bool {
        self.peers[peer].made >= sequence || self.left_after(peer).is_some_and(|after| after >= sequence)
    }
}

/// Returns the call with this number from the last calls of a rank.
fn call_in(past: &[PastCall], sequence: u64) -> Option<&Signature> {
    past.iter().rfind(|past| past.first <= sequence).map(|past| &past.call)
}

#[cfg(test)]
mod tests {
    use comm_core::{Collective, GroupId};
    use comm_sim::network::{FaultPlan, Network};

    use super::*;
    use crate::control::{Announce, Event};

    /// The smallest group in which a rank does not watch all others.
    const RANKS: usize = 6;

    fn controls() -> (Network, Vec<Control>) {
        let (network, transports) = Network::new(RANKS, 1, &FaultPlan::calm().on_demand(true)).unwrap();
        (network, transports.into_iter().map(|transport| Control::new(Box::new(transport))).collect())
    }

    /// Lets rank 1 pass on a message of these ranks to rank 0. Returns the events on rank 0.
    fn pass_on(
        network: &mut Network,
        controls: &mut [Control],
        ranks: &[usize],
        frame: ControlFrame,
    ) -> Vec<Event> {
        let ranks = ranks.iter().copied().collect();
        controls[1].send(0, &ControlFrame::Relay { ranks, frame: Box::new(frame) });
        poll(network, controls)
    }

    /// Lets rank 0 read all that arrives.
    fn poll(network: &mut Network, controls: &mut [Control]) -> Vec<Event> {
        let mut events = Vec::new();
        while network.advance() {
            controls[0].poll(&mut events);
        }
        events
    }

    #[test]
    fn only_calls_after_the_last_announced_one_are_quiet() {
        let (mut network, mut controls) = controls();
        let quiet = |control: &Control| [0, 6, 7, 8].map(|sequence| control.is_quiet(sequence));
        assert_eq!(quiet(&controls[0]), [true; 4]);
        for (rank, sequence) in [(1, 7), (2, 3)] {
            let call = Signature::new(GroupId::WORLD, Collective::Barrier, "a");
            let announce = Announce { sequence, question: false, call, waiting_for: vec![0], past: vec![] };
            controls[rank].send(0, &ControlFrame::Announce(announce));
        }
        poll(&mut network, &mut controls);
        assert_eq!(quiet(&controls[0]), [false, false, false, true]);
    }

    #[test]
    fn ranks_whose_goodbye_was_passed_on_have_left() {
        let (mut network, mut controls) = controls();
        let call = Signature::new(GroupId::WORLD, Collective::Barrier, "a");
        let past = vec![PastCall { first: 7, call: call.clone() }];
        let goodbye = ControlFrame::Goodbye { sequence: 7, past };
        let events = pass_on(&mut network, &mut controls, &[0, 3, 4], goodbye);
        assert!(matches!(events[..], [Event::Goodbye { from: 3, sequence: 7, .. }]), "{events:?}");
        let control = &controls[0];
        assert_eq!(
            (1..RANKS).map(|rank| control.left_after(rank)).collect::<Vec<_>>(),
            [None, None, Some(7), Some(7), None]
        );
        assert_eq!((control.present(), control.is_quiet(9)), (vec![1, 2, 5], false));
        assert_eq!((control.past_call(4, 7), control.past_call(4, 8)), (Some(&call), None));
        assert!(control.has_made(4, 7) && !control.has_made(4, 8));
        assert!(control.lost(7).is_none());
        assert!(matches!(control.lost(8), Some((3, Loss::Left { after: 7 }))));
        let other = Signature::new(GroupId::WORLD, Collective::Barrier, "b");
        assert_eq!(control.contradiction(7, &call), None);
        assert_eq!(control.contradiction(7, &other), Some((3, &call)));
    }

    #[test]
    fn a_rank_whose_abort_was_passed_on_has_not_died() {
        let (mut network, mut controls) = controls();
        let cause = Cause::Aborted { by: 3, reason: "stop".into() };
        let abort = ControlFrame::Abort { sequence: 1, cause: cause.clone() };
        let events = pass_on(&mut network, &mut controls, &[3, 4], abort);
        assert!(matches!(events[..], [Event::Abort { from: 3, sequence: 1, .. }]), "{events:?}");
        assert_eq!([2, 3, 4].map(|rank| controls[0].abort_cause(rank)), [None, Some(&cause), Some(&cause)]);
        [2, 3].into_iter().for_each(|rank| controls[0].contact(rank));
        // The streams of both end.
        controls.truncate(2);
        poll(&mut network, &mut controls);
        assert_eq!(controls[0].deaths().map(|(rank, _)| rank).collect::<Vec<_>>(), [2]);
    }
}
