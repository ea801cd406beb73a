//! Measures pairs of blocks.

use std::time::{Duration, Instant};

use comm::{Comm, ReduceOp};
use serde_json::{Value, json};

use crate::Result;
use crate::models::Model;
use crate::training::{FirstStep, Training, Variant};

/// The number of warm-up steps of each kind.
const WARMUP: usize = 3;
/// The smallest number of steps in a block.
const STEPS_MIN: u32 = 3;

type Step = fn(&mut Training) -> Result<f32>;

/// The two kinds of steps: with and without synchronization.
const KINDS: [Step; 2] = [Training::step, Training::local_step];

/// Checks and measures a model. Returns the result as a JSON object.
pub(crate) fn row(
    comm: &Comm,
    model: Model,
    variant: Variant,
    (pairs, block_ms): (usize, u32),
) -> Result<Value> {
    let mut training = Training::new(comm, model, variant)?;
    let FirstStep { loss, norm } = training.check(comm, variant)?;
    for _ in 0..WARMUP {
        KINDS.iter().try_for_each(|step| step(&mut training).map(drop))?;
    }
    let steps = agree_on_steps(comm, &mut training, Duration::from_millis(u64::from(block_ms)))?;
    training.exposed.clear();
    let mut times = vec![0.0_f64; 2 * pairs];
    for pair in 0..pairs {
        for kind in if pair % 2 == 0 { [0, 1] } else { [1, 0] } {
            times[2 * pair + kind] =
                elapsed(comm, &mut training, KINDS[kind], steps)?.as_nanos() as f64 / 1e3;
        }
    }
    comm.all_reduce(&mut times, ReduceOp::Max)?;
    training.exposed.sort_unstable();
    let mut exposed = [training.exposed[training.exposed.len() / 2].as_nanos() as f64 / 1e3];
    comm.all_reduce(&mut exposed, ReduceOp::Max)?;
    let (pairs, _) = times.as_chunks::<2>();
    Ok(json!({
        "model": model.name,
        "variant": variant.name(),
        "ranks": comm.size(),
        "parameters": model.lengths().iter().sum::<usize>(),
        "loss": loss,
        "norm": norm,
        "steps": steps,
        "pairs_us": pairs,
        "exposed_us": exposed[0],
    }))
}

/// Returns the time per step of a block.
fn elapsed(comm: &Comm, training: &mut Training, step: Step, steps: u32) -> Result<Duration> {
    comm.barrier()?;
    let start = Instant::now();
    for _ in 0..steps {
        step(training)?;
    }
    Ok(start.elapsed() / steps)
}

/// Returns the number of steps with synchronization in a block, which rank 0 determines.
fn agree_on_steps(comm: &Comm, training: &mut Training, least: Duration) -> Result<u32> {
    let per_step = elapsed(comm, training, Training::step, STEPS_MIN)?;
    let mut steps = [least.div_duration_f64(per_step).ceil() as u32];
    comm.broadcast(0, &mut steps)?;
    Ok(steps[0].max(STEPS_MIN))
}
