//! One thread per rank.

use std::any::Any;
use std::panic::resume_unwind;
use std::thread;

use super::{InProcessConfig, InProcessLanes};

/// Runs `rank` on a thread per rank, each with its lanes, and returns the results in rank order.
///
/// # Panics
/// If a rank panics, once every rank has ended, with a message that names the ranks. A rank that panics drops its
/// lanes, so that the others see it die.
pub fn run<T, F>(n: usize, config: &InProcessConfig, rank: F) -> Vec<T>
where
    T: Send,
    F: Fn(InProcessLanes) -> T + Sync,
{
    let outcomes: Vec<thread::Result<T>> = thread::scope(|scope| {
        let lanes = InProcessLanes::with_config(n, config);
        let threads: Vec<_> = lanes
            .into_iter()
            .enumerate()
            .map(|(at, lanes)| {
                let rank = &rank;
                thread::Builder::new().name(format!("rank {at}")).spawn_scoped(scope, move || rank(lanes))
            })
            .collect();
        let join = |started: std::io::Result<thread::ScopedJoinHandle<'_, T>>| match started {
            Ok(thread) => thread.join(),
            Err(error) => {
                Err(Box::new(format!("no thread could be started: {error}")) as Box<dyn Any + Send>)
            }
        };
        threads.into_iter().map(join).collect()
    });
    let panics: Vec<String> = outcomes
        .iter()
        .enumerate()
        .filter_map(|(rank, outcome)| Some(format!("rank {rank}: {}", message(outcome.as_ref().err()?))))
        .collect();
    if !panics.is_empty() {
        resume_unwind(Box::new(format!("panicked: {}", panics.join("; "))));
    }
    outcomes.into_iter().filter_map(Result::ok).collect()
}

/// What a panic said.
fn message(panic: &Box<dyn Any + Send>) -> &str {
    if let Some(text) = panic.downcast_ref::<&str>() {
        text
    } else if let Some(text) = panic.downcast_ref::<String>() {
        text
    } else {
        "no message"
    }
}

#[cfg(test)]
mod tests {
    use comm_core::Lanes;

    use super::*;

    #[test]
    fn results_come_in_rank_order() {
        let ranks = run(5, &InProcessConfig::default(), |lanes| lanes.group().rank());
        assert_eq!(ranks, [0, 1, 2, 3, 4]);
    }

    #[test]
    #[should_panic(expected = "rank 2: I am 2")]
    fn a_panic_names_its_rank() {
        run(3, &InProcessConfig::default(), |lanes| assert!(lanes.group().rank() != 2, "I am 2"));
    }
}
