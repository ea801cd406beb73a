//! The state of all links, and the queue of events.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use comm_core::Loss;

use super::fabric::Opening;
use super::link::{Link, Packet, Payload};
use super::turns::{Operations, Thread, Turns};
use super::{FaultPlan, Incident};
use crate::random::Random;

/// The state that all ranks share. Times count from the start.
#[derive(Debug)]
pub(super) struct World {
    pub(super) plan: FaultPlan,
    origin: Instant,
    now: Duration,
    /// All channels, by number.
    channels: Vec<ChannelLinks>,
    /// The channels that wait for members.
    pub(super) openings: Vec<Opening>,
    agenda: BinaryHeap<Reverse<(Duration, Event)>>,
    random: Random,
    pub(super) ranks: Vec<RankState>,
    /// The threads. The first ones are one per rank, with the number of the rank.
    pub(super) threads: Vec<Thread>,
    /// The turns of threads, only in a [`run`](super::run).
    pub(super) turns: Option<Turns>,
}

/// The links between the members of a channel.
#[derive(Debug)]
struct ChannelLinks {
    /// The ranks of the members in the network, in the order of their ranks in the channel.
    members: Vec<usize>,
    /// The link from `a` to `b` is at `a * size + b`.
    links: Vec<Link>,
    /// The members that have closed it.
    closed: Vec<bool>,
    /// The number of broken streams that each member has seen.
    breaks: Vec<u64>,
}

/// The state of a rank in the network.
#[derive(Debug, Default)]
pub(super) struct RankState {
    dead: bool,
    /// Whether its fabric was dropped, so that it opens no more channels.
    pub(super) gone: bool,
    pub(super) operations: Operations,
}

/// A future event. Events at the same time are handled in the order of this type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A packet arrives.
    Arrival { channel: usize, from: usize, to: usize },
    /// A sender is notified that its bytes were consumed.
    Credit { channel: usize, from: usize, to: usize, position: u64 },
    /// A sender is notified that it can send no more, because the receiver closed its end or the
    /// link broke.
    SendEnd { channel: usize, from: usize, to: usize, broken: bool },
    /// A call of a member that moved nothing by chance can be retried.
    Nudge { channel: usize, member: usize },
    /// A fault of the plan, given by its index.
    Incident(usize),
}

/// The time after which a call that moved nothing by chance can be retried.
const NUDGE: Duration = Duration::from_micros(1);

impl World {
    pub(super) fn new(ranks: usize, seed: u64, plan: &FaultPlan) -> Self {
        let incidents = plan.incidents.iter().enumerate();
        Self {
            plan: plan.clone(),
            // An arbitrary time: only differences are used.
            origin: Instant::now(),
            now: Duration::ZERO,
            channels: Vec::new(),
            openings: Vec::new(),
            agenda: incidents.map(|(at, &(after, _))| Reverse((after, Event::Incident(at)))).collect(),
            random: Random::new(seed, 0),
            ranks: (0..ranks).map(|_| RankState::default()).collect(),
            threads: (0..ranks).map(Thread::new).collect(),
            turns: None,
        }
    }

    pub(super) const fn now(&self) -> Duration {
        self.now
    }

    pub(super) fn instant(&self) -> Instant {
        self.origin + self.now
    }

    /// Adds a channel between these ranks of the network. Returns its number.
    pub(super) fn add_channel(&mut self, members: Vec<usize>) -> usize {
        let size = members.len();
        let links = (0..size * size).map(|_| Link::default()).collect();
        self.channels.push(ChannelLinks { members, links, closed: vec![false; size], breaks: vec![0; size] });
        self.channels.len() - 1
    }

    pub(super) fn is_dead(&self, rank: usize) -> bool {
        self.ranks.get(rank).is_some_and(|rank| rank.dead)
    }

    pub(super) fn breaks(&self, channel: usize, member: usize) -> u64 {
        self.channels[channel].breaks[member]
    }

    pub(super) fn link(&mut self, channel: usize, from: usize, to: usize) -> &mut Link {
        let ChannelLinks { members, links, .. } = &mut self.channels[channel];
        &mut links[from * members.len() + to]
    }

    /// Wakes a member that sleeps on the channel, or prevents it from going to sleep.
    fn notify(&mut self, channel: usize, member: usize) {
        let rank = self.channels[channel].members[member];
        self.threads_of(rank).for_each(|thread| thread.sleep.notify(channel));
    }

    fn record_break(&mut self, channel: usize, member: usize) {
        self.channels[channel].breaks[member] += 1;
        self.notify(channel, member);
    }

    /// Returns the time of the next event.
    pub(super) fn next_event(&self) -> Option<Duration> {
        self.agenda.peek().map(|Reverse((time, _))| *time)
    }

    /// Moves the clock forward. There must be no event before this time.
    pub(super) fn set_time(&mut self, time: Duration) {
        self.now = self.now.max(time);
    }

    /// Handles the next event if it is not after the limit; otherwise moves the clock to the limit.
    /// Returns whether there was an event.
    pub(super) fn advance(&mut self, limit: Option<Duration>) -> bool {
        let next = self.next_event();
        if let Some(limit) = limit.filter(|limit| next.is_none_or(|next| next > *limit)) {
            self.now = limit;
            return false;
        }
        let Some(Reverse((time, event))) = self.agenda.pop() else { return false };
        self.now = self.now.max(time);
        self.apply_event(event);
        true
    }

    fn apply_event(&mut self, event: Event) {
        match event {
            Event::Arrival { channel, from, to } => {
                let now = self.now;
                if self.link(channel, from, to).deliver(now) {
                    self.record_break(channel, to);
                }
                self.notify(channel, to);
            }
            Event::Credit { channel, from, to, position } => {
                self.link(channel, from, to).credit(position);
                self.notify(channel, from);
            }
            Event::SendEnd { channel, from, to, broken } => {
                let loss = if broken { reset() } else { Loss::Closed };
                if self.link(channel, from, to).end_sending(loss) {
                    self.record_break(channel, from);
                }
            }
            Event::Nudge { channel, member } => self.notify(channel, member),
            Event::Incident(at) => match self.plan.incidents[at].1 {
                Incident::Death { rank } => self.die(rank),
                Incident::Break { between: (a, b) } => self.break_link(a, b),
            },
        }
    }

    fn plan_event(&mut self, after: Duration, event: Event) {
        self.agenda.push(Reverse((self.now + after, event)));
    }

    /// Returns the number of bytes to move now, at most `most`. If it is zero by chance, some time
    /// must pass before another attempt.
    pub(super) fn portion(&mut self, channel: usize, member: usize, most: usize) -> usize {
        if !self.plan.short || most == 0 {
            return most;
        }
        let portion = self.random.short(most);
        if portion == 0 {
            self.plan_event(NUDGE, Event::Nudge { channel, member });
        }
        portion
    }

    /// Puts bytes on the link.
    pub(super) fn carry(&mut self, channel: usize, from: usize, to: usize, bytes: Vec<u8>) {
        let time = Duration::from_secs_f64(bytes.len() as f64 / self.plan.bytes_per_second.max(1) as f64);
        let stall = match self.plan.stalls {
            Some((often, stall)) if self.random.one_in(often.max(1)) => stall,
            _ => Duration::ZERO,
        };
        let jitter = self.plan.jitter.mul_f64(self.random.below(1000) as f64 / 1000.0);
        let (now, latency) = (self.now, self.plan.latency);
        let departs = self.link(channel, from, to).occupy(now, stall + time);
        self.dispatch(
            channel,
            from,
            to,
            Packet { departs, arrives: departs + latency + jitter, content: Payload::Bytes(bytes) },
        );
    }

    fn dispatch(&mut self, channel: usize, from: usize, to: usize, packet: Packet) {
        let arrives = self.link(channel, from, to).dispatch(packet);
        self.agenda.push(Reverse((arrives, Event::Arrival { channel, from, to })));
    }

    /// Records that a receiver consumed bytes, of which the sender is notified later.
    pub(super) fn consume(&mut self, channel: usize, from: usize, to: usize, bytes: usize) {
        if bytes > 0 {
            let position = self.link(channel, from, to).consume(bytes);
            self.plan_event(self.plan.latency, Event::Credit { channel, from, to, position });
        }
    }

    /// Ends both directions between another member and one that leaves or dies.
    fn disconnect(&mut self, channel: usize, member: usize, other: usize, broken: bool) {
        let (latency, now) = (self.plan.latency, self.now);
        self.plan_event(latency, Event::SendEnd { channel, from: other, to: member, broken });
        let departs = self.link(channel, member, other).occupy(now, Duration::ZERO);
        let content = Payload::End(if broken { reset() } else { Loss::Closed });
        self.dispatch(channel, member, other, Packet { departs, arrives: departs + latency, content });
    }

    /// Closes a member's transport: bytes that it sent are still delivered.
    pub(super) fn leave(&mut self, channel: usize, member: usize) {
        if !std::mem::replace(&mut self.channels[channel].closed[member], true) {
            for other in (0..self.channels[channel].members.len()).filter(|&other| other != member) {
                self.disconnect(channel, member, other, false);
            }
        }
    }

    pub(super) fn die(&mut self, rank: usize) {
        if rank >= self.ranks.len() || std::mem::replace(&mut self.ranks[rank].dead, true) {
            return;
        }
        let now = self.now;
        for channel in 0..self.channels.len() {
            let members = &self.channels[channel].members;
            let size = members.len();
            if let Some(member) = members.iter().position(|&member| member == rank) {
                self.channels[channel].closed[member] = true;
                for other in (0..size).filter(|&other| other != member) {
                    self.link(channel, member, other).lose_undeparted(now);
                    // Also if it left earlier: the end of its stream may be among the lost packets.
                    self.disconnect(channel, member, other, false);
                }
            }
        }
        self.wake_all();
    }

    /// Wakes all threads, including those that wait for a channel to open.
    pub(super) fn wake_all(&mut self) {
        self.threads.iter_mut().for_each(|thread| thread.sleep.wake());
    }

    pub(super) fn threads_of(&mut self, rank: usize) -> impl Iterator<Item = &mut Thread> {
        self.threads.iter_mut().filter(move |thread| thread.rank == rank)
    }

    fn break_link(&mut self, a: usize, b: usize) {
        let now = self.now;
        for channel in 0..self.channels.len() {
            let position = |rank| self.channels[channel].members.iter().position(|&member| member == rank);
            let (Some(a), Some(b)) = (position(a), position(b)) else { continue };
            if a != b {
                for (from, to) in [(a, b), (b, a)] {
                    self.link(channel, from, to).lose_all(now);
                    self.disconnect(channel, from, to, true);
                }
            }
        }
    }

    /// Revokes the bytes of a member that are not released.
    pub(super) fn revoke(&mut self, channel: usize, member: usize) {
        let release = self.plan.release;
        for other in (0..self.channels[channel].members.len()).filter(|&other| other != member) {
            if self.link(channel, member, other).revoke(release) {
                self.record_break(channel, member);
                self.record_break(channel, other);
            }
        }
    }
}

fn reset() -> Loss {
    Loss::Io(Arc::new(io::Error::from(io::ErrorKind::ConnectionReset)))
}
