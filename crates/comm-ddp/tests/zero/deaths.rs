//! Ranks die at any operation of a run, in virtual time.

use std::time::Duration;

use comm_core::{Comm, Fabric, ShrinkOptions};
use comm_ddp::{AdamW, Error, Result, Sgd};
use comm_ring::{RingCommunicator, RingConfig};
use comm_sim::network::{self, FaultPlan, NetworkFabric, VirtualClock};
use half::bf16;

use crate::training::{References, Run, Settings, Survivor, UPDATES, Value, check_survivors};

const TIMEOUT: Duration = Duration::from_secs(2);

/// The course of one rank.
struct Course<V> {
    is_dead: bool,
    /// The number of updates at the end.
    steps: u64,
    /// The numbers of updates that this rank had completed itself when groups failed.
    completed: Vec<u64>,
    end: Result<Survivor<V>>,
}

fn live<V: Value, O: Settings>(fabric: NetworkFabric, clock: &VirtualClock) -> Course<V> {
    let shrink = ShrinkOptions::default().timeout(20 * TIMEOUT).patience(TIMEOUT);
    let mut config = RingConfig::default();
    config.announce_after = Duration::from_millis(20);
    let comm =
        RingCommunicator::new(fabric, config, TIMEOUT).map(|ring| Comm::new(ring).with_timeout(TIMEOUT));
    let run = comm.map_err(Error::from).and_then(|comm| Run::<V, O>::new(&comm));
    let mut course = Course { is_dead: false, steps: 0, completed: Vec::new(), end: Err(Error::Abandoned) };
    match run {
        Err(error) => course.end = Err(error),
        Ok(mut run) => {
            let trained = run.train(None, &shrink);
            (course.steps, course.completed) = (run.zero.steps(), run.completed.clone());
            course.end = trained.map(|_| run.into_survivor());
        }
    }
    if course.end.is_err() && !clock.is_dead() {
        // The others learn of a death by themselves, not by the exit of this rank.
        clock.sleep(2 * TIMEOUT);
    }
    course.is_dead = clock.is_dead();
    course
}

/// Runs `n` ranks; some die before an operation: pairs of a rank and its operation.
fn run<V: Value, O: Settings>(n: usize, seed: u64, deaths: &[(usize, u64)]) -> Vec<Course<V>> {
    let plan = if seed.is_multiple_of(2) { FaultPlan::calm() } else { FaultPlan::rough() };
    network::run(n, seed, &plan, |fabric, clock| {
        for (_, operation) in deaths.iter().filter(|(rank, _)| *rank == fabric.group().rank()) {
            let own = clock.clone();
            clock.before_operation(*operation, move || own.die());
        }
        live::<V, O>(fabric, &clock)
    })
}

/// The outcomes of many runs.
#[derive(Debug, Default)]
struct Tally {
    /// The runs in which others went on after a death.
    continued: usize,
    /// Those in which the others had completed different numbers of updates.
    apart: usize,
    /// Those in which all returned to an earlier update than some had computed, or lost state.
    lost: usize,
}

impl Tally {
    /// Checks the ends of a run. `may_lose` is whether the state of some rank may be lost.
    fn check<V: Value, O: Settings>(
        &mut self,
        courses: Vec<Course<V>>,
        references: &mut References<V>,
        (context, may_lose): (&str, bool),
    ) {
        let (mut survivors, mut lost) = (Vec::new(), 0);
        let mut completed: Vec<u64> = Vec::new();
        let living: Vec<Course<V>> = courses.into_iter().filter(|course| !course.is_dead).collect();
        let has_ended = living.iter().any(|course| course.end.is_ok());
        for course in living {
            completed.extend(course.completed.first());
            match course.end {
                Ok(survivor) => survivors.push(survivor),
                // Before the second step there are no copies. Ranks that have ended do not take
                // part in later groups.
                Err(Error::StateLost { .. }) if course.steps < 2 || may_lose => lost += 1,
                Err(Error::StateLost { .. }) if has_ended && course.steps == UPDATES => {}
                // Construction failed.
                Err(Error::Comm(_) | Error::Mismatch(_)) if course.steps == 0 => lost += 1,
                Err(error) => panic!("{context}, after {} updates: {error}", course.steps),
            }
        }
        self.lost += usize::from(lost > 0);
        self.apart += usize::from(completed.windows(2).any(|pair| pair[0] != pair[1]));
        if !survivors.is_empty() {
            self.continued += usize::from(survivors[0].groups.len() > 1);
            check_survivors::<V, O>(&survivors, references, context);
        }
    }
}

/// Lets each rank die at every `stride`th of its operations.
fn check_deaths<V: Value, O: Settings>(n: usize, stride: usize) -> Tally {
    let (mut references, mut tally) = (References::<V>::new(), Tally::default());
    for rank in 0..n {
        for operation in (1 + rank as u64..).step_by(stride) {
            let courses = run::<V, O>(n, operation, &[(rank, operation)]);
            if !courses[rank].is_dead {
                break;
            }
            let context = format!("rank {rank} of {n} dies at operation {operation}");
            tally.check::<V, O>(courses, &mut references, (&context, false));
        }
    }
    tally
}

#[test]
fn the_others_continue_after_deaths_at_many_operations() {
    for tally in [
        check_deaths::<f32, Sgd>(2, 23),
        check_deaths::<f32, AdamW>(3, 37),
        check_deaths::<bf16, AdamW>(3, 41),
        check_deaths::<bf16, Sgd>(4, 97),
    ] {
        println!("{tally:?}");
        assert!(tally.continued > 20, "{tally:?}");
    }
}

/// Two ranks die at random operations, many of them while the others rejoin without the first.
#[test]
fn the_others_continue_after_two_deaths() {
    let (mut references, mut tally, mut double) = (References::<bf16>::new(), Tally::default(), 0);
    for seed in 0..140 {
        let mut draws = 0;
        let mut random = |limit: u64| {
            draws += 1;
            comm_core::wire::digest([seed, draws]) % limit
        };
        let n = 3 + random(3) as usize;
        let first = random(n as u64) as usize;
        let second = (first + 1 + random(n as u64 - 1) as usize) % n;
        // After the second step, in a run of about 230 operations for each pair of ranks.
        let operation = (n * n) as u64 * (100 + random(100));
        // A rank that goes on makes several hundred operations to shrink and rejoin.
        let deaths = [(first, operation), (second, operation + random(400))];
        let courses = run::<bf16, AdamW>(n, seed, &deaths);
        double += usize::from(courses.iter().filter(|course| course.is_dead).count() == 2);
        // Ranks that follow each other may be lost together.
        let are_apart = n > 3 && (first + 1) % n != second && (second + 1) % n != first;
        let context = format!("seed {seed}: {deaths:?} of {n}");
        tally.check::<bf16, AdamW>(courses, &mut references, (&context, !are_apart));
    }
    println!("{tally:?}, {double} with two deaths");
    assert!(double > 60 && tally.continued > 30, "{tally:?}, {double}");
}
