//! A training loop under random faults: ranks die, stop and are slow at any moment, and the others
//! go on in a smaller group. Run it with `cargo run -p comm-sim --example swarm`.

use std::error::Error;
use std::io::{Write, stdout};

use comm_core::{Comm, ReduceOp, Result};
use comm_ring::{RingCommunicator, RingConfig};
use comm_sim::network::NetworkFabric;
use comm_sim::swarm::{self, FaultKind, Knobs, PassedRun, SwarmRank};

/// Trains on one rank. All calls are made in [`SwarmRank::call`], which checks that they end in
/// time and that errors name a rank at fault.
fn train(fabric: NetworkFabric, rank: &SwarmRank<'_>) -> Result<()> {
    let timeout = rank.timeout();
    let connect = || RingCommunicator::new(fabric, RingConfig::default(), timeout);
    let mut comm = Comm::new(rank.call("connect", timeout, connect)?).with_timeout(timeout);
    // The weight after each step, and the step after which the present group was created.
    let (mut weights, mut first) = (vec![0.0_f64], 0);
    while weights.len() <= rank.steps() {
        let step = weights.len();
        let mut gradient = [step as f64];
        let call = || comm.all_reduce(&mut gradient, ReduceOp::Avg);
        if rank.call("all_reduce", timeout, call).is_ok() {
            weights.push(weights[step - 1] - gradient[0]);
        } else {
            let (smaller, completed) = rank.shrink(&comm)?;
            // Steps that not all members completed are repeated.
            first += completed as usize;
            weights.truncate(1 + first);
            comm = smaller;
        }
    }
    if weights.last() != Some(&expected(rank.steps())) {
        rank.wrong(format!("the weights are {weights:?}"));
    }
    Ok(())
}

/// Returns the weight after this number of steps.
fn expected(steps: usize) -> f64 {
    -(1..=steps).map(|step| step as f64).sum::<f64>()
}

/// Runs the loop with the faults that these seeds draw. Panics with the log of a small run if a
/// property does not hold.
fn runs(seeds: std::ops::Range<u64>) -> Vec<PassedRun> {
    let faults = vec![FaultKind::Death, FaultKind::Vanish, FaultKind::Stop, FaultKind::Slow];
    swarm::check(seeds, &Knobs::default().faults(faults), &train)
}

fn main() -> Result<(), Box<dyn Error>> {
    let runs = runs(0..200);
    let shrunk = runs.iter().filter(|run| run.shrunk > 0).count();
    let text = format!("{} runs passed; in {shrunk} of them, ranks went on in a smaller group", runs.len());
    Ok(writeln!(stdout(), "{text}")?)
}

#[test]
fn training_goes_on_after_deaths_and_stops() {
    let runs = runs(0..50);
    assert!(runs.iter().any(|run| run.shrunk > 0));
}
