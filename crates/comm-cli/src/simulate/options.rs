//! The command line of `commctl simulate`.

use std::path::PathBuf;

use clap::Args;
use clap::builder::TypedValueParser;
use comm::ring::choose::{CallShape, choose};
use comm::ring::schedule::Algorithm;
use comm::ring::{RingConfig, Tuning};
use comm::{Collective, Link, LinkModel};
use comm_cli::__private::units;

use crate::collective::parser;
use crate::error::{CliError, Result};

/// Predict the times of the algorithms of a collective on links of a given speed
#[derive(Debug, Args)]
#[command(after_help = "\
The command measures nothing and starts no ranks. It simulates the steps of all ranks with a model of the links. \
A message occupies its sender for the overhead, then the sender's outgoing and the receiver's incoming port for its bytes; \
it arrives after the latency alpha, and occupies the receiver for the overhead. Every rank has two ports.

Sizes are bytes, with K, M, G or T for powers of 1024. --bytes is the size as nccl-tests counts it: the buffer of a \
reduction or broadcast, the result of a gather, the data that one rank sends in an all-to-all. --gbps is in gigabits per \
second: 400 is 50 GB/s. algbw is bytes divided by time. busbw is algbw times the minimum share of the data that passes a \
port, to compare it with the speed of the link.

The column `bound` is the ratio of a lower bound to the time. The bound is one overhead, latency and overhead, and the \
time of the bytes that some port must carry (2(n-1)/n of the buffer for all_reduce, (n-1)/n for all_gather, \
reduce_scatter, all_to_all, gather and scatter, all of it for broadcast and reduce), or the ports of one host if that \
takes longer. It excludes reductions.

Times are simulated step by step, up to --max-steps, and otherwise computed by closed forms, most of which differ by less \
than a fifth on equal links. `*` marks the algorithm that a communicator with these links selects.

Example:
  commctl simulate all_reduce --ranks 1024 --bytes 256M --alpha-us 5 --gbps 400 --ranks-per-host 8 --local-gbps 3600")]
pub(crate) struct Simulate {
    /// The collective, such as all_reduce
    #[arg(value_name = "COLLECTIVE", value_parser = collectives())]
    collective: Collective,

    /// Number of ranks
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    ranks: u32,

    /// Size of the data
    #[arg(short = 'b', long, value_name = "SIZE", default_value = "1M", value_parser = units::parse)]
    bytes: usize,

    /// Latency between hosts in microseconds
    #[arg(long, value_name = "US", default_value = "5", value_parser = cost)]
    alpha_us: f64,

    /// Overhead of a message on its sender, and on its receiver, in microseconds
    #[arg(long, value_name = "US", default_value = "1", value_parser = cost)]
    overhead_us: f64,

    /// Bandwidth between hosts per port of a rank, in gigabits per second
    #[arg(long, value_name = "GBPS", default_value = "100", value_parser = speed)]
    gbps: f64,

    /// Number of consecutive ranks per host
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..))]
    ranks_per_host: u32,

    /// Latency within a host in microseconds [default: as between hosts]
    #[arg(long, value_name = "US", value_parser = cost)]
    local_alpha_us: Option<f64>,

    /// Overhead within a host in microseconds [default: as between hosts]
    #[arg(long, value_name = "US", value_parser = cost)]
    local_overhead_us: Option<f64>,

    /// Bandwidth within a host in gigabits per second [default: as between hosts]
    #[arg(long, value_name = "GBPS", value_parser = speed)]
    local_gbps: Option<f64>,

    /// Speed of reductions in gigabits of the result per second [default: infinite]
    #[arg(long, value_name = "GBPS", value_parser = speed)]
    reduce_gbps: Option<f64>,

    /// Predict only this algorithm; can be repeated
    #[arg(long = "algorithm", value_name = "NAME")]
    algorithms: Vec<String>,

    /// Size of pipelined segments
    #[arg(long, value_name = "SIZE", default_value = "256K", value_parser = nonzero_size)]
    segment: usize,

    /// Root of the collective, if it has one
    #[arg(long, value_name = "RANK", default_value_t = 0)]
    root: usize,

    /// Use closed forms for algorithms with more steps than this in total over all ranks
    #[arg(long, value_name = "N", default_value = "64M", value_parser = units::parse)]
    pub(super) max_steps: usize,

    /// Print one JSON object per line and algorithm
    #[arg(long)]
    pub(super) json: bool,

    /// Plot the predicted times for sizes from 4 bytes to 1 GiB into this SVG file
    #[arg(long, value_name = "FILE")]
    pub(super) svg: Option<PathBuf>,
}

/// A call and the links that it runs on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Setup {
    pub(super) shape: CallShape,
    pub(super) tuning: Tuning,
    pub(super) root: usize,
}

impl Simulate {
    pub(super) fn setup(&self) -> Result<Setup> {
        let ranks = self.ranks as usize;
        if self.root >= ranks {
            return Err(CliError::usage(format!(
                "--root {}: there are {ranks} ranks, numbered from 0",
                self.root
            )));
        }
        let bytes = if self.collective == Collective::Barrier { 0 } else { self.bytes };
        let mut config = RingConfig::default();
        config.segment_bytes = self.segment;
        let shape = CallShape::new(self.collective).ranks(ranks).bytes(bytes);
        Ok(Setup { shape, tuning: config.tuning(self.links()), root: self.root })
    }

    /// Returns the requested algorithms, in the order of the table.
    pub(super) fn algorithms(&self, setup: &Setup) -> Result<Vec<&'static Algorithm>> {
        for name in &self.algorithms {
            choose(&setup.shape, Some(name), &setup.tuning)?;
        }
        let wanted = |row: &&Algorithm| {
            self.algorithms.is_empty() || self.algorithms.iter().any(|name| name == row.name)
        };
        let can = |row: &&Algorithm| choose(&setup.shape, Some(row.name), &setup.tuning).is_ok();
        Ok(Algorithm::for_collective(self.collective).filter(wanted).filter(can).collect())
    }

    fn links(&self) -> LinkModel {
        let between = link(self.alpha_us, self.overhead_us, self.gbps);
        let within = link(
            self.local_alpha_us.unwrap_or(self.alpha_us),
            self.local_overhead_us.unwrap_or(self.overhead_us),
            self.local_gbps.unwrap_or(self.gbps),
        );
        let reduce = self.reduce_gbps.map_or(0.0, per_byte);
        let ranks_per_host = self.ranks_per_host as usize;
        LinkModel { within, ranks_per_host, ..LinkModel::uniform(between, reduce) }
    }
}

fn link(alpha_us: f64, overhead_us: f64, gbps: f64) -> Link {
    Link { latency: alpha_us * 1e-6, overhead: overhead_us * 1e-6, per_byte: per_byte(gbps) }
}

fn per_byte(gbps: f64) -> f64 {
    8.0 / (gbps * 1e9)
}

/// Returns a parser for the names of collectives, except calls that create a group.
fn collectives() -> impl TypedValueParser<Value = Collective> {
    let creates_group = |collective: &Collective| {
        matches!(collective, Collective::Split | Collective::NewGroup | Collective::Duplicate)
    };
    parser(Collective::ALL.into_iter().filter(|collective| !creates_group(collective)).collect())
}

fn cost(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|error| format!("{error}"))?;
    if value.is_finite() && value >= 0.0 {
        Ok(value)
    } else {
        Err("expected a time that is not negative".into())
    }
}

fn speed(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|error| format!("{error}"))?;
    if value.is_finite() && value > 0.0 { Ok(value) } else { Err("expected a speed above zero".into()) }
}

fn nonzero_size(text: &str) -> Result<usize, String> {
    units::parse(text)
        .and_then(|size| if size > 0 { Ok(size) } else { Err("expected a size above zero".into()) })
}
