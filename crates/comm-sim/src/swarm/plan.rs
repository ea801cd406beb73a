//! The plan of a run: everything that is drawn from its seed.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::Release;
use crate::network::{Defect, FaultPlan, Incident};
use crate::random::Random;

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum FaultKind {
    /// See [`Incident::Death`].
    Death,
    /// See [`Incident::Vanish`].
    Vanish,
    /// A connection reset; see [`Incident::Break`].
    Reset,
    /// See [`Incident::Cut`], in one direction: a half-open connection.
    HalfOpen,
    /// See [`Incident::Cut`], in both directions between two sets of ranks.
    Partition,
    /// See [`Incident::Stop`].
    Stop,
    /// See [`Incident::Slow`].
    Slow,
    /// See [`Incident::ClockJump`].
    ClockJump,
    /// See [`Incident::Corruption`].
    Corruption,
    /// See [`Incident::Duplication`].
    Duplication,
    /// See [`Incident::StoreReset`].
    StoreReset,
    /// See [`Incident::StoreStall`].
    StoreStall,
    /// See [`Incident::StoreEnd`].
    StoreEnd,
}

impl FaultKind {
    /// All kinds that concern transports.
    pub const ALL: [Self; 10] = [
        Self::Death,
        Self::Vanish,
        Self::Reset,
        Self::HalfOpen,
        Self::Partition,
        Self::Stop,
        Self::Slow,
        Self::ClockJump,
        Self::Corruption,
        Self::Duplication,
    ];

    /// All kinds that concern a rendezvous.
    pub const OF_RENDEZVOUS: [Self; 6] =
        [Self::Death, Self::Vanish, Self::Stop, Self::StoreReset, Self::StoreStall, Self::StoreEnd];

    /// All kinds that concern a group that processes join.
    pub const OF_ELASTIC_GROUP: [Self; 9] = [
        Self::Death,
        Self::Vanish,
        Self::Reset,
        Self::Partition,
        Self::Stop,
        Self::Slow,
        Self::StoreReset,
        Self::StoreStall,
        Self::StoreEnd,
    ];
}

/// The most bytes on a link that the frames of a failed group may fill.
const CAPACITY_OF_NOTICES: usize = 4096;

/// The limits within which plans are drawn.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Knobs {
    /// The numbers of ranks.
    pub ranks: RangeInclusive<usize>,
    /// The numbers of steps of the program; see [`SwarmRank::steps`](super::SwarmRank::steps).
    pub steps: RangeInclusive<usize>,
    /// The kinds of faults. Each run draws which of them may happen.
    pub faults: Vec<FaultKind>,
    /// The largest number of faults of a run.
    pub faults_max: usize,
    /// The largest number of the operation of a rank before which a fault happens, at least 8.
    pub operations_max: u64,
    /// When the group of a rank changes, so that faults may happen meanwhile.
    pub changes: Changes,
    /// The time limit of a call; see [`SwarmRank::timeout`](super::SwarmRank::timeout).
    pub timeout: Duration,
    /// The time that a call may take after its deadline.
    pub slack: Duration,
    /// Whether receivers detect changed bytes.
    pub checksums: bool,
    /// A defect of the simulated network, with which a test checks that a run can fail.
    pub defect: Option<Defect>,
}

impl Default for Knobs {
    fn default() -> Self {
        Self {
            ranks: 2..=6,
            steps: 1..=8,
            faults: FaultKind::ALL.to_vec(),
            faults_max: 3,
            operations_max: 1 << 10,
            changes: Changes::Never,
            timeout: Duration::from_secs(5),
            slack: Duration::from_secs(1),
            checksums: true,
            defect: None,
        }
    }
}

impl Knobs {
    comm_core::setters!(
        ranks: RangeInclusive<usize>,
        steps: RangeInclusive<usize>,
        faults_max: usize,
        operations_max: u64,
        changes: Changes,
        timeout: Duration,
        slack: Duration,
        checksums: bool
    );

    /// Returns the knobs with these kinds of faults.
    #[must_use]
    pub fn faults(mut self, faults: Vec<FaultKind>) -> Self {
        self.faults = faults;
        self
    }

    /// Returns the knobs with this defect of the network.
    #[must_use]
    pub const fn defect(mut self, defect: Defect) -> Self {
        self.defect = Some(defect);
        self
    }
}

/// The times at which the group of a rank changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Changes {
    /// It never does.
    Never,
    /// Only after a fault has happened: it shrinks.
    AfterFault,
    /// Also without a fault: it grows.
    Always,
}

/// The moment of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Moment {
    /// A time after the start.
    After(Duration),
    /// Before an operation of a rank on its transports, counted from 1.
    Operation {
        /// The rank.
        rank: usize,
        /// The number of the operation.
        operation: u64,
    },
    /// Before an operation of a rank whose group changes; see
    /// [`SwarmRank::begin_change`](super::SwarmRank::begin_change).
    Change {
        /// The rank.
        rank: usize,
        /// The number of the change of this rank, counted from 1.
        change: usize,
        /// The number of the operation since the beginning of that change, counted from 1.
        operation: u64,
    },
}

/// A fault of a plan: incidents that happen together.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlannedFault {
    /// The kind.
    pub kind: FaultKind,
    /// The moment.
    pub moment: Moment,
    /// The incidents.
    pub incidents: Vec<Incident>,
}

impl PlannedFault {
    /// Creates a fault.
    #[must_use]
    pub const fn new(kind: FaultKind, moment: Moment, incidents: Vec<Incident>) -> Self {
        Self { kind, moment, incidents }
    }
}

/// The plan of a run, which reproduces it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Plan {
    /// The seed of the plan, of the order of threads and of the data.
    pub seed: u64,
    /// The number of ranks.
    pub ranks: usize,
    /// The number of steps of the program.
    pub steps: usize,
    /// The time limit of a call.
    pub timeout: Duration,
    /// The time that a call may take after its deadline.
    pub slack: Duration,
    /// The network.
    pub network: FaultPlan,
    /// The faults.
    pub faults: Vec<PlannedFault>,
}

impl Plan {
    /// Draws the plan of a seed.
    #[must_use]
    pub fn draw(seed: u64, knobs: &Knobs) -> Self {
        let mut draw = Draw { random: Random::new(seed, PLAN), timeout: knobs.timeout };
        let ranks = draw.within(&knobs.ranks).max(1);
        let steps = draw.within(&knobs.steps);
        let mut network = draw.network();
        network.checksums = knobs.checksums;
        network.defect = knobs.defect;
        let enabled: Vec<FaultKind> =
            knobs.faults.iter().copied().filter(|_| draw.random.one_in(2)).collect();
        let count = if enabled.is_empty() || ranks < 2 { 0 } else { draw.random.below(knobs.faults_max + 1) };
        let faults = (0..count)
            .map(|index| {
                let kind = enabled[draw.random.below(enabled.len())];
                let can_change = match knobs.changes {
                    Changes::Never => false,
                    Changes::AfterFault => index > 0,
                    Changes::Always => true,
                };
                let moment = draw.moment(ranks, knobs.operations_max, can_change);
                PlannedFault { kind, moment, incidents: draw.incidents(kind, ranks) }
            })
            .collect();
        Self { seed, ranks, steps, timeout: knobs.timeout, slack: knobs.slack, network, faults }
    }

    /// Returns whether a fault can separate ranks that live, so that only a majority may go on.
    ///
    /// A rank that is stopped does not read, and if few bytes fit on its links, those that tell it
    /// that it was left out may be lost when the others end before it continues.
    #[must_use]
    pub fn can_split(&self) -> bool {
        let splits = |fault: &PlannedFault| {
            use FaultKind::{Corruption, Duplication, HalfOpen, Partition, Reset, Stop};
            matches!(fault.kind, Corruption | Duplication | HalfOpen | Partition | Reset)
                || (fault.kind == Stop && self.network.capacity <= CAPACITY_OF_NOTICES)
        };
        self.faults.iter().any(splits)
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, ranks, steps, timeout, network, faults, .. } = self;
        writeln!(f, "seed {seed}: {ranks} ranks, {steps} steps, {timeout:?} per call")?;
        let FaultPlan {
            latency, jitter, bytes_per_second, capacity, short, stalls, release, on_demand, ..
        } = network;
        writeln!(
            f,
            "network: latency {latency:?}, jitter {jitter:?}, {bytes_per_second} B/s, {capacity} B in flight, \
             short: {short}, stalls: {stalls:?}, release: {release:?}, on demand: {on_demand}"
        )?;
        for PlannedFault { moment, incidents, .. } in faults {
            let what = incidents.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
            match moment {
                Moment::After(time) => writeln!(f, "after {time:?}: {what}")?,
                Moment::Operation { rank, operation } => {
                    writeln!(f, "before operation {operation} of rank {rank}: {what}")?;
                }
                Moment::Change { rank, change, operation } => writeln!(
                    f,
                    "before operation {operation} of change {change} of the group of rank {rank}: {what}"
                )?,
            }
        }
        Ok(())
    }
}

/// The largest number of a change of the group in which a fault happens.
const CHANGES_MAX: usize = 2;
/// The largest number of operations since the beginning of a change.
const OPERATIONS_OF_CHANGE: u64 = 1 << 8;

/// The number of the stream of random numbers for plans.
const PLAN: u64 = 100;

/// Draws the parts of a plan.
struct Draw {
    random: Random,
    timeout: Duration,
}

impl Draw {
    fn within(&mut self, range: &RangeInclusive<usize>) -> usize {
        range.start() + self.random.below(range.end().saturating_sub(*range.start()) + 1)
    }

    fn one_of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.random.below(values.len())]
    }

    /// Returns a duration between `low` and `high`, of any order of magnitude.
    fn duration(&mut self, low: Duration, high: Duration) -> Duration {
        let share = self.random.below(1001) as f64 / 1000.0;
        low.mul_f64((high.as_secs_f64() / low.as_secs_f64()).powf(share))
    }

    fn network(&mut self) -> FaultPlan {
        let micros = Duration::from_micros;
        let mut plan = FaultPlan::calm();
        if self.random.one_in(3) {
            return plan;
        }
        plan.latency = self.duration(micros(1), micros(2000));
        plan.jitter = self.one_of(&[Duration::ZERO, micros(50), micros(500)]);
        plan.bytes_per_second = self.one_of(&[5_000_000, 100_000_000, 10_000_000_000]);
        plan.capacity = self.one_of(&[509, 4096, 65536, 1 << 20]);
        plan.short = self.random.one_in(2);
        if self.random.one_in(3) {
            plan.stalls = Some((20 + self.random.below(200), self.duration(micros(10), micros(5000))));
        }
        plan.release = self.one_of(&[Release::OnAccept, Release::OnConsume]);
        plan.keepalive = self.timeout.mul_f64(0.3);
        plan.on_demand = self.random.one_in(3);
        plan
    }

    fn moment(&mut self, ranks: usize, operations_max: u64, can_change: bool) -> Moment {
        if can_change && self.random.one_in(2) {
            let (rank, change) = (self.random.below(ranks), 1 + self.random.below(CHANGES_MAX));
            let magnitude = 1 + self.random.below(OPERATIONS_OF_CHANGE.ilog2() as usize);
            return Moment::Change { rank, change, operation: 1 + self.random.below(1 << magnitude) as u64 };
        }
        if self.random.one_in(4) {
            return Moment::After(self.duration(Duration::from_micros(10), Duration::from_secs(1)));
        }
        let magnitude = 3 + self.random.below(operations_max.max(8).ilog2() as usize - 2);
        let operation = 1 + self.random.below(1 << magnitude) as u64;
        Moment::Operation { rank: self.random.below(ranks), operation }
    }

    fn incidents(&mut self, kind: FaultKind, ranks: usize) -> Vec<Incident> {
        let rank = self.random.below(ranks);
        let other = (rank + 1 + self.random.below(ranks - 1)) % ranks;
        let timeout = self.timeout;
        let lasting = self.duration(timeout / 1000, timeout * 8);
        let brief = self.duration(timeout / 1000, timeout);
        match kind {
            FaultKind::Death => vec![Incident::Death { rank }],
            FaultKind::Vanish => vec![Incident::Vanish { rank }],
            FaultKind::Reset => vec![Incident::Break { between: (rank, other) }],
            FaultKind::HalfOpen => vec![Incident::Cut { from: rank, to: other, lasting: brief }],
            FaultKind::Partition => self.partition(ranks, brief),
            FaultKind::Stop => vec![Incident::Stop { rank, lasting }],
            FaultKind::Slow => {
                let per_operation = self.duration(Duration::from_micros(1), Duration::from_millis(2));
                vec![Incident::Slow { rank, per_operation }]
            }
            FaultKind::ClockJump => vec![Incident::ClockJump { rank, by: brief }],
            FaultKind::Corruption => vec![Incident::Corruption { from: rank, to: other }],
            FaultKind::Duplication => vec![Incident::Duplication { from: rank, to: other }],
            FaultKind::StoreReset => vec![Incident::StoreReset { rank }],
            FaultKind::StoreStall => vec![Incident::StoreStall { lasting: brief }],
            FaultKind::StoreEnd => vec![Incident::StoreEnd],
        }
    }

    fn partition(&mut self, ranks: usize, lasting: Duration) -> Vec<Incident> {
        let side: Vec<bool> = (0..ranks).map(|_| self.random.one_in(2)).collect();
        let pairs = (0..ranks).flat_map(|from| (0..ranks).map(move |to| (from, to)));
        let crossing = pairs.filter(|&(from, to)| side[from] != side[to]);
        crossing.map(|(from, to)| Incident::Cut { from, to, lasting }).collect()
    }
}
