//! The command line of a measurement, and how its values are read.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{ArgAction, Args, ValueEnum};
use comm::{DType, ReduceOp};

use super::operation::{Operation, Place};

/// Measure a collective, or what messages cost
#[derive(Debug, Clone, Args)]
#[command(
    override_usage = "commctl perf COLLECTIVE [-n N] [OPTIONS]\n       commctl perf --calibrate [-n N] [OPTIONS]",
    after_help = "\
Starts the ranks on this machine, or is one of them where a launcher has said so. Rank 0 prints.

Sizes are those of nccl-tests. all_reduce, reduce, broadcast, scan, exscan: the buffer of one rank. all_gather, gather: the whole \
result, one block per rank. reduce_scatter, scatter: all that is scattered. all_to_all: all that one rank sends. They are \
rounded down to whole elements, and up to one element per block. SIZE takes K, M and G (powers of 1024).

A sample is the time of several calls in a row, divided by their number, on the slowest rank; calls overlap where some ranks only \
send. time is the median of the samples, \
between which p10, p90 and p99 interpolate. algbw is size divided by time, busbw is that times what the busiest port has to carry \
of it: 2(n-1)/n in an all_reduce, 1 in reduce, broadcast and scans, (n-1)/n in the others. Both are in GB/s, 10^9 bytes per second.

send_recv measures messages between rank 0 and the last, as three tables. In send_recv_latency, time is half of that of a message \
there and back. In send_recv_bandwidth, rank 0 sends a window of up to 64 messages in the background and hears when all \
have come; time is that of a window divided by their number. In send_recv_bidirectional both do so at once, and busbw counts both directions.

Exit status: 0; 1 if something failed or an element was wrong; 2 if the command line makes no sense.

Examples:
  commctl perf all_reduce -n 4 --min 4 --max 64M --check
  commctl perf all_gather -n 8 --json --svg all_gather.svg
  commctl perf --calibrate -n 4 --out links && COMM_LINKS=@links commctl perf all_reduce -n 4"
)]
pub(crate) struct Perf {
    /// What to measure
    #[arg(value_name = "COLLECTIVE", required_unless_present = "calibrate")]
    pub(crate) operation: Option<Subject>,

    /// Number of ranks to start [default: the number of cores, at least 2]
    #[arg(short = 'n', long = "ranks", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) ranks: Option<u32>,

    /// How ranks reach each other, auto being shared memory within a host and TCP between hosts;
    /// without it, as COMM_TRANSPORT says, or auto
    #[arg(long, value_enum)]
    pub(crate) transport: Option<Transport>,

    #[command(flatten)]
    pub(crate) sizes: Sizes,

    #[command(flatten)]
    pub(crate) samples: Samples,

    #[command(flatten)]
    pub(crate) call: Call,

    #[command(flatten)]
    pub(crate) output: Output,

    #[command(flatten)]
    pub(crate) calibrate: Calibrate,
}

/// What can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Subject {
    Collective(Operation),
    /// Messages between two ranks.
    SendRecv,
}

impl ValueEnum for Subject {
    fn value_variants<'a>() -> &'a [Self] {
        const ALL: [Subject; 12] = {
            let mut all = [Subject::SendRecv; 12];
            let mut at = 0;
            while at < Operation::ALL.len() {
                all[at] = Subject::Collective(Operation::ALL[at]);
                at += 1;
            }
            all
        };
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        match self {
            Self::Collective(operation) => operation.to_possible_value(),
            Self::SendRecv => Some(PossibleValue::new("send_recv")),
        }
    }
}

/// Which sizes are measured.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Sizes {
    /// The smallest size in bytes [default: 4]
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub(crate) min: Option<usize>,

    /// The largest size in bytes [default: 256M; 16M with --calibrate]
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub(crate) max: Option<usize>,

    /// By how much the next size is larger [default: 4; 8 with --calibrate]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    pub(crate) factor: Option<u32>,
}

/// How often is measured.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Samples {
    /// How many samples are taken of each size
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) samples: u32,

    /// How many calls go before them, uncounted
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub(crate) warmup: u32,

    /// How long a sample lasts at least, in milliseconds
    #[arg(long, value_name = "MS", default_value = "20", value_parser = millis)]
    pub(crate) sample_ms: Duration,
}

/// What is called.
#[derive(Debug, Clone, Args)]
pub(crate) struct Call {
    /// The type of the elements
    #[arg(long, default_value = "f32", value_parser = dtypes(), conflicts_with = "calibrate")]
    pub(crate) dtype: DType,

    /// How contributions are combined [default: sum]
    #[arg(long, value_parser = operators(), conflicts_with = "calibrate")]
    pub(crate) op: Option<ReduceOp>,

    /// The root of a rooted collective [default: 0]
    #[arg(long, value_name = "RANK", conflicts_with = "calibrate")]
    pub(crate) root: Option<usize>,

    /// The algorithm to use, instead of the one that is chosen
    #[arg(long, value_name = "NAME", conflicts_with = "calibrate")]
    pub(crate) algorithm: Option<String>,

    /// Contribution and result in one buffer: the default of all_reduce, reduce and scans
    #[arg(long, conflicts_with_all = ["out_of_place", "calibrate"])]
    in_place: bool,

    /// Contribution and result in two buffers: the default of the others
    #[arg(long, conflicts_with = "calibrate")]
    out_of_place: bool,

    /// Buffers from the communicator, which ranks of one host may read in place
    #[arg(long, conflicts_with = "calibrate")]
    pub(crate) alloc: bool,

    /// Compare every element of the result with what it must be, bit by bit
    #[arg(long, conflicts_with = "calibrate")]
    pub(crate) check: bool,
}

impl Call {
    /// The usual call, by this algorithm.
    pub(crate) fn forced(algorithm: &str) -> Self {
        Self {
            dtype: DType::F32,
            op: None,
            root: None,
            algorithm: Some(algorithm.to_owned()),
            in_place: false,
            out_of_place: false,
            alloc: false,
            check: false,
        }
    }

    /// The first option that says something of a collective.
    pub(crate) fn of_a_collective(&self) -> Option<&'static str> {
        let given = [
            (self.dtype != DType::F32, "--dtype"),
            (self.op.is_some(), "--op"),
            (self.root.is_some(), "--root"),
            (self.algorithm.is_some(), "--algorithm"),
            (self.in_place, "--in-place"),
            (self.out_of_place, "--out-of-place"),
        ];
        given.into_iter().find_map(|(given, name)| given.then_some(name))
    }

    pub(crate) const fn place(&self) -> Option<Place> {
        match (self.in_place, self.out_of_place) {
            (true, _) => Some(Place::In),
            (_, true) => Some(Place::Out),
            _ => None,
        }
    }
}

/// What is said of it.
#[derive(Debug, Clone, Args)]
pub(crate) struct Output {
    /// Print one JSON object per line
    #[arg(long, conflicts_with_all = ["csv", "calibrate"])]
    json: bool,

    /// Print comma-separated values
    #[arg(long, conflicts_with = "calibrate")]
    csv: bool,

    /// Draw time and bandwidth over size
    #[arg(long, value_name = "FILE", conflicts_with = "calibrate")]
    pub(crate) svg: Option<PathBuf>,
}

/// How rows are printed.
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

/// Measuring the model of the links.
#[derive(Debug, Clone, Args)]
pub(crate) struct Calibrate {
    /// Measure what messages cost, by which algorithms are chosen; the last line printed is for
    /// COMM_LINKS
    #[arg(long, action = ArgAction::SetTrue, conflicts_with = "operation")]
    pub(crate) calibrate: bool,

    /// Write the model into a file, for COMM_LINKS=@FILE
    #[arg(long, value_name = "FILE", requires = "calibrate", conflicts_with = "operation")]
    pub(crate) out: Option<PathBuf>,

    /// Write a page of predicted and measured times, and a picture next to it; in an existing page,
    /// what stands between the lines <!-- measured --> and <!-- /measured --> is replaced
    #[arg(long, value_name = "FILE.md", requires = "calibrate", conflicts_with = "operation")]
    pub(crate) report: Option<PathBuf>,
}

/// How ranks reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Transport {
    Auto,
    Tcp,
    Shm,
}

fn dtypes() -> impl TypedValueParser<Value = DType> {
    // Results are summed for the checks, which the host does not do with floats of 8 bits.
    let measured = DType::ALL.into_iter().filter(|dtype| !dtype.is_float8());
    PossibleValuesParser::new(measured.map(DType::name))
        .try_map(|name| DType::ALL.into_iter().find(|dtype| dtype.name() == name).ok_or("unknown type"))
}

fn operators() -> impl TypedValueParser<Value = ReduceOp> {
    PossibleValuesParser::new(ReduceOp::ALL.map(ReduceOp::name))
        .try_map(|name| ReduceOp::ALL.into_iter().find(|op| op.name() == name).ok_or("unknown operator"))
}

/// As in 512, 4K, 256M.
fn bytes(text: &str) -> Result<usize, String> {
    let shift = match text.chars().last() {
        Some('k' | 'K') => 10,
        Some('m' | 'M') => 20,
        Some('g' | 'G') => 30,
        _ => 0,
    };
    let digits = if shift == 0 { text } else { text.get(..text.len() - 1).unwrap_or_default() };
    let number: usize = digits.parse().map_err(|_| "expected a number of bytes, as in 512, 4K or 256M")?;
    match number.checked_mul(1 << shift) {
        Some(0) => Err("a size is at least 1".into()),
        Some(bytes) if isize::try_from(bytes).is_ok() => Ok(bytes),
        _ => Err("no memory is that large".into()),
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
    fn sizes_have_units() {
        assert_eq!(bytes("512"), Ok(512));
        assert_eq!(bytes("4K"), Ok(4096));
        assert_eq!(bytes("256m"), Ok(256 << 20));
        assert_eq!(bytes("1G"), Ok(1 << 30));
        for nonsense in
            ["", "K", "0", "-1", "4KB", "4 K", "1e3", "99999999999999999999", "17179869184G", "4\u{e9}"]
        {
            assert!(bytes(nonsense).is_err(), "{nonsense}");
        }
    }

    #[test]
    fn a_sample_may_be_short_but_not_negative() {
        assert_eq!(millis("0"), Ok(Duration::ZERO));
        assert_eq!(millis("0.5"), Ok(Duration::from_micros(500)));
        assert!(millis("-1").is_err() && millis("NaN").is_err() && millis("soon").is_err());
    }
}
