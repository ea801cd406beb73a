//! The counters of communicators in the text format of Prometheus.
//!
//! [`Comm::metrics`](crate::Comm::metrics) returns the counters of a communicator. [`prometheus`]
//! writes them as text, which a program can serve at an address that Prometheus scrapes, or write
//! to a file for the textfile collector of its node exporter.
//!
#![cfg_attr(feature = "sim", doc = "```")]
#![cfg_attr(not(feature = "sim"), doc = "```ignore")]
//! use comm::metrics::prometheus;
//!
//! let texts = comm::threads::run(2, |comm| {
//!     comm.barrier().unwrap();
//!     prometheus(&[comm.metrics().unwrap()])
//! })?;
//! let line = "comm_call_duration_seconds_count{rank=\"1\",group=\"0\",collective=\"barrier\",";
//! assert!(texts[1].contains(line));
//! # Ok::<_, comm::Error>(())
//! ```

#[cfg(test)]
mod tests;

use std::fmt::{self, Write};

use comm_core::{CallMetrics, DurationHistogram, Metrics};

/// A kind of time series.
struct Family {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
}

const DURATION: Family = Family {
    name: "comm_call_duration_seconds",
    kind: "histogram",
    help: "Durations of completed collectives.",
};
const BYTES: Family = Family {
    name: "comm_call_bytes_total",
    kind: "counter",
    help: "Bytes of completed collectives, as nccl-tests counts them.",
};
const WAIT: Family = Family {
    name: "comm_wait_seconds_total",
    kind: "counter",
    help: "Time that collectives slept until another rank sent or received.",
};
const FAILURES: Family =
    Family { name: "comm_failures_total", kind: "counter", help: "Fatal errors of the communicator." };

/// Returns the counters of communicators in Prometheus' text exposition format 0.0.4. Each
/// communicator may be listed once.
///
/// The label `rank` is the rank in the world, `group` the id of the group in hexadecimal (0 for the
/// world), and `peer` the rank in the world of the member that was waited for.
#[must_use]
pub fn prometheus(metrics: &[Metrics]) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write_all(&mut text, metrics);
    text
}

fn write_all(out: &mut String, all: &[Metrics]) -> fmt::Result {
    DURATION.write_header(out)?;
    for (metrics, calls) in by_call(all) {
        write_histogram(out, &call_labels(metrics, calls), calls)?;
    }
    BYTES.write_header(out)?;
    for (metrics, calls) in by_call(all) {
        writeln!(out, "{}{{{}}} {}", BYTES.name, call_labels(metrics, calls), calls.bytes)?;
    }
    WAIT.write_header(out)?;
    for metrics in all {
        for (peer, time) in metrics.members.iter().zip(&metrics.waited_for) {
            let labels = labels(metrics);
            writeln!(out, "{}{{{labels},peer=\"{peer}\"}} {}", WAIT.name, time.as_secs_f64())?;
        }
    }
    FAILURES.write_header(out)?;
    for metrics in all {
        writeln!(out, "{}{{{}}} {}", FAILURES.name, labels(metrics), metrics.failures)?;
    }
    Ok(())
}

impl Family {
    fn write_header(&self, out: &mut String) -> fmt::Result {
        let Self { name, kind, help } = self;
        write!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n")
    }
}

fn by_call(all: &[Metrics]) -> impl Iterator<Item = (&Metrics, &CallMetrics)> {
    all.iter().flat_map(|metrics| metrics.calls.iter().map(move |calls| (metrics, calls)))
}

fn labels(metrics: &Metrics) -> String {
    format!("rank=\"{}\",group=\"{:x}\"", metrics.world_rank(), metrics.group.id().0)
}

/// Returns the labels of calls. Names of collectives and algorithms contain no character that must
/// be escaped.
fn call_labels(metrics: &Metrics, calls: &CallMetrics) -> String {
    let (collective, algorithm) = (calls.collective.name(), &calls.algorithm);
    format!("{},collective=\"{collective}\",algorithm=\"{algorithm}\"", labels(metrics))
}

fn write_histogram(out: &mut String, labels: &str, calls: &CallMetrics) -> fmt::Result {
    let name = DURATION.name;
    let mut below = 0;
    for (bucket, count) in calls.durations.counts().iter().enumerate() {
        below += count;
        let bound = DurationHistogram::bound(bucket)
            .map_or_else(|| "+Inf".to_owned(), |bound| bound.as_secs_f64().to_string());
        writeln!(out, "{name}_bucket{{{labels},le=\"{bound}\"}} {below}")?;
    }
    writeln!(out, "{name}_sum{{{labels}}} {}", calls.time.as_secs_f64())?;
    writeln!(out, "{name}_count{{{labels}}} {below}")
}
