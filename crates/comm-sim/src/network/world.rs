//! All links, and the queue of events.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use comm_core::Loss;

use super::link::{Link, Packet, Payload};
use super::{FaultPlan, Incident};
use crate::random::Random;

/// The state that all ranks share. Times count from the start.
#[derive(Debug)]
pub(super) struct World {
    pub(super) plan: FaultPlan,
    origin: Instant,
    now: Duration,
    ranks: usize,
    /// The link from `a` to `b` is at `a * ranks + b`.
    links: Vec<Link>,
    agenda: BinaryHeap<Reverse<(Duration, Event)>>,
    random: Random,
    dead: Vec<bool>,
    /// The number of broken streams that each rank has seen.
    breaks: Vec<u64>,
}

/// A future event. Its order decides between events at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A packet arrives.
    Arrival { from: usize, to: usize },
    /// A sender learns that its bytes were consumed.
    Credit { from: usize, to: usize, position: u64 },
    /// A sender learns that it can send no more, because the receiver closed or the link broke.
    SendEnd { from: usize, to: usize, broken: bool },
    /// A call that moved nothing by chance can be tried again.
    Nudge,
    /// A fault of the plan, by its position.
    Incident(usize),
}

/// The time after which a call that moved nothing by chance can be tried again.
const NUDGE: Duration = Duration::from_micros(1);

impl World {
    pub(super) fn new(ranks: usize, seed: u64, plan: &FaultPlan) -> Self {
        let incidents = plan.incidents.iter().enumerate();
        Self {
            plan: plan.clone(),
            // An arbitrary point: only differences are used.
            origin: Instant::now(),
            now: Duration::ZERO,
            ranks,
            links: (0..ranks * ranks).map(|_| Link::default()).collect(),
            agenda: incidents.map(|(at, &(after, _))| Reverse((after, Event::Incident(at)))).collect(),
            random: Random::new(seed, 0),
            dead: vec![false; ranks],
            breaks: vec![0; ranks],
        }
    }

    pub(super) const fn now(&self) -> Duration {
        self.now
    }

    pub(super) fn instant(&self) -> Instant {
        self.origin + self.now
    }

    pub(super) fn is_dead(&self, rank: usize) -> bool {
        self.dead.get(rank).is_some_and(|&dead| dead)
    }

    pub(super) fn breaks(&self, rank: usize) -> u64 {
        self.breaks[rank]
    }

    pub(super) fn link(&mut self, from: usize, to: usize) -> &mut Link {
        &mut self.links[from * self.ranks + to]
    }

    /// Handles the next event, if there is one by the limit. Otherwise the clock stops at the
    /// limit.
    pub(super) fn advance(&mut self, limit: Option<Duration>) -> bool {
        let next = self.agenda.peek().map(|Reverse((time, _))| *time);
        if let Some(limit) = limit.filter(|limit| next.is_none_or(|next| next > *limit)) {
            self.now = limit;
            return false;
        }
        let Some(Reverse((time, event))) = self.agenda.pop() else { return false };
        self.now = self.now.max(time);
        self.happen(event);
        true
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Arrival { from, to } => {
                let now = self.now;
                if self.link(from, to).deliver(now) {
                    self.breaks[to] += 1;
                }
            }
            Event::Credit { from, to, position } => self.link(from, to).credit(position),
            Event::SendEnd { from, to, broken } => {
                let loss = if broken { reset() } else { Loss::Closed };
                if self.link(from, to).end_sending(loss) {
                    self.breaks[from] += 1;
                }
            }
            Event::Nudge => {}
            Event::Incident(at) => match self.plan.incidents[at].1 {
                Incident::Death { rank } => self.die(rank),
                Incident::Break { between: (a, b) } => self.break_link(a, b),
            },
        }
    }

    fn plan_event(&mut self, after: Duration, event: Event) {
        self.agenda.push(Reverse((self.now + after, event)));
    }

    /// Returns the number of bytes, at most `most`, that move now. If it is zero by chance, time
    /// passes before another attempt.
    pub(super) fn portion(&mut self, most: usize) -> usize {
        if !self.plan.short || most == 0 {
            return most;
        }
        let portion = self.random.short(most);
        if portion == 0 {
            self.plan_event(NUDGE, Event::Nudge);
        }
        portion
    }

    /// Puts bytes on the link.
    pub(super) fn carry(&mut self, from: usize, to: usize, bytes: Vec<u8>) {
        let time = Duration::from_secs_f64(bytes.len() as f64 / self.plan.bytes_per_second.max(1) as f64);
        let stall = match self.plan.stalls {
            Some((often, stall)) if self.random.one_in(often.max(1)) => stall,
            _ => Duration::ZERO,
        };
        let jitter = self.plan.jitter.mul_f64(self.random.below(1000) as f64 / 1000.0);
        let (now, latency) = (self.now, self.plan.latency);
        let departs = self.link(from, to).occupy(now, stall + time);
        self.dispatch(
            from,
            to,
            Packet { departs, arrives: departs + latency + jitter, content: Payload::Bytes(bytes) },
        );
    }

    fn dispatch(&mut self, from: usize, to: usize, packet: Packet) {
        let arrives = self.link(from, to).dispatch(packet);
        self.agenda.push(Reverse((arrives, Event::Arrival { from, to })));
    }

    /// Records that a receiver consumed bytes; the sender learns of it later.
    pub(super) fn consume(&mut self, from: usize, to: usize, bytes: usize) {
        if bytes > 0 {
            let position = self.link(from, to).consume(bytes);
            self.plan_event(self.plan.latency, Event::Credit { from, to, position });
        }
    }

    /// Ends both directions between a rank that leaves or dies and another.
    fn disconnect(&mut self, rank: usize, other: usize, broken: bool) {
        let (latency, now) = (self.plan.latency, self.now);
        self.plan_event(latency, Event::SendEnd { from: other, to: rank, broken });
        let departs = self.link(rank, other).occupy(now, Duration::ZERO);
        let content = Payload::End(if broken { reset() } else { Loss::Closed });
        self.dispatch(rank, other, Packet { departs, arrives: departs + latency, content });
    }

    /// Closes a rank's transport: bytes that it sent are still delivered.
    pub(super) fn leave(&mut self, rank: usize) {
        if !std::mem::replace(&mut self.dead[rank], true) {
            for other in (0..self.ranks).filter(|&other| other != rank) {
                self.disconnect(rank, other, false);
            }
        }
    }

    fn die(&mut self, rank: usize) {
        let now = self.now;
        if rank < self.ranks && !self.dead[rank] {
            for other in 0..self.ranks {
                self.link(rank, other).lose_undeparted(now);
            }
            self.leave(rank);
        }
    }

    fn break_link(&mut self, a: usize, b: usize) {
        if a >= self.ranks || b >= self.ranks || a == b {
            return;
        }
        let now = self.now;
        for (from, to) in [(a, b), (b, a)] {
            self.link(from, to).lose_all(now);
            self.disconnect(from, to, true);
        }
    }

    /// Revokes the bytes of a rank that are not released.
    pub(super) fn revoke(&mut self, rank: usize) {
        let release = self.plan.release;
        for other in (0..self.ranks).filter(|&other| other != rank) {
            if self.link(rank, other).revoke(release) {
                self.breaks[rank] += 1;
                self.breaks[other] += 1;
            }
        }
    }
}

fn reset() -> Loss {
    Loss::Io(Arc::new(io::Error::from(io::ErrorKind::ConnectionReset)))
}
