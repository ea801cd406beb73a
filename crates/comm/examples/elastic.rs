//! A group that loses a rank, goes on without it, and admits another process in its place.
//!
//! ```sh
//! commctl run -n 3 --elastic 2:3 -- target/debug/examples/elastic
//! ```
#![allow(clippy::expect_used, clippy::print_stdout, reason = "an example is short, and prints its result")]

use std::thread::sleep;
use std::time::Duration;

use comm::{Config, ElasticGroup, GrowOptions, ReduceOp, ShrinkOptions};
use rustix::process::{Signal, getpid, kill_process};

const STEPS: u64 = 100;
/// The step in which the last rank kills itself.
const LOSS: u64 = 40;
/// The step before which the others wait for another process.
const REGROWTH: u64 = 60;

/// The state of the program, which is equal on all ranks after each step.
struct State {
    step: u64,
    total: u64,
    /// Whether this rank has the state of the others.
    is_known: bool,
}

/// Makes one step. Each call in it may fail because another rank is lost.
fn advance(group: &mut ElasticGroup, state: &mut State, full_size: usize) -> comm::Result<()> {
    if state.is_known && state.step == REGROWTH {
        // For a minute at most. All ranks call this equally often: it returns the same to all.
        for _ in 0..6000 {
            if group.comm().size() == full_size {
                break;
            }
            if group.grow(&GrowOptions::default())? > 0 {
                state.is_known = false;
            }
            sleep(Duration::from_millis(10));
        }
    }
    if !state.is_known {
        // Rank 0 remains from before, and others may be new, or lack the last step.
        let mut copy = [state.step, state.total];
        group.comm().broadcast(0, &mut copy)?;
        *state = State { step: copy[0], total: copy[1], is_known: true };
    }
    let (rank, size) = (group.comm().rank(), group.comm().size());
    if state.step == LOSS && rank > 0 && rank + 1 == full_size {
        kill_process(getpid(), Signal::KILL).expect("a process may kill itself");
    }
    let sum = group.comm().all_reduce_scalar(state.step, ReduceOp::Sum)?;
    state.total += sum / size as u64;
    state.step += 1;
    Ok(())
}

pub(crate) fn main() -> comm::Result<()> {
    let config = Config::from_env()?;
    let mut group = ElasticGroup::join(&config)?;
    let mut state = State { step: 0, total: 0, is_known: !group.is_newcomer() };
    while state.step < STEPS {
        match advance(&mut group, &mut state, config.world_size) {
            Err(error) if error.is_fatal() => {
                let shrunk = group.shrink(&ShrinkOptions::default())?;
                if shrunk.comm.rank() == 0 {
                    println!("step {}: {error}; ranks {:?} go on", state.step, shrunk.ranks);
                }
                state.is_known = false;
            }
            outcome => outcome?,
        }
    }
    // No step was lost, and none was counted twice.
    assert_eq!(state.total, (0..STEPS).sum::<u64>());
    if group.comm().rank() == 0 {
        println!("{STEPS} steps are complete, the last one with {} ranks", group.comm().size());
    }
    group.comm().clone().finalize()
}
