//! The command line of `cargo xtask compare`.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Args, ValueEnum};
use comm_cli::__private::units;

use super::collective::Collective;
use super::library;

/// Compare this library with its peers, and write docs/performance.md.
///
/// Measures the installed peers: Open MPI, MPICH and Intel MPI (`cargo xtask mpi-fetch`), oneCCL
/// (`cargo xtask oneccl-fetch`), MPIs of the distribution, Gloo through PyTorch, and on request the
/// ring of ferrotorch-distributed. The measurements are kept next to the page as JSON lines. The
/// same command continues an interrupted run; other ranks, collectives or sizes are added. After a
/// change of the library or the machine, ratios are those of the last run that has measured both
/// libraries.
#[derive(Debug, Args)]
pub(crate) struct Compare {
    /// Measure the overhead of data parallel training instead of collectives, beside PyTorch's
    #[arg(long, conflicts_with_all = ["collectives", "min", "max", "factor", "peers"])]
    pub(super) ddp: bool,

    /// Numbers of ranks [default with --ddp: 2]
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "2,4,8", default_value_if("ddp", "true", "2"), value_parser = clap::value_parser!(u16).range(2..))]
    pub(super) ranks: Vec<u16>,

    /// Collectives
    #[arg(long, value_name = "NAME,NAME", value_delimiter = ',', value_enum, default_values_t = Collective::ALL)]
    pub(super) collectives: Vec<Collective>,

    /// Smallest size in bytes
    #[arg(long, value_name = "SIZE", default_value = "4", value_parser = units::parse)]
    pub(super) min: usize,

    /// Largest size in bytes, at most 64M except for all_reduce
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = units::parse)]
    pub(super) max: usize,

    /// Factor between consecutive sizes
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..))]
    pub(super) factor: u32,

    /// Number of rounds [default with --ddp: 7]
    #[arg(long, value_name = "N", default_value = "5", default_value_if("ddp", "true", "7"), value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) rounds: u32,

    /// Number of samples per size and round; of pairs of samples per model with --ddp, by default 4
    #[arg(long, value_name = "N", default_value = "7", default_value_if("ddp", "true", "4"), value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) samples: u32,

    /// Minimum duration of a sample in milliseconds [default with --ddp: 300]
    #[arg(long, value_name = "MS", default_value = "20", default_value_if("ddp", "true", "300"))]
    pub(super) sample_ms: u32,

    /// Peers; ferrotorch takes minutes to build [default: all but ferrotorch]
    #[arg(long, value_name = "NAME,NAME", value_delimiter = ',', value_parser = PossibleValuesParser::new(library::peers()))]
    pub(super) peers: Vec<String>,

    /// Transports of this library
    #[arg(long, value_name = "NAME,NAME", value_delimiter = ',', value_enum, default_value = "shm,tcp")]
    pub(super) transport: Vec<Transport>,

    /// Let calls use copies of their buffers in turn, which together have twice the size of the
    /// last-level cache; adds tables to the report
    #[arg(long, conflicts_with = "ddp")]
    pub(super) rotate: bool,

    /// Python with PyTorch
    #[arg(long, value_name = "PROGRAM", env = "COMM_COMPARE_PYTHON", default_value = "python3")]
    pub(super) python: PathBuf,

    /// Page to write, with the journal (.jsonl) and the plot (.svg) next to it
    #[arg(long, value_name = "FILE.md", default_value = "docs/performance.md")]
    pub(super) out: PathBuf,

    /// Measure nothing, and write page and plot from journals; later ones take precedence
    #[arg(long, value_name = "FILE.jsonl", num_args = 1..)]
    pub(super) from: Vec<PathBuf>,

    /// Discard the measurements in the journal
    #[arg(long, conflicts_with = "from")]
    pub(super) fresh: bool,
}

/// A transport of this library.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Transport {
    Shm,
    /// Shared memory, with buffers from the communicator.
    ShmAlloc,
    Tcp,
    Auto,
}

impl Transport {
    /// Returns the options of `commctl perf`. Over TCP no rank is bound, because those of the peers
    /// are not, and their broadcasts would take longer if they were.
    pub(super) const fn options(self) -> &'static [&'static str] {
        match self {
            Self::Shm => &["--transport", "shm"],
            Self::ShmAlloc => &["--transport", "shm", "--alloc"],
            Self::Tcp => &["--transport", "tcp", "--bind-to", "none"],
            Self::Auto => &["--transport", "auto"],
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::ShmAlloc => "shm-alloc",
            Self::Tcp => "tcp",
            Self::Auto => "auto",
        }
    }
}

impl Compare {
    /// Returns the path of the journal.
    pub(super) fn journal(&self) -> PathBuf {
        self.out.with_extension("jsonl")
    }

    /// Returns the sizes of a collective for a number of ranks.
    pub(super) fn sizes(&self, collective: Collective, ranks: usize) -> Vec<usize> {
        let max = collective.at_most(self.max);
        let next = |size: &usize| size.checked_mul(self.factor as usize);
        let sizes = std::iter::successors(Some(self.min.max(1)), next);
        collective.sizes(sizes.take_while(|size| *size <= max), ranks)
    }
}
