//! How long a call takes.

use std::time::{Duration, Instant};

use comm::{Comm, ReduceOp};

use super::args::Samples;

/// More calls than any sample needs.
const CALLS_MAX: u64 = 1 << 24;
/// One measurement too short to go by does not decide on many calls.
const GROWTH_MAX: u64 = 16;

/// The time per call of each sample, in seconds: of the rank that took longest. The same on every
/// rank.
///
/// A sample is a number of calls in a row, of which all ranks make the same: so many that it lasts
/// as long as it should. All ranks start into each together.
pub(crate) fn measure(
    comm: &Comm,
    samples: &Samples,
    call: &mut dyn FnMut() -> comm::Result<()>,
) -> comm::Result<Vec<f64>> {
    for _ in 0..samples.warmup {
        call()?;
    }
    let calls = agree_on_calls(comm, samples.sample_ms, call)?;
    let mut times = Vec::with_capacity(samples.samples as usize);
    for _ in 0..samples.samples {
        comm.barrier()?;
        times.push(time(calls, call)?.as_secs_f64() / calls as f64);
    }
    comm.all_reduce(&mut times, ReduceOp::Max)?;
    Ok(times)
}

fn time(calls: u64, call: &mut dyn FnMut() -> comm::Result<()>) -> comm::Result<Duration> {
    let start = Instant::now();
    for _ in 0..calls {
        call()?;
    }
    Ok(start.elapsed())
}

/// How many calls make a sample: rank 0 tries, and tells the others.
fn agree_on_calls(
    comm: &Comm,
    least: Duration,
    call: &mut dyn FnMut() -> comm::Result<()>,
) -> comm::Result<u64> {
    let mut calls = 1;
    loop {
        comm.barrier()?;
        let elapsed = time(calls, call)?;
        let mut next = [if comm.rank() == 0 { more_calls(calls, elapsed, least) } else { 0 }];
        comm.broadcast(0, &mut next)?;
        if next == [calls] {
            return Ok(calls);
        }
        [calls] = next;
    }
}

/// The same number if so many calls took long enough, else a larger one.
fn more_calls(calls: u64, elapsed: Duration, least: Duration) -> u64 {
    if elapsed >= least || calls >= CALLS_MAX {
        return calls;
    }
    // A tenth more, so that a second try is rarely too short.
    let needed = 1.1 * calls as f64 * least.as_secs_f64() / elapsed.as_secs_f64().max(1e-9);
    (needed.ceil() as u64).clamp(calls + 1, calls * GROWTH_MAX).min(CALLS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: Duration = Duration::from_millis(20);

    #[test]
    fn calls_that_took_long_enough_are_enough() {
        assert_eq!(more_calls(7, LEAST, LEAST), 7);
        assert_eq!(more_calls(1, Duration::ZERO, Duration::ZERO), 1);
        assert_eq!(more_calls(CALLS_MAX, Duration::from_millis(1), LEAST), CALLS_MAX);
    }

    #[test]
    fn short_calls_are_made_more_often_step_by_step() {
        assert_eq!(more_calls(1, Duration::from_millis(10), LEAST), 3);
        assert_eq!(more_calls(100, Duration::from_nanos(19_999_999), LEAST), 111);
        assert_eq!(more_calls(1, Duration::ZERO, LEAST), GROWTH_MAX);
        let mut calls = 1;
        while more_calls(calls, Duration::from_nanos(calls), LEAST) != calls {
            calls = more_calls(calls, Duration::from_nanos(calls), LEAST);
        }
        assert!(calls == CALLS_MAX || Duration::from_nanos(calls) >= LEAST, "{calls}");
    }
}
