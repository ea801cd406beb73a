//! The command line of a comparison.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Args, ValueEnum};
use comm_cli::__private::units;

use super::collective::Collective;
use super::subject;

/// Compare this library with its peers, and write docs/performance.md.
///
/// Measures whoever is installed: Open MPI and MPICH, Gloo through PyTorch, and if asked for the
/// ring of ferrotorch-distributed. What was measured is kept next to the page, in a file of JSON
/// lines. A run that was stopped goes on where it was when the same command is given again; other
/// ranks, collectives or sizes are added.
#[derive(Debug, Args)]
pub(crate) struct Compare {
    /// How many ranks
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "2,4,8", value_parser = clap::value_parser!(u16).range(2..))]
    pub(super) ranks: Vec<u16>,

    /// Which collectives
    #[arg(long, value_name = "NAME,NAME", value_delimiter = ',', value_enum, default_values_t = Collective::ALL)]
    pub(super) collectives: Vec<Collective>,

    /// The smallest size in bytes
    #[arg(long, value_name = "SIZE", default_value = "4", value_parser = units::parse)]
    pub(super) min: usize,

    /// The largest size in bytes; other collectives than all_reduce end at 64M
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = units::parse)]
    pub(super) max: usize,

    /// By how much the next size is larger
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..))]
    pub(super) factor: u32,

    /// How often everything is measured
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) rounds: u32,

    /// How many samples are taken of each size in a round
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) samples: u32,

    /// How long a sample lasts at least, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 20)]
    pub(super) sample_ms: u32,

    /// Which peers; ferrotorch takes minutes to build [default: all but ferrotorch]
    #[arg(long, value_name = "NAME,NAME", value_delimiter = ',', value_parser = PossibleValuesParser::new(subject::peers()))]
    pub(super) peers: Vec<String>,

    /// Over what this library's ranks reach each other; each is measured
    #[arg(long, value_name = "NAME,NAME", value_delimiter = ',', value_enum, default_value = "shm,tcp")]
    pub(super) transport: Vec<Transport>,

    /// A Python that has PyTorch
    #[arg(long, value_name = "PROGRAM", env = "COMM_COMPARE_PYTHON", default_value = "python3")]
    pub(super) python: PathBuf,

    /// The page; the journal (.jsonl) and the picture (.svg) lie next to it
    #[arg(long, value_name = "FILE.md", default_value = "docs/performance.md")]
    pub(super) out: PathBuf,

    /// Measure nothing, and write page and picture from journals; of what several have measured the
    /// last one counts
    #[arg(long, value_name = "FILE.jsonl", num_args = 1..)]
    pub(super) from: Vec<PathBuf>,

    /// Forget what the journal has
    #[arg(long, conflicts_with = "from")]
    pub(super) fresh: bool,
}

/// A way between this library's ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Transport {
    Shm,
    /// Shared memory, with buffers that the communicator allocates.
    ShmAlloc,
    Tcp,
    Auto,
}

impl Transport {
    /// The options of `commctl perf` for it.
    pub(super) const fn options(self) -> &'static [&'static str] {
        match self {
            Self::Shm => &["--transport", "shm"],
            Self::ShmAlloc => &["--transport", "shm", "--alloc"],
            Self::Tcp => &["--transport", "tcp"],
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
    /// Where measurements are kept.
    pub(super) fn journal(&self) -> PathBuf {
        self.out.with_extension("jsonl")
    }

    /// The sizes of a collective among so many ranks.
    pub(super) fn sizes(&self, collective: Collective, ranks: usize) -> Vec<usize> {
        let max = collective.at_most(self.max);
        let next = |size: &usize| size.checked_mul(self.factor as usize);
        let sizes = std::iter::successors(Some(self.min.max(1)), next);
        collective.sizes(sizes.take_while(|size| *size <= max), ranks)
    }
}
