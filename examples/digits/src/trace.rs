//! Writes timelines of all ranks as a trace for <https://ui.perfetto.dev> or `chrome://tracing`.
//!
//! The file is JSON in Chrome's Trace Event Format: one process per rank, with a row for training
//! and a row for communication. Each rank counts microseconds since it left a common barrier, so
//! the clocks of ranks differ by at most the time that ranks take to leave a barrier.

use std::path::Path;
use std::time::Instant;
use std::{fs, iter};

use comm::Comm;
use comm::ddp::{BucketTimes, Timeline};
use serde_json::{Value, json};

use crate::error::{Error, Result};

/// The rows of a rank.
const TRAINING: u32 = 0;
const COMMUNICATION: u32 = 1;

/// Converts the timelines of one rank to events.
#[derive(Debug, Clone, Copy)]
pub struct Tracer {
    rank: usize,
    zero: Instant,
}

impl Tracer {
    /// Sets the origin of time. Collective: every rank calls it.
    ///
    /// # Errors
    /// If the ranks cannot communicate.
    pub fn start(comm: &Comm) -> Result<Self> {
        comm.barrier()?;
        Ok(Self { rank: comm.rank(), zero: Instant::now() })
    }

    /// Gathers the steps of all ranks and writes them on rank 0. Collective.
    ///
    /// # Errors
    /// If the ranks cannot communicate, or rank 0 cannot write.
    pub fn write(&self, comm: &Comm, path: &Path, steps: &[Timeline]) -> Result<()> {
        let all = gather_text(comm, &self.events(steps))?;
        if comm.rank() != 0 {
            return Ok(());
        }
        let failed =
            |error: std::io::Error| Error::Write { path: path.to_owned(), reason: error.to_string() };
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(failed)?;
        }
        fs::write(path, format!("{{\"traceEvents\":[\n{}\n]}}\n", all.join(",\n"))).map_err(failed)
    }

    /// Returns the events of this rank, one per line, separated by commas.
    fn events(&self, steps: &[Timeline]) -> String {
        let names = [
            self.name("process_name", TRAINING, &format!("rank {}", self.rank)),
            self.name("thread_name", TRAINING, "training"),
            self.name("thread_name", COMMUNICATION, "communication"),
        ];
        let events = steps.iter().enumerate().flat_map(|(number, step)| self.step(number, step));
        let lines: Vec<String> = names.into_iter().chain(events).map(|event| event.to_string()).collect();
        lines.join(",\n")
    }

    fn name(&self, what: &str, row: u32, name: &str) -> Value {
        json!({ "ph": "M", "name": what, "pid": self.rank, "tid": row, "args": { "name": name } })
    }

    fn step(&self, number: usize, step: &Timeline) -> impl Iterator<Item = Value> {
        let args = json!({ "step": number });
        let backward = self.span(TRAINING, "forward and backward", (step.began, step.backward_ended), &args);
        let wait = self.span(TRAINING, "wait for gradients", (step.backward_ended, step.finished), &args);
        let buckets = step.buckets.iter().enumerate();
        let buckets = buckets.map(move |(bucket, times)| self.bucket(number, step, (bucket, times)));
        iter::once(backward).chain(buckets).chain([wait])
    }

    fn bucket(&self, number: usize, step: &Timeline, (bucket, times): (usize, &BucketTimes)) -> Value {
        let args = json!({
            "step": number,
            "bytes": times.bytes,
            "filled_us": self.micros(times.filled),
            "launched_us": self.micros(times.launched),
            "began_before_backward_ended": times.started < step.backward_ended,
        });
        self.span(COMMUNICATION, &format!("bucket {bucket}"), (times.started, times.completed), &args)
    }

    fn span(&self, row: u32, name: &str, (from, to): (Instant, Instant), args: &Value) -> Value {
        let (start, end) = (self.micros(from), self.micros(to));
        json!({
            "ph": "X", "name": name, "pid": self.rank, "tid": row, "ts": start, "dur": end - start, "args": args,
        })
    }

    /// Returns the microseconds since the origin, with the precision of nanoseconds.
    fn micros(&self, instant: Instant) -> f64 {
        instant.saturating_duration_since(self.zero).as_nanos() as f64 / 1e3
    }
}

/// Returns the texts of all ranks in rank order.
fn gather_text(comm: &Comm, text: &str) -> Result<Vec<String>> {
    let mut lengths = vec![0_u64; comm.size()];
    comm.all_gather(&[text.len() as u64], &mut lengths)?;
    let longest = lengths.iter().copied().max().unwrap_or(0) as usize;
    let mut own = text.as_bytes().to_vec();
    own.resize(longest, 0);
    let mut all = vec![0_u8; longest * comm.size()];
    comm.all_gather(&own, &mut all)?;
    let part = |(rank, &len): (usize, &u64)| {
        String::from_utf8_lossy(&all[rank * longest..][..len as usize]).into_owned()
    };
    Ok(lengths.iter().enumerate().map(part).collect())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn events_are_json_with_rows_and_spans() {
        let zero = Instant::now();
        let at = |micros| zero + Duration::from_micros(micros);
        let mut bucket = BucketTimes::new(40, at(12));
        (bucket.launched, bucket.started, bucket.completed) = (at(13), at(14), at(30));
        let mut step = Timeline::new(at(10));
        (step.backward_ended, step.finished) = (at(20), at(35));
        step.buckets.push(bucket);
        let text = Tracer { rank: 3, zero }.events(&[step]);
        let events: Vec<Value> = serde_json::from_str(&format!("[{text}]")).unwrap();
        assert_eq!(events.len(), 3 + 3);
        assert!(events.iter().all(|event| event["pid"] == 3));
        let bucket = &events[4];
        assert_eq!((&bucket["ph"], &bucket["tid"]), (&json!("X"), &json!(COMMUNICATION)));
        assert_eq!((&bucket["ts"], &bucket["dur"]), (&json!(14.0), &json!(16.0)));
        assert_eq!(bucket["args"]["began_before_backward_ended"], true);
        assert_eq!(events[5]["name"], "wait for gradients");
    }
}
