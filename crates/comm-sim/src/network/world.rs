//! The state of all links, and the queue of events.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use comm_core::{ChannelKind, Loss, Result};

use super::channel::ChannelLinks;
use super::fabric::Opening;
use super::faults::{Cut, reset, tampered};
use super::link::{Link, Packet, Payload};
use super::simulation::Log;
use super::sockets::Sockets;
use super::store::StoreState;
use super::thread_table::ThreadTable;
use super::turns::{Operations, Turns};
use super::{Defect, FaultPlan};
use crate::endpoint::Endpoint;
use crate::random::Random;

/// The state that all ranks share. Times count from the start.
#[derive(Debug)]
pub(super) struct World {
    pub(super) plan: FaultPlan,
    origin: Instant,
    now: Duration,
    /// All channels, by number.
    pub(super) channels: Vec<ChannelLinks>,
    /// The directions of links that deliver nothing.
    pub(super) cuts: Vec<Cut>,
    /// The bytes to change or to duplicate.
    pub(super) tampering: Vec<Tampering>,
    pub(super) log: Log,
    pub(super) store: StoreState,
    pub(super) sockets: Sockets,
    /// The channels that wait for members.
    pub(super) openings: Vec<Opening>,
    agenda: BinaryHeap<Reverse<(Duration, Event)>>,
    random: Random,
    /// The random numbers of processes.
    pub(super) system_random: Random,
    pub(super) ranks: Vec<RankState>,
    /// Whether a rank has died, or opens no more channels of some rendezvous.
    pub(super) has_lost_ranks: bool,
    /// The ranks that were stopped; some of them may have continued.
    pub(super) stopped: Vec<usize>,
    /// The number of operations of all ranks on their transports and on the store.
    pub(super) operations: u64,
    pub(super) threads: ThreadTable,
    /// The descriptor of all transports of a run, which is never readable.
    event: Option<Arc<OwnedFd>>,
    /// The turns of threads, only in a [`run`](super::run).
    pub(super) turns: Option<Turns>,
}

/// The state of a rank in the network.
#[derive(Debug, Default)]
pub(super) struct RankState {
    pub(super) dead: bool,
    /// The time from which the others can know of its death.
    pub(super) lost_at: Duration,
    /// The time until which it is stopped.
    pub(super) stopped_until: Duration,
    /// The average time of an operation.
    pub(super) per_operation: Duration,
    /// The time by which its clock is ahead.
    pub(super) clock_ahead: Duration,
    /// The time for which it was stopped or slow, and by which its clock jumped.
    pub(super) delayed: Duration,
    /// The rendezvous whose fabric was dropped, so that it opens no more channels.
    pub(super) gone_from: Vec<u64>,
    pub(super) operations: Operations,
    /// The number of its transports that were not dropped.
    pub(super) open_transports: usize,
}

/// A change of the next bytes from one rank to another.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tampering {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) duplicates: bool,
}

/// A future event. Events at the same time are handled in the order of this type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
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
    /// A stopped rank may continue.
    Resume { rank: usize },
    /// A link delivers again.
    Heal,
    /// Two ranks find that they cannot reach each other.
    Unreachable { a: usize, b: usize },
    /// The store finds that it cannot reach a rank.
    LostClient { rank: usize },
    /// A segment of a side of a connection arrives.
    Segment { socket: usize },
}

/// The number of operations of all ranks from which a run is made to end soon.
const LONG: u64 = 200_000;

/// The time after which a call that moved nothing by chance can be retried.
const NUDGE: Duration = Duration::from_micros(1);

/// The average number of sends until a byte is flipped, for the defect.
const FLIPPED: usize = 200;
/// The average number of notifications until one is lost, for the defect.
const LOST: usize = 50;

impl Event {
    const fn digest(self) -> [usize; 4] {
        match self {
            Self::Arrival { channel, from, to } => [1, channel, from, to],
            Self::Credit { channel, from, to, .. } => [2, channel, from, to],
            Self::SendEnd { channel, from, to, .. } => [3, channel, from, to],
            Self::Nudge { channel, member } => [4, channel, member, 0],
            Self::Incident(at) => [5, at, 0, 0],
            Self::Resume { rank } => [6, rank, 0, 0],
            Self::Heal => [7, 0, 0, 0],
            Self::Unreachable { a, b } => [8, a, b, 0],
            Self::LostClient { rank } => [9, rank, 0, 0],
            Self::Segment { socket } => [10, socket, 0, 0],
        }
    }
}

impl World {
    pub(super) fn new(ranks: usize, seed: u64, plan: &FaultPlan) -> Self {
        let incidents = plan.incidents.iter().enumerate();
        Self {
            plan: plan.clone(),
            // An arbitrary time: only differences are used.
            origin: Instant::now(),
            now: Duration::ZERO,
            channels: Vec::new(),
            cuts: Vec::new(),
            tampering: Vec::new(),
            log: Log::default(),
            store: StoreState::default(),
            sockets: Sockets::default(),
            openings: Vec::new(),
            agenda: incidents.map(|(at, &(after, _))| Reverse((after, Event::Incident(at)))).collect(),
            random: Random::new(seed, 0),
            system_random: Random::new(seed, 3),
            ranks: (0..ranks).map(|_| RankState::default()).collect(),
            has_lost_ranks: false,
            stopped: Vec::new(),
            operations: 0,
            threads: ThreadTable::new(ranks),
            event: None,
            turns: None,
        }
    }

    /// Creates the end of a rank of a channel.
    pub(super) fn endpoint(&mut self) -> Result<Endpoint> {
        if self.turns.is_none() {
            return Endpoint::new();
        }
        // Nothing waits for the descriptors of a run, which sleeps in virtual time.
        let event = match &self.event {
            Some(event) => Arc::clone(event),
            None => Arc::clone(self.event.insert(Endpoint::new_event()?)),
        };
        Ok(Endpoint::sharing(event))
    }

    pub(super) const fn now(&self) -> Duration {
        self.now
    }

    pub(super) fn instant(&self) -> Instant {
        self.origin + self.now
    }

    /// Returns the time on the clock of a rank.
    pub(super) fn instant_of(&self, rank: usize) -> Instant {
        let ahead = self.ranks.get(rank).map_or(Duration::ZERO, |rank| rank.clock_ahead);
        self.instant() + ahead
    }

    /// Adds a channel between these ranks of the network. Returns its number.
    pub(super) fn add_channel(&mut self, members: Arc<[usize]>, kind: ChannelKind) -> usize {
        self.channels.push(ChannelLinks::new(members, kind, self.plan.on_demand));
        self.channels.len() - 1
    }

    /// Connects two members of a channel, unless they are.
    pub(super) fn connect(&mut self, channel: usize, a: usize, b: usize) {
        if !self.channels[channel].open(a, b) {
            return;
        }
        self.record_change(channel, b);
        if !self.channels[channel].tells_all() {
            [(a, b), (b, a)].into_iter().for_each(|(from, to)| self.end_if_closed(channel, from, to));
        }
    }

    pub(super) fn is_dead(&self, rank: usize) -> bool {
        self.ranks.get(rank).is_some_and(|rank| rank.dead)
    }

    pub(super) fn link(&mut self, channel: usize, from: usize, to: usize) -> &mut Link {
        self.channels[channel].link(from, to)
    }

    /// Wakes a member that sleeps on the channel, or prevents it from going to sleep.
    pub(super) fn notify(&mut self, channel: usize, member: usize) {
        let rank = self.channels[channel].members[member];
        self.threads.notify(rank, channel);
    }

    /// Wakes the threads of a rank that sleep until a descriptor is ready.
    pub(super) fn wake_system(&mut self, rank: usize) {
        self.threads.wake_system(rank);
    }

    pub(super) fn record_change(&mut self, channel: usize, member: usize) {
        self.channels[channel].changes[member] += 1;
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
        self.log.mix(self.now, event.digest());
        match event {
            Event::Arrival { channel, from, to } => {
                let (now, is_closed) = (self.now, self.channels[channel].closed[to]);
                let link = self.link(channel, from, to);
                let has_ended = link.deliver(now);
                if is_closed {
                    link.discard_arrived();
                }
                if has_ended {
                    self.record_change(channel, to);
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
                    self.record_change(channel, from);
                }
            }
            Event::Nudge { channel, member } => self.notify(channel, member),
            Event::Incident(at) => self.inject(self.plan.incidents[at].1),
            Event::Resume { .. } => {}
            Event::Heal => self.threads.wake_all(),
            Event::Unreachable { a, b } => self.lose_contact(a, b),
            Event::LostClient { rank } => self.reset_store_connections(rank),
            Event::Segment { socket } => self.deliver_segment(socket),
        }
    }

    pub(super) fn plan_event(&mut self, after: Duration, event: Event) {
        self.agenda.push(Reverse((self.now + after, event)));
    }

    /// Returns whether the run has made too many operations to end soon with short pieces and slow
    /// ranks.
    pub(super) const fn is_long(&self) -> bool {
        self.operations > LONG
    }

    /// Returns true once in `n` times on average.
    pub(super) fn one_in(&mut self, n: usize) -> bool {
        self.random.one_in(n)
    }

    /// Returns the number of bytes to move now, at most `most`. If it is zero by chance, some time
    /// must pass before another attempt.
    pub(super) fn portion(&mut self, channel: usize, member: usize, most: usize) -> usize {
        if !self.plan.short || most == 0 || self.is_long() {
            return most;
        }
        let portion = self.random.short(most);
        if portion == 0 {
            self.plan_event(NUDGE, Event::Nudge { channel, member });
        }
        portion
    }

    /// Returns the time that a link takes to send bytes, which includes a stall by chance.
    pub(super) fn delay_of(&mut self, bytes: usize) -> Duration {
        let time = Duration::from_secs_f64(bytes as f64 / self.plan.bytes_per_second.max(1) as f64);
        match self.plan.stalls {
            Some((often, stall)) if self.random.one_in(often.max(1)) => stall + time,
            _ => time,
        }
    }

    /// Returns a random delay.
    pub(super) fn jitter(&mut self) -> Duration {
        self.plan.jitter.mul_f64(self.random.below(1000) as f64 / 1000.0)
    }

    /// Returns the length of a piece of bytes that may arrive in pieces.
    pub(super) fn piece(&mut self, bytes: usize) -> usize {
        if self.plan.short && !self.is_long() { self.random.short(bytes).max(1) } else { bytes }
    }

    /// Puts bytes on the link.
    pub(super) fn carry(&mut self, channel: usize, from: usize, to: usize, mut bytes: Vec<u8>) {
        self.log.mix(self.now, [channel, from, to, bytes.len()]);
        let (time, jitter) = (self.delay_of(bytes.len()), self.jitter());
        let (now, latency) = (self.now, self.plan.latency);
        let departs = self.link(channel, from, to).occupy(now, time);
        let arrives = departs + latency + jitter;
        if self.plan.defect == Some(Defect::FlippedByte) && self.random.one_in(FLIPPED) {
            self.flip(&mut bytes);
        }
        let content = self.tamper(channel, (from, to), bytes);
        self.dispatch(channel, from, to, Packet { departs, arrives, content });
    }

    /// Changes or duplicates the bytes if they are the next ones after such a fault.
    fn tamper(&mut self, channel: usize, (from, to): (usize, usize), mut bytes: Vec<u8>) -> Payload {
        let members = &self.channels[channel].members;
        let Some(duplicates) = self.take_tampering(members[from], members[to]) else {
            return Payload::Bytes(bytes);
        };
        if self.plan.checksums {
            return Payload::End(tampered());
        }
        if duplicates {
            bytes.extend_from_within(..);
        } else {
            self.flip(&mut bytes);
        }
        Payload::Bytes(bytes)
    }

    /// Returns whether the next bytes from one rank to another are duplicated, if they are to be
    /// changed or duplicated.
    pub(super) fn take_tampering(&mut self, from: usize, to: usize) -> Option<bool> {
        let at = self.tampering.iter().position(|next| (next.from, next.to) == (from, to))?;
        Some(self.tampering.remove(at).duplicates)
    }

    pub(super) fn flip(&mut self, bytes: &mut [u8]) {
        let at = self.random.below(bytes.len());
        if let Some(byte) = bytes.get_mut(at) {
            *byte ^= 1 << self.random.below(8);
        }
    }

    pub(super) fn dispatch(&mut self, channel: usize, from: usize, to: usize, packet: Packet) {
        let arrives = self.link(channel, from, to).dispatch(packet);
        self.agenda.push(Reverse((arrives, Event::Arrival { channel, from, to })));
    }

    /// Records that a receiver consumed bytes; the sender is notified later.
    pub(super) fn consume(&mut self, channel: usize, from: usize, to: usize, bytes: usize) {
        if bytes > 0 {
            let position = self.link(channel, from, to).consume(bytes);
            if self.plan.defect == Some(Defect::LostCredit) && self.random.one_in(LOST) {
                return;
            }
            let back = self.time_back(channel, from, to);
            self.plan_event(back, Event::Credit { channel, from, to, position });
        }
    }
}
