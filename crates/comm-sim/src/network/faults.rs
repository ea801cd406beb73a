//! The effects of faults, and of ranks that leave.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use comm_core::{Group, Loss};

use super::channel::ChannelLinks;
use super::link::{Packet, Payload};
use super::world::{Event, Tampering, World};
use super::{Defect, Incident};

/// The end of a cut that lasts forever: after the longest run.
pub(super) const FOREVER: Duration = Duration::from_secs(1 << 32);

/// A direction of a link that delivers nothing until a certain time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cut {
    from: usize,
    to: usize,
    until: Duration,
}

impl World {
    /// Lets a fault happen now.
    pub(super) fn inject(&mut self, incident: Incident) {
        if incident.ranks().iter().any(|&rank| rank >= self.ranks.len()) {
            return;
        }
        self.log.add(self.now(), None, incident.to_string());
        self.log.happened.push((self.now(), incident));
        match incident {
            Incident::Death { rank } => self.die(rank),
            Incident::Vanish { rank } => self.vanish(rank),
            Incident::Break { between: (a, b) } => self.break_link(a, b),
            Incident::Cut { from, to, lasting } => self.cut(from, to, lasting),
            Incident::Stop { rank, lasting } => self.stop(rank, lasting),
            Incident::Slow { rank, per_operation } => self.ranks[rank].per_operation = per_operation,
            Incident::ClockJump { rank, by } => {
                let state = &mut self.ranks[rank];
                (state.clock_ahead, state.delayed) = (state.clock_ahead + by, state.delayed + by);
                self.threads.wake_rank(rank);
            }
            Incident::Corruption { from, to } => {
                self.tampering.push(Tampering { from, to, duplicates: false });
            }
            Incident::Duplication { from, to } => {
                self.tampering.push(Tampering { from, to, duplicates: true });
            }
            Incident::StoreReset { rank } => self.reset_store_connections(rank),
            Incident::StoreStall { lasting } => self.stall_store(lasting),
            Incident::StoreEnd => self.end_store(),
        }
    }

    /// Returns the time until a notification of the receiver reaches the sender.
    pub(super) fn time_back(&mut self, channel: usize, from: usize, to: usize) -> Duration {
        let cut_until = self.link(channel, to, from).cut_until();
        cut_until.saturating_sub(self.now()) + self.plan.latency
    }

    /// Ends both directions between another member and one that leaves or dies.
    fn disconnect(&mut self, channel: usize, member: usize, other: usize, broken: bool) {
        if self.plan.defect == Some(Defect::NoEnd) {
            return;
        }
        let (latency, now) = (self.plan.latency, self.now());
        let back = self.time_back(channel, other, member);
        self.plan_event(back, Event::SendEnd { channel, from: other, to: member, broken });
        let departs = self.link(channel, member, other).occupy(now, Duration::ZERO);
        let content = Payload::End(if broken { reset() } else { Loss::Closed });
        self.dispatch(channel, member, other, Packet { departs, arrives: departs + latency, content });
    }

    /// Ends the streams between a member and one that has just connected to it, if it had left, as
    /// the system of its host does.
    pub(super) fn end_if_closed(&mut self, channel: usize, member: usize, other: usize) {
        let links = &self.channels[channel];
        let state = &self.ranks[links.members[member]];
        let is_known = !state.dead || state.lost_at <= self.now();
        if links.closed[member] && is_known {
            self.link(channel, member, other).break_off(&Loss::Closed);
            self.link(channel, other, member).break_off(&Loss::Closed);
            self.record_change(channel, other);
        }
    }

    /// Closes a member's transport: bytes that it sent are still delivered.
    pub(super) fn leave(&mut self, channel: usize, member: usize) {
        if !std::mem::replace(&mut self.channels[channel].closed[member], true) {
            for other in self.channels[channel].told(member) {
                if self.plan.defect == Some(Defect::EarlyEnd) {
                    let now = self.now();
                    self.link(channel, member, other).lose_all(now);
                }
                self.disconnect(channel, member, other, false);
                self.link(channel, other, member).discard_arrived();
            }
        }
    }

    /// Marks a rank as dead, and returns its channels, with its number in each of them. Returns
    /// `None` if it was dead.
    fn kill(&mut self, rank: usize, lost_at: Duration) -> Option<Vec<(usize, usize)>> {
        let state = self.ranks.get_mut(rank).filter(|state| !state.dead)?;
        (state.dead, state.lost_at) = (true, lost_at);
        self.has_lost_ranks = true;
        self.leave_store(rank, lost_at.saturating_sub(self.now()));
        self.kill_sockets(rank, lost_at > self.now());
        let member = |channel: usize| self.channels[channel].position(rank);
        let channels = 0..self.channels.len();
        let memberships: Vec<_> = channels.filter_map(|channel| Some((channel, member(channel)?))).collect();
        for &(channel, member) in &memberships {
            self.channels[channel].closed[member] = true;
        }
        Some(memberships)
    }

    pub(super) fn die(&mut self, rank: usize) {
        let now = self.now();
        for (channel, member) in self.kill(rank, now).unwrap_or_default() {
            for other in self.channels[channel].told(member) {
                self.link(channel, member, other).lose_undeparted(now);
                // Also if it left earlier: the end of its stream may be among the lost packets.
                self.disconnect(channel, member, other, false);
            }
        }
        self.threads.wake_all();
    }

    /// Ends a rank without ending its streams.
    fn vanish(&mut self, rank: usize) {
        let (now, keepalive) = (self.now(), self.plan.keepalive);
        for (channel, member) in self.kill(rank, now + keepalive).unwrap_or_default() {
            for other in self.channels[channel].receivers(member) {
                self.link(channel, member, other).lose_undeparted(now);
            }
        }
        for other in (0..self.ranks.len()).filter(|&other| other != rank) {
            self.cut(rank, other, FOREVER);
            self.cut(other, rank, FOREVER);
        }
        self.threads.wake_all();
    }

    /// Starts a rank again that has died. Returns false if it lives or its host has no power.
    pub(super) fn restart(&mut self, rank: usize) -> bool {
        let has_power = !self.log.happened.iter().any(|(_, incident)| *incident == Incident::Vanish { rank });
        let state = &mut self.ranks[rank];
        let restarts = state.dead && has_power;
        state.dead &= !restarts;
        restarts
    }

    fn break_link(&mut self, a: usize, b: usize) {
        let now = self.now();
        for (channel, (a, b)) in self.channels_between(a, b) {
            for (from, to) in [(a, b), (b, a)] {
                self.link(channel, from, to).lose_all(now);
                self.disconnect(channel, from, to, true);
            }
        }
        self.break_sockets(a, b, ErrorKind::ConnectionReset);
    }

    /// Returns the channels that both ranks are members of, with their numbers in each.
    fn channels_between(&self, a: usize, b: usize) -> Vec<(usize, (usize, usize))> {
        let both = |(channel, links): (usize, &ChannelLinks)| {
            Some((channel, (links.position(a)?, links.position(b)?)))
        };
        let channels = self.channels.iter().enumerate();
        if a == b { Vec::new() } else { channels.filter_map(both).collect() }
    }

    fn cut(&mut self, from: usize, to: usize, lasting: Duration) {
        let (now, latency, keepalive) = (self.now(), self.plan.latency, self.plan.keepalive);
        let until = now + lasting;
        self.cuts.push(Cut { from, to, until });
        for (channel, (from, to)) in self.channels_between(from, to) {
            if self.link(channel, from, to).cut(until, latency) && lasting < FOREVER {
                self.plan_event(lasting + latency, Event::Arrival { channel, from, to });
            }
        }
        if lasting > keepalive {
            self.plan_event(keepalive, Event::Unreachable { a: from, b: to });
        }
        if lasting < FOREVER {
            self.plan_event(lasting, Event::Heal);
        }
    }

    /// Returns whether a link between these ranks delivers nothing at present.
    pub(super) fn is_cut(&self, a: usize, b: usize) -> bool {
        let now = self.now();
        let is_between = |cut: &Cut| [(a, b), (b, a)].contains(&(cut.from, cut.to));
        self.cuts.iter().any(|cut| cut.until > now && is_between(cut))
    }

    /// Returns the time until which the link from one rank to another delivers nothing, if it does
    /// not at present.
    pub(super) fn cut_until(&self, from: usize, to: usize) -> Option<Duration> {
        let now = self.now();
        let cuts = self.cuts.iter().filter(|cut| (cut.from, cut.to) == (from, to) && cut.until > now);
        cuts.map(|cut| cut.until).max()
    }

    /// Breaks all streams between two ranks that cannot reach each other.
    pub(super) fn lose_contact(&mut self, a: usize, b: usize) {
        let loss = Loss::HostUnreachable { after: self.plan.keepalive };
        for (channel, (a, b)) in self.channels_between(a, b) {
            for (from, to) in [(a, b), (b, a)] {
                self.link(channel, from, to).break_off(&loss);
                self.record_change(channel, to);
            }
        }
        self.break_sockets(a, b, ErrorKind::TimedOut);
        self.threads.wake_all();
    }

    /// Stops all threads of a rank.
    pub(super) fn stop(&mut self, rank: usize, lasting: Duration) {
        let until = self.now() + lasting;
        if !self.stopped.contains(&rank) {
            self.stopped.push(rank);
        }
        let state = &mut self.ranks[rank];
        state.stopped_until = state.stopped_until.max(until);
        state.delayed += lasting;
        self.plan_event(lasting, Event::Resume { rank });
    }

    pub(super) fn is_stopped(&self, rank: usize) -> bool {
        let state = &self.ranks[rank];
        !state.dead && state.stopped_until > self.now()
    }

    /// Returns whether the others can know that a rank has died.
    pub(super) fn is_known_dead(&self, rank: usize) -> bool {
        let now = self.now();
        self.ranks.get(rank).is_some_and(|state| state.dead && state.lost_at <= now)
    }

    /// Returns the rank to name when a member is lost.
    pub(super) fn reported(&self, member: usize, group: Group) -> usize {
        let next = (member + 1) % group.size();
        if self.plan.defect == Some(Defect::WrongRank) && next != group.rank() { next } else { member }
    }

    /// Revokes the bytes of a member that are not released.
    pub(super) fn revoke(&mut self, channel: usize, member: usize) {
        let release = self.plan.release;
        for other in self.channels[channel].receivers(member) {
            if self.link(channel, member, other).revoke(release) {
                self.record_change(channel, member);
                self.record_change(channel, other);
            }
        }
    }
}

pub(super) fn reset() -> Loss {
    Loss::Io(Arc::new(io::Error::from(ErrorKind::ConnectionReset)))
}

/// The loss of a stream whose bytes were changed on the way.
pub(super) fn tampered() -> Loss {
    let reason = "the bytes of a frame do not match its checksum";
    Loss::Io(Arc::new(io::Error::new(ErrorKind::InvalidData, reason)))
}
