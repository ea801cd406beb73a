//! A program of random calls, for any communicator.

mod collective;
mod messages;

use comm_core::{Collective, Comm, Error, Result};

use super::SwarmRank;
use crate::network::NetworkFabric;
use crate::random::Random;
pub use collective::COLLECTIVES;
use collective::CollectiveCall;
use messages::Messages;

/// Makes random collectives and exchanges random messages, with exact data. After a failure, it
/// goes on in a smaller group, or leaves; the seed decides which.
#[derive(Debug, Clone, Copy)]
pub struct Workload<C> {
    connect: C,
    algorithms: fn(Collective) -> Vec<&'static str>,
}

/// The behaviour of all ranks after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OnFailure {
    /// Go on in a smaller group.
    Shrink,
    /// Leave immediately.
    Leave,
    /// Stay connected for a while, so that the others do not learn of the failure by the exit.
    Linger,
}

impl<C: Fn(NetworkFabric, &SwarmRank<'_>) -> Result<Comm>> Workload<C> {
    /// Creates a program. `connect` connects a rank, within its time limit. `algorithms` returns
    /// the names of the algorithms that a collective may be forced to use.
    pub const fn new(connect: C, algorithms: fn(Collective) -> Vec<&'static str>) -> Self {
        Self { connect, algorithms }
    }

    /// Runs the program on one rank.
    ///
    /// # Errors
    /// The error after which the rank left.
    pub fn run(&self, fabric: NetworkFabric, rank: &SwarmRank<'_>) -> Result<()> {
        let timeout = rank.timeout();
        let comm = rank.call("connect", timeout, || (self.connect)(fabric, rank))?;
        let on_failure = match rank.random(ON_FAILURE) % 4 {
            0 => OnFailure::Leave,
            1 => OnFailure::Linger,
            _ => OnFailure::Shrink,
        };
        let mut course = Course { rank, comm: comm.with_timeout(timeout), first: 0, step: 0 };
        drop(comm);
        while let Err(error) = course.advance_to_end(self.algorithms) {
            if rank.clock().is_dead() || on_failure == OnFailure::Leave {
                return Err(error);
            }
            if on_failure == OnFailure::Linger {
                rank.clock().sleep(2 * timeout);
                return Err(error);
            }
            check_unusable(rank, &course.comm, &error);
            course.go_on()?;
        }
        Ok(())
    }
}

/// The streams of random numbers.
const ON_FAILURE: u64 = 1;
const STEPS: u64 = 1000;

/// Makes the calls of one step, which the seed determines: perhaps messages, and one collective.
/// `algorithms` returns the names of the algorithms that a collective may be forced to use.
///
/// # Errors
/// The error of the collective.
pub fn make_step(
    rank: &SwarmRank<'_>,
    comm: &Comm,
    step: usize,
    algorithms: fn(Collective) -> Vec<&'static str>,
) -> Result<()> {
    let mut random = Random::new(rank.random(STEPS + step as u64), 0);
    let network = &rank.plan().network;
    // On a network that moves few bytes at once, long data misses deadlines without a fault, and
    // takes long to simulate.
    let len_max = if network.short || network.capacity <= 4096 { 1000 } else { 20_000 };
    if random.one_in(3) {
        Messages::draw(&mut random, len_max, comm.size(), step).exchange(rank, comm);
    }
    CollectiveCall::draw(&mut random, len_max, algorithms).make(rank, comm, step)
}

/// Checks that no call of a communicator that failed with this error returns data.
pub fn check_unusable(rank: &SwarmRank<'_>, comm: &Comm, error: &Error) {
    let mut buffer = [7_u64; 3];
    let outcome = comm.all_reduce(&mut buffer, comm_core::ReduceOp::Sum);
    if !error.is_fatal() || buffer != [7; 3] || outcome.is_ok() {
        rank.wrong(format!("after {error}, a call returned {outcome:?} and the buffer {buffer:?}"));
    }
}

/// The course of the program on one rank. Each step has one collective call.
struct Course<'a, 'b> {
    rank: &'a SwarmRank<'b>,
    comm: Comm,
    /// The step that the first call of the present group made.
    first: usize,
    step: usize,
}

impl Course<'_, '_> {
    /// Makes the remaining steps and leaves.
    fn advance_to_end(&mut self, algorithms: fn(Collective) -> Vec<&'static str>) -> Result<()> {
        while self.step < self.rank.steps() {
            make_step(self.rank, &self.comm, self.step, algorithms)?;
            self.step += 1;
        }
        let timeout = self.rank.timeout();
        self.rank.call("finalize", timeout, || self.comm.clone().finalize())
    }

    /// Continues in a smaller group, with the first call that not all members completed.
    fn go_on(&mut self) -> Result<()> {
        let (comm, completed) = self.rank.shrink(&self.comm)?;
        let own = self.step - self.first;
        if completed > own as u64 {
            self.rank.wrong(format!("it has completed {own} calls, and not {completed}"));
        }
        self.comm = comm;
        self.first += usize::try_from(completed).unwrap_or(usize::MAX);
        self.step = self.first;
        Ok(())
    }
}
