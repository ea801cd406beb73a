//! The program of a run whose group loses ranks, and admits processes that join it.

pub(super) mod connector;
mod simulated;

use std::marker::PhantomData;
use std::time::Duration;

use comm_core::{Error, Membership, Refusal, Result};
use comm_rendezvous::{ElasticGroup, GroupConnector, GrowOptions, ListId, Member, WaitList};
use comm_sim::network::{self, Incident, NetworkFabric};
use comm_sim::swarm::workload::{check_unusable, make_step};
use comm_sim::swarm::{Changes, FaultKind, Knobs, Property, SwarmRank};

use super::program::algorithms;
use connector::{Connector, Medium, STORE_TIMEOUT};
use simulated::Simulated;

/// The streams of random numbers.
const FOUNDERS: u64 = 1;
const SERVER: u64 = 2;
const SIZE_MAX: u64 = 3;
const ARRIVAL: u64 = 100;
const PAUSE: u64 = 10_000;

/// The longest time between the start of the run and the arrival of a process that joins.
const ARRIVAL_MAX: Duration = Duration::from_millis(800);
/// The time by which the first group is connected.
const FOUNDED_BY: Duration = Duration::from_millis(500);
/// The longest time between two steps.
const PAUSE_MAX: Duration = Duration::from_millis(300);

/// The time limit of a process that joins: longer than a run in which processes only die.
const JOIN_TIMEOUT: Duration = Duration::from_secs(20);
/// The time limit of a growth: longer than the others take if a process dies.
const GROWTH_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest time to meet, or to find that a process has died.
const MEETING_MAX: Duration = Duration::from_secs(4);

/// The transports of a process in a group: three of the group, and one of the group from which it
/// shrank.
const TRANSPORTS_MAX: usize = 4;

/// The longest time of a growth that admits no process: less than the time for which the leader
/// waits for a process that has drawn a number.
const LIST_MAX: Duration = Duration::from_millis(90);

const LIST: ListId = ListId::new(0, 0);

/// Returns the limits of the runs.
pub(super) fn knobs() -> Knobs {
    Knobs::default().faults(FaultKind::OF_ELASTIC_GROUP.to_vec()).steps(3..=8).changes(Changes::Always)
}

/// Runs the program on one process.
pub(super) fn run(fabric: NetworkFabric, rank: &SwarmRank<'_>) -> Result<()> {
    // Each group has a fabric of its own.
    drop(fabric);
    let is_served = rank.random(SERVER).is_multiple_of(2);
    run_over::<Simulated<'_>>(rank, None, is_served)
}

/// Runs the program on one of the processes, which reach each other by these means. If one of them
/// does nothing but serve the store, it is the last one, `launcher`.
pub(super) fn run_over<'a, M: Medium<'a>>(
    rank: &'a SwarmRank<'a>,
    launcher: Option<usize>,
    is_served: bool,
) -> Result<()> {
    let founders = 1 + rank.random(FOUNDERS) as usize % launcher.unwrap_or(rank.plan().ranks);
    let process = ElasticProcess::<M> { rank, founders, launcher, is_served, medium: PhantomData };
    let group = if rank.number() < founders { process.found() } else { process.join() };
    let ended = group.and_then(|group| process.run(group));
    // A launcher starts a process again.
    if launcher.is_some() && rank.restart() {
        process.join().and_then(|group| process.run(group))
    } else {
        ended
    }
}

/// A process of the run.
struct ElasticProcess<'a, M> {
    rank: &'a SwarmRank<'a>,
    /// The number of ranks of the first group.
    founders: usize,
    /// The process that serves the store, if it is in no group.
    launcher: Option<usize>,
    /// Whether rank 0 of the group serves the store.
    is_served: bool,
    medium: PhantomData<M>,
}

type Group<'a, M> = ElasticGroup<Connector<'a, M>>;

/// The state that the ranks of a group share.
struct State {
    step: usize,
    /// Whether it equals rank 0's state.
    is_current: bool,
    /// The number of calls of grow in this group.
    calls: usize,
}

impl<'a, M: Medium<'a>> ElasticProcess<'a, M> {
    /// Makes steps in a group, and in those that follow it, to the end.
    fn run(&self, mut group: Group<'a, M>) -> Result<()> {
        let mut state = State { step: 0, is_current: !group.is_newcomer(), calls: 0 };
        while let Err(error) = self.advance_to_end(&mut group, &mut state) {
            if self.rank.clock().is_dead() {
                return Err(error);
            }
            check_unusable(self.rank, group.comm(), &error);
            let size = group.comm().size();
            self.rank.shrink_with(size, |options| group.shrink(options))?;
            (state.is_current, state.calls) = (false, 0);
        }
        // As the launcher does when a rank has ended.
        let store = group.connector().reopen_store()?;
        WaitList::new(&store, LIST.job, LIST.round).close()
    }

    /// Creates the first group.
    fn found(&self) -> Result<Group<'a, M>> {
        let rank = self.rank.number();
        let mut connector = Connector::new(self.rank, self.is_served);
        let mut member = Member::new(Membership { rank, size: self.founders });
        member.timeout = self.rank.timeout();
        // Another program checks the errors of a rendezvous.
        let comm = self.rank.timed("found", 2 * self.rank.timeout() + STORE_TIMEOUT, || {
            connector.open_store(Some(rank), STORE_TIMEOUT)?;
            connector.meet(member)
        })?;
        connector.close_store();
        let group = ElasticGroup::new(connector, LIST, comm);
        group.connector().enter();
        Ok(group)
    }

    /// Joins the running group.
    fn join(&self) -> Result<Group<'a, M>> {
        self.pause(ARRIVAL + self.rank.number() as u64, ARRIVAL_MAX);
        let (connector, timeout) = (Connector::new(self.rank, self.is_served), JOIN_TIMEOUT);
        // At the end, the process waits for the decision of the members.
        let limit = timeout + self.rank.timeout() + 2 * GROWTH_TIMEOUT;
        let joined = self.rank.timed("join", limit, || ElasticGroup::join(connector, LIST, timeout));
        match &joined {
            Ok(group) => group.connector().enter(),
            Err(error) => self.check_refusal(error),
        }
        joined
    }

    /// Makes the remaining steps, and leaves.
    fn advance_to_end(&self, group: &mut Group<'a, M>, state: &mut State) -> Result<()> {
        while !state.is_current || state.step < self.rank.steps() {
            self.pause(PAUSE + state.step as u64, PAUSE_MAX);
            self.check_transports();
            if !state.is_current || self.grow(group, state)? > 0 {
                self.share(group, state)?;
            }
            if state.step < self.rank.steps() {
                make_step(self.rank, group.comm(), state.step, algorithms)?;
                state.step += 1;
            }
        }
        self.rank.call("finalize", self.rank.timeout(), || group.comm().clone().finalize())
    }

    /// Gives all ranks the state of rank 0.
    fn share(&self, group: &Group<'a, M>, state: &mut State) -> Result<()> {
        let mut step = [state.step as u64];
        self.rank.call("share", self.rank.timeout(), || group.comm().broadcast(0, &mut step))?;
        (state.step, state.is_current) = (step[0] as usize, true);
        Ok(())
    }

    /// Admits processes that wait.
    fn grow(&self, group: &mut Group<'a, M>, state: &mut State) -> Result<usize> {
        let timeout = self.rank.timeout();
        let most = 2 + self.rank.random(SIZE_MAX) as usize % self.rank.plan().ranks;
        let size_min = self.rank.size_min(group.comm().size());
        let options = GrowOptions::default().timeout(GROWTH_TIMEOUT).size_max(most).size_min(size_min);
        let name = format!("growth {} of group {:08x}", state.calls, self.rank.group_id() as u32);
        state.calls += 1;
        // All ranks must arrive, meet, pass a barrier, agree and pass another one.
        // If the last one fails, they find out who goes on.
        let limit = 3 * timeout + 4 * GROWTH_TIMEOUT + STORE_TIMEOUT;
        let grow = || {
            let (before, began) = (group.growths(), self.rank.clock().elapsed());
            let grown = group.grow(&options);
            let is_alone = group.comm().size() == 1;
            self.check_time(is_alone && matches!(grown, Ok(0)), began);
            if group.growths() != before {
                group.connector().enter();
                state.calls = 0;
            }
            grown
        };
        let grown = self.rank.call(&*name, limit, grow);
        if let Ok(newcomers) = &grown {
            self.rank.agree(name, newcomers.to_string());
        }
        grown
    }

    /// Checks that a leader without other members has not waited for a process if nothing has
    /// happened. Others may delay it by not reading what it sends.
    fn check_time(&self, must_be_short: bool, began: Duration) {
        let clock = self.rank.clock();
        let took = clock.elapsed() - began;
        if must_be_short && took > LIST_MAX && clock.incidents().is_empty() {
            let text = format!("a growth without new processes took {took:?}");
            self.rank.violate(Property::Deadline, text);
        }
    }

    /// Checks that the transports of former groups are closed.
    fn check_transports(&self) {
        let open = self.rank.clock().open_transports();
        if open > TRANSPORTS_MAX {
            self.rank.violate(Property::NoLeak, format!("{open} transports are open"));
        }
    }

    /// Sleeps for a random time at most this long, the same on all ranks.
    fn pause(&self, stream: u64, most: Duration) {
        self.rank.clock().sleep(most.mul_f64((self.rank.random(stream) % 1000) as f64 / 1000.0));
    }

    /// Checks the error of a process that could not join.
    fn check_refusal(&self, error: &Error) {
        let clock = self.rank.clock();
        let happened = clock.incidents();
        // Without its first group, a job has none, and if all its ranks have died, it has ended.
        let has_lost_founder = happened.iter().any(|(at, incident)| {
            matches!(incident, Incident::Death { rank } if *rank < self.founders) && *at < FOUNDED_BY
        });
        let incidents: Vec<Incident> = happened.into_iter().map(|(_, incident)| incident).collect();
        let has_ended = matches!(error, Error::Handshake { refusal: Refusal::GroupEnded, .. });
        // Where only a majority goes on, the members may have given up.
        let only_deaths = !self.rank.plan().can_split()
            && incidents.iter().all(|incident| matches!(incident, Incident::Death { .. }));
        let founder_lives = (0..self.founders).any(|rank| !incidents.contains(&Incident::Death { rank }));
        let has_lost_store = self.launcher.is_some_and(|rank| incidents.contains(&Incident::Death { rank }));
        // The rank that serves the store leaves at the end of the group.
        let is_allowed = match error {
            Error::Timeout { .. } | Error::Io { .. } if only_deaths => {
                has_lost_founder || !founder_lives || self.is_served || has_lost_store
            }
            Error::Timeout { .. } | Error::Io { .. } => true,
            Error::PeerLost { .. } | Error::Aborted { .. } => !incidents.is_empty(),
            // Bytes of a greeting, which comes first, have no checksum.
            Error::Handshake { .. } if incidents.iter().any(alters_bytes) => true,
            _ => has_ended,
        };
        if !is_allowed && !clock.is_dead() {
            self.rank.violate(Property::RankAtFault, format!("a process could not join: {error}"));
        }
    }
}

const fn alters_bytes(incident: &Incident) -> bool {
    matches!(incident, Incident::Corruption { .. } | Incident::Duplication { .. })
}

/// Returns the clock of all time limits.
fn clock() -> fn() -> std::time::Instant {
    network::now
}

#[cfg(test)]
mod tests;
