//! The command line of `commctl perf`.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgAction, Args};
use comm::{Collective, DType, ReduceOp, TransportKind};
use comm_cli::__private::units;
use comm_cli::launch::BindTo;

use super::plan::Layout;
use crate::collective::measurable;

/// Measure a collective, or messages between two ranks
#[derive(Debug, Clone, Args)]
#[command(
    override_usage = "commctl perf COLLECTIVE [-n N] [OPTIONS]\n       commctl perf --calibrate [-n N] [OPTIONS]",
    after_help = "\
Starts the ranks on this machine, unless a launcher has started this process as one of them, and binds each to its own cores, as \
the launcher of Intel MPI does; if there are more ranks than cores, to one core in turn. Rank 0 prints the results. The ranks have \
no secret unless COMM_SECRET is set; this variable, COMM_CHECKSUM and COMM_TLS protect TCP connections, at a cost that can be measured.

Sizes are counted as in nccl-tests. all_reduce, reduce, broadcast, scan, exscan: the buffer of one rank. all_gather, gather: the \
result, one block per rank. reduce_scatter, scatter: the data before it is scattered. all_to_all: the data that one rank sends. \
Sizes are rounded down to whole elements, and up to one element per block. SIZE takes K, M, G and T (powers of 1024).

Before the first size, all ranks make barriers for 0.4 s, in which the scheduler spreads them over the processors. A sample is \
the average time of consecutive calls on the slowest rank; calls overlap if some ranks only send. time is the median \
of the samples; p10, p90 and p99 are interpolated. algbw is size divided by time. busbw is algbw times the share of the data that \
the busiest port carries: 2(n-1)/n for all_reduce, 1 for reduce, broadcast and scans, (n-1)/n for the others. Both are in GB/s \
(10^9 bytes per second).

send_recv measures messages between rank 0 and the last rank, in three tables. send_recv_latency: half the time of a round trip. \
send_recv_bandwidth: rank 0 sends a window of up to 64 messages in the background and receives an acknowledgement; time is that of \
a window divided by the number of messages. send_recv_bidirectional: both ranks do so at once, and busbw counts both directions.

Exit status: 0; 1 if a call failed or an element was wrong; 2 for invalid arguments.

Examples:
  commctl perf all_reduce -n 4 --min 4 --max 64M --check
  commctl perf all_gather -n 8 --json --svg all_gather.svg
  commctl perf --calibrate -n 4 --out links && COMM_LINKS=@links commctl perf all_reduce -n 4"
)]
pub(crate) struct Perf {
    /// Collective to measure, or send_recv
    #[arg(value_name = "COLLECTIVE", required_unless_present = "calibrate", value_parser = benchmarks())]
    pub(crate) benchmark: Option<Benchmark>,

    /// Number of ranks to start [default: the number of cores, at least 2]
    #[arg(short = 'n', long = "ranks", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) ranks: Option<u32>,

    /// Transport between the ranks; auto uses shared memory within a host and TCP between hosts
    /// [default: COMM_TRANSPORT, or auto]
    #[arg(long, value_parser = transports())]
    pub(crate) transport: Option<TransportKind>,

    /// Bind each rank that this command starts, as commctl run --bind-to does [default: core, where
    /// the system tells its cores]
    #[arg(long, value_name = "core|numa|none")]
    pub(crate) bind_to: Option<BindTo>,

    #[command(flatten)]
    pub(crate) sizes: Sizes,

    #[command(flatten)]
    pub(crate) samples: Samples,

    #[command(flatten)]
    pub(crate) call: CallArgs,

    #[command(flatten)]
    pub(crate) output: Output,

    #[command(flatten)]
    pub(crate) calibrate: Calibrate,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Benchmark {
    Collective(Collective),
    /// Messages between two ranks.
    SendRecv,
}

fn benchmarks() -> impl TypedValueParser<Value = Benchmark> {
    let names = measurable().map(Collective::name).chain(["send_recv"]);
    PossibleValuesParser::new(names).map(|name| {
        let collective = measurable().find(|collective| collective.name() == name);
        collective.map_or(Benchmark::SendRecv, Benchmark::Collective)
    })
}

/// The sizes to measure.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Sizes {
    /// The smallest size in bytes [default: 4]
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub(crate) min: Option<usize>,

    /// The largest size in bytes [default: 256M; 16M with --calibrate]
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub(crate) max: Option<usize>,

    /// Factor between consecutive sizes [default: 4; 8 with --calibrate]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    pub(crate) factor: Option<u32>,
}

/// The number and length of samples.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Samples {
    /// Number of samples per size
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) samples: u32,

    /// Number of calls before the first sample
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub(crate) warmup: u32,

    /// Minimum duration of a sample in milliseconds
    #[arg(long, value_name = "MS", default_value = "20", value_parser = millis)]
    pub(crate) sample_ms: Duration,
}

/// The arguments of the measured call.
#[derive(Debug, Clone, Args)]
pub(crate) struct CallArgs {
    /// Element type
    #[arg(long, default_value = "f32", value_parser = dtypes(), conflicts_with = "calibrate")]
    pub(crate) dtype: DType,

    /// Reduction operator [default: sum]
    #[arg(long, value_parser = operators(), conflicts_with = "calibrate")]
    pub(crate) op: Option<ReduceOp>,

    /// Root of the collective [default: 0]
    #[arg(long, value_name = "RANK", conflicts_with = "calibrate")]
    pub(crate) root: Option<usize>,

    /// Use this algorithm instead of the selected one
    #[arg(long, value_name = "NAME", conflicts_with = "calibrate")]
    pub(crate) algorithm: Option<String>,

    /// Use one buffer for input and output: the default of all_reduce, reduce and scans
    #[arg(long, conflicts_with_all = ["out_of_place", "calibrate"])]
    in_place: bool,

    /// Use separate send and receive buffers: the default of all other collectives
    #[arg(long, conflicts_with = "calibrate")]
    out_of_place: bool,

    /// Allocate buffers from the communicator, so that ranks of one host can read them in place
    #[arg(long, conflicts_with = "calibrate")]
    pub(crate) alloc: bool,

    /// Use another copy of the buffers in each call, as many as have this size together, at most
    /// 1024, and write to each of them, outside the measured time, after its call: with more than
    /// the last-level cache holds, calls read from memory, as in a training step
    #[arg(long, value_name = "SIZE", value_parser = bytes, conflicts_with = "calibrate")]
    pub(crate) rotate: Option<usize>,

    /// Compare every element of the result with the expected value, bit for bit
    #[arg(long, conflicts_with = "calibrate")]
    pub(crate) check: bool,
}

impl CallArgs {
    pub(crate) fn forced(algorithm: &str) -> Self {
        Self {
            dtype: DType::F32,
            op: None,
            root: None,
            algorithm: Some(algorithm.to_owned()),
            in_place: false,
            out_of_place: false,
            alloc: false,
            rotate: None,
            check: false,
        }
    }

    /// Returns the first given option that only collectives have.
    pub(crate) fn collective_option(&self) -> Option<&'static str> {
        let given = [
            (self.dtype != DType::F32, "--dtype"),
            (self.op.is_some(), "--op"),
            (self.root.is_some(), "--root"),
            (self.algorithm.is_some(), "--algorithm"),
            (self.in_place, "--in-place"),
            (self.out_of_place, "--out-of-place"),
            (self.rotate.is_some(), "--rotate"),
        ];
        given.into_iter().find_map(|(given, name)| given.then_some(name))
    }

    pub(crate) const fn layout(&self) -> Option<Layout> {
        match (self.in_place, self.out_of_place) {
            (true, _) => Some(Layout::InPlace),
            (_, true) => Some(Layout::OutOfPlace),
            _ => None,
        }
    }
}

/// The format of the results.
#[derive(Debug, Clone, Args)]
pub(crate) struct Output {
    /// Print one JSON object per line
    #[arg(long, conflicts_with_all = ["csv", "calibrate"])]
    json: bool,

    /// Print comma-separated values
    #[arg(long, conflicts_with = "calibrate")]
    csv: bool,

    /// Plot time and bandwidth over size
    #[arg(long, value_name = "FILE", conflicts_with = "calibrate")]
    pub(crate) svg: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Table,
    Json,
    Csv,
}

impl Output {
    pub(crate) const fn format(&self) -> Format {
        match (self.json, self.csv) {
            (true, _) => Format::Json,
            (_, true) => Format::Csv,
            _ => Format::Table,
        }
    }
}

/// Options that calibrate the link model.
#[derive(Debug, Clone, Args)]
pub(crate) struct Calibrate {
    /// Measure the link model that selects algorithms; the last line is a value of COMM_LINKS
    #[arg(long, action = ArgAction::SetTrue, conflicts_with = "benchmark")]
    pub(crate) calibrate: bool,

    /// Write the model into a file, for COMM_LINKS=@FILE
    #[arg(long, value_name = "FILE", requires = "calibrate", conflicts_with = "benchmark")]
    pub(crate) out: Option<PathBuf>,

    /// Write a page of predicted and measured times, and a plot next to it; in an existing page,
    /// the text between the lines <!-- measured --> and <!-- /measured --> is replaced
    #[arg(long, value_name = "FILE.md", requires = "calibrate", conflicts_with = "benchmark")]
    pub(crate) report: Option<PathBuf>,
}

fn transports() -> impl TypedValueParser<Value = TransportKind> {
    PossibleValuesParser::new(["auto", "tcp", "shm"]).map(|name| match name.as_str() {
        "tcp" => TransportKind::Tcp,
        "shm" => TransportKind::SharedMemory,
        _ => TransportKind::Auto,
    })
}

fn dtypes() -> impl TypedValueParser<Value = DType> {
    // The host does not reduce 8-bit floats.
    let measured = DType::ALL.into_iter().filter(|dtype| !dtype.is_float8());
    PossibleValuesParser::new(measured.map(DType::name))
        .try_map(|name| DType::ALL.into_iter().find(|dtype| dtype.name() == name).ok_or("unknown type"))
}

fn operators() -> impl TypedValueParser<Value = ReduceOp> {
    PossibleValuesParser::new(ReduceOp::ALL.map(ReduceOp::name))
        .try_map(|name| ReduceOp::ALL.into_iter().find(|op| op.name() == name).ok_or("unknown operator"))
}

fn bytes(text: &str) -> Result<usize, String> {
    match units::parse(text)? {
        0 => Err("a size must be at least 1".into()),
        bytes if isize::try_from(bytes).is_ok() => Ok(bytes),
        _ => Err("too large for the memory of any machine".into()),
    }
}

fn millis(text: &str) -> Result<Duration, String> {
    let millis: f64 = text.parse().map_err(|error| format!("{error}"))?;
    Duration::try_from_secs_f64(millis / 1e3).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_positive_and_addressable() {
        assert_eq!(bytes("4K"), Ok(4096));
        for invalid in ["", "K", "0", "-1", "4KB", "99999999999999999999", "17179869184G", "4\u{e9}"] {
            assert!(bytes(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn the_duration_of_a_sample_is_not_negative() {
        assert_eq!(millis("0"), Ok(Duration::ZERO));
        assert_eq!(millis("0.5"), Ok(Duration::from_micros(500)));
        assert!(millis("-1").is_err() && millis("NaN").is_err() && millis("soon").is_err());
    }
}
