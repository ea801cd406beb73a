//! The command line, and what it means.

use std::path::PathBuf;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use comm::ring::choose::{CallShape, choose};
use comm::ring::schedule::Algorithm;
use comm::ring::{RingConfig, Tuning};
use comm::{Collective, Link, LinkModel};
use comm_cli::__private::units;

use super::Failure;

/// Predict how long the algorithms of a collective take on links of a given speed
#[derive(Debug, Args)]
#[command(after_help = "\
Nothing is measured and no rank is started: the steps that the ranks would carry out are run through a model of the \
links. A message keeps its sender for the overhead, the sender's outgoing and the receiver's incoming port for its bytes, \
is on its way for the latency alpha, and keeps the receiver for the overhead. Every rank has two ports of its own.

Sizes are bytes, with K, M, G or T for powers of 1024. --bytes is the size as nccl-tests counts it: the buffer of a \
reduction or broadcast, the result of a gather, what one rank sends to all in an all-to-all. --gbps and its like are \
gigabits per second: 400 is 50 GB/s. algbw is bytes divided by time; busbw is algbw times the share that must pass a port \
at least, so that it can be compared with the speed of the link.

The column `bound` is the share of the time that no algorithm can do without: one overhead, latency and overhead, \
and the bytes that must pass some rank's port at least (2(n-1)/n of the buffer in an all_reduce, (n-1)/n in an \
all_gather, reduce_scatter, all_to_all, gather or scatter, all of it in a broadcast or reduce), or the ports of \
one host if that takes longer. Reductions are not in it.

Times come from a simulation of every step where it takes no more than --max-steps, and else from closed forms, most of which \
are within a fifth of it on equal links. `*` marks the algorithm that a communicator with these links would take.

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

    /// Time that a message takes of its sender, and of its receiver, in microseconds
    #[arg(long, value_name = "US", default_value = "1", value_parser = cost)]
    overhead_us: f64,

    /// Speed between hosts in gigabits per second, of each port of each rank
    #[arg(long, value_name = "GBPS", default_value = "100", value_parser = speed)]
    gbps: f64,

    /// How many consecutive ranks a host holds
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..))]
    ranks_per_host: u32,

    /// Latency within a host in microseconds [default: as between hosts]
    #[arg(long, value_name = "US", value_parser = cost)]
    local_alpha_us: Option<f64>,

    /// Overhead within a host in microseconds [default: as between hosts]
    #[arg(long, value_name = "US", value_parser = cost)]
    local_overhead_us: Option<f64>,

    /// Speed within a host in gigabits per second [default: as between hosts]
    #[arg(long, value_name = "GBPS", value_parser = speed)]
    local_gbps: Option<f64>,

    /// Speed of reductions in gigabits of the result per second [default: they take no time]
    #[arg(long, value_name = "GBPS", value_parser = speed)]
    reduce_gbps: Option<f64>,

    /// Only this algorithm; may be given more than once
    #[arg(long = "algorithm", value_name = "NAME")]
    algorithms: Vec<String>,

    /// Size of the pieces in which large data is pipelined
    #[arg(long, value_name = "SIZE", default_value = "256K", value_parser = positive)]
    segment: usize,

    /// The root of a collective that has one
    #[arg(long, value_name = "RANK", default_value_t = 0)]
    root: usize,

    /// Use closed forms for an algorithm of more steps than this, of all ranks together
    #[arg(long, value_name = "N", default_value = "64M", value_parser = units::parse)]
    pub(super) max_steps: usize,

    /// Print one JSON object per line and algorithm
    #[arg(long)]
    pub(super) json: bool,

    /// Draw the predicted times over the size of the data, from 4 bytes to 1 GiB, into this SVG
    /// file
    #[arg(long, value_name = "FILE")]
    pub(super) svg: Option<PathBuf>,
}

/// What is to be predicted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Setup {
    pub(super) question: CallShape,
    pub(super) tuning: Tuning,
    pub(super) root: usize,
}

impl Simulate {
    pub(super) fn setup(&self) -> Result<Setup, Failure> {
        let ranks = self.ranks as usize;
        if self.root >= ranks {
            return Err(Failure::Root { root: self.root, ranks });
        }
        let bytes = if self.collective == Collective::Barrier { 0 } else { self.bytes };
        let mut config = RingConfig::default();
        config.segment_bytes = self.segment;
        let question = CallShape::new(self.collective).ranks(ranks).bytes(bytes);
        Ok(Setup { question, tuning: config.tuning(self.links()), root: self.root })
    }

    /// The algorithms asked for, in the order of the table.
    pub(super) fn algorithms(&self, setup: &Setup) -> Result<Vec<&'static Algorithm>, Failure> {
        for name in &self.algorithms {
            choose(&setup.question, Some(name), &setup.tuning)?;
        }
        let wanted = |row: &&Algorithm| {
            self.algorithms.is_empty() || self.algorithms.iter().any(|name| name == row.name)
        };
        let can = |row: &&Algorithm| choose(&setup.question, Some(row.name), &setup.tuning).is_ok();
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

/// Parses the name of a collective that moves the caller's data, or none: not of one that makes a
/// group.
fn collectives() -> impl TypedValueParser<Value = Collective> {
    let moves_data = |collective: &Collective| {
        !matches!(collective, Collective::Split | Collective::NewGroup | Collective::Duplicate)
    };
    let known: Vec<Collective> = Collective::ALL.into_iter().filter(moves_data).collect();
    // Of possible values clap suggests the one that is most alike.
    PossibleValuesParser::new(known.iter().map(|collective| collective.name())).try_map(move |name| {
        let found = known.iter().find(|collective| collective.name() == name);
        found.copied().ok_or_else(|| format!("{name} is no collective"))
    })
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

fn positive(text: &str) -> Result<usize, String> {
    units::parse(text)
        .and_then(|size| if size > 0 { Ok(size) } else { Err("expected a size above zero".into()) })
}
