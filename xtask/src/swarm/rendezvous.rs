//! The program of a run whose processes meet through a store.

use std::collections::BTreeSet;
use std::time::Duration;

use comm_core::{During, Error, Membership, Refusal, Result};
use comm_rendezvous::{Member, Rendezvous, Watch};
use comm_sim::network::{self, Incident, NetworkFabric, NetworkStore};
use comm_sim::swarm::{FaultKind, Knobs, Property, SwarmRank};

/// The streams of random numbers.
const MISHAP: u64 = 1;
const SERVER: u64 = 2;
const OPENING: u64 = 3;
const LATE: u64 = 4;

/// The operations of a process on the store until it has claimed its rank: it reads the attempt,
/// registers its last will and claims.
const OPERATIONS_OF_CLAIM: u64 = 3;
/// The time by which the others know of the death of a rank that has claimed its number.
const NOTICED_AFTER: Duration = Duration::from_millis(500);
/// The time for which a fault or a late arrival may make any rank late.
const CATCHING_UP: Duration = Duration::from_millis(100);
/// The times for which a rank waits for the cause of a failure, and for late ranks.
const AFTERWARDS: Duration = Duration::from_secs(2);

/// Returns the limits of the runs.
pub(super) fn knobs() -> Knobs {
    Knobs::default().faults(FaultKind::OF_RENDEZVOUS.to_vec()).operations_max(1 << 6).steps(1..=3)
}

/// A mistake of the user, or a process that is late.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mishap {
    None,
    Late,
    Absent,
    OtherSetting,
    /// The last process claims the rank of the one before it.
    Duplicate,
}

/// A process of the run.
struct Process<'a, 'b> {
    rank: &'a SwarmRank<'b>,
    mishap: Mishap,
    /// The process to which it happens.
    concerned: usize,
    /// The number of ranks.
    size: usize,
    /// The rank that serves the store.
    server: Option<usize>,
}

/// Runs the program on one process.
pub(super) fn run(fabric: NetworkFabric, rank: &SwarmRank<'_>) -> Result<()> {
    // No channels are opened.
    drop(fabric);
    let process = Process::new(rank);
    let store = rank.clock().store(process.server);
    // If two processes claim one rank, each may be in another group.
    let steps = if process.mishap == Mishap::Duplicate { 1 } else { rank.steps() };
    for step in 0..steps {
        process.arrive(step)?;
        process.join(&store, step)?;
    }
    Ok(())
}

impl<'a, 'b> Process<'a, 'b> {
    fn new(rank: &'a SwarmRank<'b>) -> Self {
        let processes = rank.plan().ranks;
        let mishap = match rank.random(MISHAP) % 12 {
            0 | 1 => Mishap::Late,
            2 => Mishap::Absent,
            3 => Mishap::OtherSetting,
            4 | 5 if processes > 2 => Mishap::Duplicate,
            _ => Mishap::None,
        };
        let size = if mishap == Mishap::Duplicate { processes - 1 } else { processes };
        let server = (rank.random(SERVER).is_multiple_of(2)).then_some(0);
        Self { rank, mishap, concerned: processes - 1, size, server }
    }

    /// Returns the rank of a process.
    fn rank_of(&self, process: usize) -> usize {
        process.min(self.size - 1)
    }

    fn own(&self) -> usize {
        self.rank_of(self.rank.number())
    }

    fn is_concerned(&self) -> bool {
        self.mishap != Mishap::None && self.rank_of(self.concerned) == self.own()
    }

    /// Returns a random time at most this long.
    fn time(&self, stream: u64, most: Duration) -> Duration {
        most.mul_f64((self.rank.random(stream) % 1000) as f64 / 1000.0)
    }

    /// Sleeps for a random time at most this long.
    fn pause(&self, stream: u64, most: Duration) {
        self.rank.clock().sleep(self.time(stream, most));
    }

    /// Returns whether a fault or an arrival was so short before a deadline that ranks were still
    /// catching up.
    fn is_catching_up(&self) -> bool {
        let now = self.rank.clock().elapsed();
        let is_recent = |at: Duration| at <= now && at + CATCHING_UP > now;
        let is_late = self.mishap == Mishap::Late && is_recent(self.time(LATE, 2 * self.rank.timeout()));
        is_late || self.rank.clock().incidents().iter().any(|(at, _)| is_recent(*at))
    }

    /// Waits until the process arrives at the rendezvous of a step.
    fn arrive(&self, step: usize) -> Result<()> {
        let stream = 1000 + (step * 100 + self.rank.number()) as u64;
        self.pause(stream, Duration::from_millis(2));
        if self.rank.number() != self.concerned || step > 0 {
            return Ok(());
        }
        match self.mishap {
            Mishap::Late => self.pause(LATE, 2 * self.rank.timeout()),
            Mishap::Absent => return Err(Error::Internal("absent".into())),
            Mishap::None | Mishap::OtherSetting | Mishap::Duplicate => {}
        }
        Ok(())
    }

    fn join(&self, store: &NetworkStore, step: usize) -> Result<()> {
        let planned = self.rank.plan().faults.iter().flat_map(|fault| &fault.incidents);
        let stalled: Duration = planned.map(|incident| self.stall(incident)).sum();
        let limit = self.rank.timeout() + AFTERWARDS + stalled;
        let outcome = self.rank.timed(format!("rendezvous {step}"), limit, || self.meet(store, step));
        match &outcome {
            Ok(records) => self.check_records(step, records),
            Err(error) => self.check_error(error, step),
        }
        if !self.is_excused() && self.mishap != Mishap::Duplicate {
            self.rank.agree(format!("outcome of {step}"), self.summary(&outcome));
        }
        outcome.map(drop)
    }

    /// Returns the time for which a fault delays the answers of the store. That of a host that has
    /// vanished is awaited for the time of the keep-alive.
    fn stall(&self, incident: &Incident) -> Duration {
        match *incident {
            Incident::StoreStall { lasting } => lasting,
            Incident::Vanish { rank } if self.server == Some(rank) => self.rank.plan().network.keepalive,
            _ => Duration::ZERO,
        }
    }

    /// Joins the rendezvous, opens imaginary connections, and finishes it.
    fn meet(&self, store: &NetworkStore, step: usize) -> Result<Vec<String>> {
        let mut member = Member::new(Membership { rank: self.own(), size: self.size });
        (member.timeout, member.store_rank) = (self.rank.timeout(), self.server);
        (member.clock, member.round) = (network::now, step as u64 / 2);
        let color = if self.mishap == Mishap::OtherSetting && self.is_concerned() { "red" } else { "blue" };
        member.settings.add("color", color);
        let record = format!("process {}", self.rank.number());
        let (rendezvous, records) = Rendezvous::join(store, member, Ok(record))?;
        match self.open(rendezvous.watch().as_deref()) {
            Ok(()) => rendezvous.finish().map(|()| records),
            Err(error) => Err(rendezvous.fail(error)),
        }
    }

    /// Takes some time, and checks the watch meanwhile.
    fn open(&self, watch: Option<&Watch>) -> Result<()> {
        for part in 0..4 {
            self.pause(OPENING + part * 10 + self.rank.number() as u64, Duration::from_millis(1));
            if let Some(watch) = watch {
                watch.hold().check()?;
            }
        }
        Ok(())
    }

    fn check_records(&self, step: usize, records: &[String]) {
        let own = format!("process {}", self.rank.number());
        if records.len() != self.size || records.get(self.own()) != Some(&own) {
            self.rank.wrong(format!("process {} has the records {records:?}", self.rank.number()));
        }
        self.rank.agree(format!("records of {step}"), format!("{records:?}"));
    }

    fn incidents(&self) -> Vec<Incident> {
        self.rank.clock().incidents().into_iter().map(|(_, incident)| incident).collect()
    }

    /// Returns the ranks to which something has happened.
    fn at_fault(&self) -> BTreeSet<usize> {
        let incidents = self.incidents();
        let ranks = incidents.iter().flat_map(Incident::ranks).map(|process| self.rank_of(process));
        let concerned = (self.mishap != Mishap::None).then(|| self.rank_of(self.concerned));
        ranks.chain(concerned).collect()
    }

    /// Returns whether something has happened to the store, or to the rank that serves it.
    fn is_store_at_fault(&self) -> bool {
        let is_of_store = |it: &Incident| matches!(it, Incident::StoreEnd | Incident::StoreStall { .. });
        self.incidents().iter().any(is_of_store)
            || self.server.is_some_and(|rank| self.at_fault().contains(&rank))
    }

    /// Returns whether the store may fail. The rank that serves it may leave before both of two
    /// processes that claim one rank have met the others.
    fn may_lose_store(&self) -> bool {
        self.is_store_at_fault() || (self.mishap == Mishap::Duplicate && self.server.is_some())
    }

    /// Returns whether this process may have another outcome than the rest.
    fn is_excused(&self) -> bool {
        self.rank.clock().is_dead() || self.is_store_at_fault() || self.at_fault().contains(&self.own())
    }

    /// Checks that an error names a rank at fault or the store.
    fn check_error(&self, error: &Error, step: usize) {
        let at_fault = self.at_fault();
        if self.rank.clock().is_dead() || at_fault.contains(&self.own()) {
            return;
        }
        let is_named = match error.root_cause() {
            Error::PeerLost { peer, .. } => {
                at_fault.contains(peer) || (self.server == Some(*peer) && self.may_lose_store())
            }
            Error::Timeout { during: During::Store { .. }, .. } | Error::Io { .. } => self.may_lose_store(),
            Error::Timeout { waiting_for, .. } => self.may_wait_for(waiting_for, &at_fault, step),
            Error::Handshake { refusal: Refusal::Setting { rank, .. }, .. } => {
                self.mishap == Mishap::OtherSetting && at_fault.contains(rank)
            }
            Error::Aborted { by, .. } => at_fault.contains(by) || self.is_store_at_fault(),
            _ => false,
        };
        if !is_named {
            let text = format!("rank {}: {error}; at fault: {at_fault:?}, {:?}", self.own(), self.mishap);
            self.rank.violate(Property::RankAtFault, text);
        }
    }

    /// Returns whether a rank may have waited for others until its deadline. A rank that died
    /// after it had claimed its number must be noticed earlier.
    fn may_wait_for(&self, waiting_for: &[usize], at_fault: &BTreeSet<usize>, step: usize) -> bool {
        // The ranks that met the first of two processes do not wait for the second one.
        if self.is_store_at_fault() || self.mishap == Mishap::Duplicate || self.is_catching_up() {
            return true;
        }
        let now = self.rank.clock().elapsed();
        let incidents = self.rank.clock().incidents();
        let is_noticed = |rank: usize| {
            let died = |&(at, incident): &(Duration, Incident)| {
                incident == Incident::Death { rank } && at + NOTICED_AFTER < now
            };
            // It registers its last will again if its connection broke before it had claimed.
            let is_reset = |&(_, incident): &(Duration, Incident)| incident == Incident::StoreReset { rank };
            let again = u64::from(incidents.iter().any(is_reset));
            let has_claimed = self.rank.clock().operations_of(rank) > OPERATIONS_OF_CLAIM + again;
            step == 0 && has_claimed && self.mishap == Mishap::None && incidents.iter().any(died)
        };
        !waiting_for.is_empty()
            && waiting_for.iter().all(|rank| at_fault.contains(rank) && !is_noticed(*rank))
    }

    /// Describes an outcome, which is the same for all ranks.
    fn summary<R>(&self, outcome: &Result<R>) -> String {
        match outcome.as_ref().map_err(Error::root_cause) {
            Ok(_) => "complete".into(),
            Err(Error::PeerLost { peer, .. }) => format!("lost {peer}"),
            // A rank that was too late itself waits for none.
            Err(Error::Timeout { waiting_for, during: During::Rendezvous, .. }) if waiting_for.is_empty() => {
                format!("missing {:?}", [self.own()])
            }
            Err(Error::Timeout { waiting_for, .. }) => format!("missing {waiting_for:?}"),
            Err(Error::Aborted { by, .. }) => format!("failed {by}"),
            Err(Error::Handshake { .. }) => "refused".into(),
            Err(other) => other.to_string(),
        }
    }
}
