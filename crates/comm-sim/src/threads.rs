//! One thread per rank.

use std::any::Any;
use std::panic::resume_unwind;
use std::thread;

/// Runs `body` on a thread per rank, each with its element of `parts`, and returns the results in
/// rank order.
///
/// # Panics
/// If a rank panics: after every rank has ended, with a message that names the ranks that panicked.
/// A rank that panics drops its part, so that the others detect its death through their channels.
pub fn run_each<P, T, F>(parts: Vec<P>, body: F) -> Vec<T>
where
    P: Send,
    T: Send,
    F: Fn(P) -> T + Sync,
{
    let outcomes: Vec<thread::Result<T>> = thread::scope(|scope| {
        let start = |(rank, part)| {
            let body = &body;
            thread::Builder::new().name(format!("rank {rank}")).spawn_scoped(scope, move || body(part))
        };
        let threads: Vec<_> = parts.into_iter().enumerate().map(start).collect();
        threads.into_iter().map(join).collect()
    });
    let named = |(rank, outcome): (usize, &thread::Result<T>)| {
        Some(format!("rank {rank}: {}", message(outcome.as_ref().err()?)))
    };
    let panics: Vec<String> = outcomes.iter().enumerate().filter_map(named).collect();
    if !panics.is_empty() {
        resume_unwind(Box::new(format!("panicked: {}", panics.join("; "))));
    }
    outcomes.into_iter().filter_map(Result::ok).collect()
}

fn join<T>(started: std::io::Result<thread::ScopedJoinHandle<'_, T>>) -> thread::Result<T> {
    match started {
        Ok(thread) => thread.join(),
        Err(error) => Err(Box::new(format!("cannot start a thread: {error}"))),
    }
}

/// Returns the message of a panic.
pub(crate) fn message(panic: &Box<dyn Any + Send>) -> &str {
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
    use super::*;

    #[test]
    fn results_come_in_rank_order() {
        assert_eq!(run_each(vec![5, 6, 7], |part| part * 2), [10, 12, 14]);
    }

    #[test]
    #[should_panic(expected = "rank 2: I am 2")]
    fn a_panic_names_its_rank() {
        run_each((0..3).collect(), |rank: usize| assert!(rank != 2, "I am {rank}"));
    }
}
