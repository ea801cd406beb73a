//! Measures the time per call.

use std::time::{Duration, Instant};

use comm::{Comm, ReduceOp};

use super::args::Samples;

/// The maximum number of calls of a sample.
const CALLS_MAX: u64 = 1 << 24;
/// The largest growth factor, because a short measurement is inexact.
const GROWTH_MAX: u64 = 16;

/// The time in which the scheduler spreads new processes over the processors. Before that, three of
/// four ranks may share one of two processors.
const SETTLE: Duration = Duration::from_millis(400);

/// Makes a number of calls, and returns the time that they took.
type TimedCalls<'a> = dyn FnMut(u64) -> comm::Result<Duration> + 'a;

/// Returns the time per call on the slowest rank for each sample, in seconds. The result is the
/// same on every rank.
///
/// A sample is a number of consecutive calls after a barrier. All ranks make the same number of
/// calls, chosen so that a sample takes at least `sample_ms`.
pub(crate) fn measure(
    comm: &Comm,
    samples: &Samples,
    call: &mut dyn FnMut() -> comm::Result<()>,
) -> comm::Result<Vec<f64>> {
    measure_calls(comm, samples, &mut |calls| {
        let start = Instant::now();
        for _ in 0..calls {
            call()?;
        }
        Ok(start.elapsed())
    })
}

/// Measures like [`measure`]. `between` follows each call, and its time does not count.
pub(crate) fn measure_with<T>(
    comm: &Comm,
    samples: &Samples,
    state: &mut T,
    call: impl Fn(&mut T) -> comm::Result<()>,
    between: impl Fn(&mut T),
) -> comm::Result<Vec<f64>> {
    measure_calls(comm, samples, &mut |calls| {
        let mut total = Duration::ZERO;
        for _ in 0..calls {
            let start = Instant::now();
            call(state)?;
            total += start.elapsed();
            between(state);
        }
        Ok(total)
    })
}

/// Keeps all ranks busy until the scheduler has found a processor for each.
pub(crate) fn settle(comm: &Comm) -> comm::Result<()> {
    let mut barriers = |count| {
        let start = Instant::now();
        (0..count).try_for_each(|_| comm.barrier())?;
        Ok(start.elapsed())
    };
    agree_on_calls(comm, SETTLE, &mut barriers).map(drop)
}

fn measure_calls(comm: &Comm, samples: &Samples, timed: &mut TimedCalls<'_>) -> comm::Result<Vec<f64>> {
    timed(u64::from(samples.warmup))?;
    let calls = agree_on_calls(comm, samples.sample_ms, timed)?;
    let mut times = Vec::with_capacity(samples.samples as usize);
    for _ in 0..samples.samples {
        comm.barrier()?;
        times.push(timed(calls)?.as_secs_f64() / calls as f64);
    }
    comm.all_reduce(&mut times, ReduceOp::Max)?;
    Ok(times)
}

/// Returns the number of calls of a sample, which rank 0 determines.
fn agree_on_calls(comm: &Comm, sample_min: Duration, timed: &mut TimedCalls<'_>) -> comm::Result<u64> {
    let mut calls = 1;
    loop {
        comm.barrier()?;
        let elapsed = timed(calls)?;
        let mut next = [if comm.rank() == 0 { more_calls(calls, elapsed, sample_min) } else { 0 }];
        comm.broadcast(0, &mut next)?;
        if next == [calls] {
            return Ok(calls);
        }
        [calls] = next;
    }
}

/// Returns `calls` if they took long enough, and otherwise a larger number.
fn more_calls(calls: u64, elapsed: Duration, sample_min: Duration) -> u64 {
    if elapsed >= sample_min || calls >= CALLS_MAX {
        return calls;
    }
    // Aims 10 % higher, so that the second try is rarely too short.
    let needed = 1.1 * calls as f64 * sample_min.as_secs_f64() / elapsed.as_secs_f64().max(1e-9);
    (needed.ceil() as u64).clamp(calls + 1, calls * GROWTH_MAX).min(CALLS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: Duration = Duration::from_millis(20);

    #[test]
    fn the_number_of_calls_is_kept_if_they_took_long_enough() {
        assert_eq!(more_calls(7, LEAST, LEAST), 7);
        assert_eq!(more_calls(1, Duration::ZERO, Duration::ZERO), 1);
        assert_eq!(more_calls(CALLS_MAX, Duration::from_millis(1), LEAST), CALLS_MAX);
    }

    #[test]
    fn the_number_of_calls_grows_step_by_step() {
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
