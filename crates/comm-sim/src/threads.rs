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
    run_jobs(parts, &body, run_threads)
}

/// Like [`run_each`], but `run` runs the jobs, and the code is the same for all closures, although
/// each is a type of its own.
pub(crate) fn run_jobs<P: Send, T: Send>(
    parts: Vec<P>,
    body: &(dyn Fn(P) -> T + Sync),
    run: impl FnOnce(Vec<Job<'_>>) -> Vec<thread::Result<()>>,
) -> Vec<T> {
    let mut results: Vec<Option<T>> = parts.iter().map(|_| None).collect();
    let mut jobs: Vec<Job<'_>> = Vec::with_capacity(parts.len());
    for (part, result) in parts.into_iter().zip(&mut results) {
        jobs.push(Box::new(move || *result = Some(body(part))));
    }
    check_panics(&run(jobs));
    results.into_iter().flatten().collect()
}

/// The work of a rank, with its part.
pub(crate) type Job<'a> = Box<dyn FnOnce() + Send + 'a>;

/// Runs each job on a thread of its own.
fn run_threads(jobs: Vec<Job<'_>>) -> Vec<thread::Result<()>> {
    thread::scope(|scope| {
        let start =
            |(rank, job)| thread::Builder::new().name(format!("rank {rank}")).spawn_scoped(scope, job);
        let threads: Vec<_> = jobs.into_iter().enumerate().map(start).collect();
        threads.into_iter().map(join).collect()
    })
}

/// Panics if a rank did, with a message that names it.
fn check_panics(outcomes: &[thread::Result<()>]) {
    let named = |(rank, outcome): (usize, &thread::Result<()>)| {
        Some(format!("rank {rank}: {}", message(outcome.as_ref().err()?)))
    };
    let panics: Vec<String> = outcomes.iter().enumerate().filter_map(named).collect();
    if !panics.is_empty() {
        resume_unwind(Box::new(format!("panicked: {}", panics.join("; "))));
    }
}

fn join(started: std::io::Result<thread::ScopedJoinHandle<'_, ()>>) -> thread::Result<()> {
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
