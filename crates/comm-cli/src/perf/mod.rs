//! `commctl perf`: how fast collectives are, after nccl-tests, and what messages cost.
//!
//! | file | question |
//! |---|---|
//! | `args` | what does the command line say? |
//! | `operation` | what can be measured, and how is its bandwidth counted? |
//! | `plan` | which calls of which sizes? |
//! | `memory` | do they fit? |
//! | `session`, `host` | who takes part, and where? |
//! | `rank` | what does one rank do? |
//! | `buffers`, `data`, `number` | what lies in memory, before and after? |
//! | `timing`, `statistics` | how long does it take? |
//! | `messages` | what of messages between two ranks? |
//! | `row`, `label`, `print`, `plot` | what is said of it? |
//! | `calibrate` | which model of the links explains it? |
//! | `error` | what went wrong, and which exit code says so? |

mod args;
mod buffers;
mod calibrate;
mod data;
mod error;
mod host;
mod label;
mod memory;
mod messages;
mod number;
mod operation;
mod plan;
mod plot;
mod print;
mod rank;
mod row;
mod session;
mod statistics;
mod timing;

use std::env;
use std::thread;

use comm::{Config, Membership};
use comm_cli::launch::Launch;

pub(crate) use args::Perf;
use args::{Subject, Transport};
use error::{PerfError, Result};
use operation::Operation;
use plan::{Plan, Range};
use session::Session;

impl Perf {
    /// Starts the ranks, or is one of them.
    pub(crate) fn execute(self) -> Result<()> {
        if Config::is_launched() { self.join() } else { self.launch() }
    }

    /// Starts this program once per rank, with the same arguments, if they make sense.
    fn launch(&self) -> Result<()> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let ranks = self.ranks.map_or(cores.max(2), |ranks| ranks as usize);
        let config = Config::new(Membership { rank: 0, size: ranks }, "", 0)?;
        let tuning = self.transport(&config).tuning(&config)?;
        for plan in self.plans(ranks)? {
            memory::check(&plan, &tuning, ranks)?;
        }
        let program =
            env::current_exe().map_err(|source| PerfError::System { what: "find this program", source })?;
        let arguments = env::args_os().skip(1);
        // The number may be one that was not given.
        let launch = Launch::new(program).args(arguments).ranks(ranks);
        Ok(launch.run()?)
    }

    /// Measures as one of the ranks.
    fn join(&self) -> Result<()> {
        let config = Config::from_env()?;
        if let Some(ranks) = self.ranks.filter(|ranks| *ranks as usize != config.world_size) {
            let reason = format!("-n {ranks}: the launcher has started {}", config.world_size);
            return Err(PerfError::usage(reason));
        }
        let plans = self.plans(config.world_size)?;
        let session = Session::join(self.transport(&config), &config)?;
        match self.operation {
            Some(Subject::SendRecv) => messages::run(&session, self),
            Some(Subject::Collective(_)) => plans.iter().try_for_each(|plan| rank::run(&session, plan, self)),
            None => calibrate::run(&session, &plans, self),
        }
    }

    /// How ranks are to reach each other.
    fn transport(&self, config: &Config) -> Transport {
        self.transport.unwrap_or_else(|| Transport::of(config.transport))
    }

    /// What is to be measured.
    fn plans(&self, ranks: usize) -> Result<Vec<Plan>> {
        let operation = match self.operation {
            None => return calibrate::plans(ranks, &self.sizes),
            Some(Subject::SendRecv) => return messages::check(self, ranks).map(|()| Vec::new()),
            Some(Subject::Collective(operation)) => operation,
        };
        if self.output.svg.is_some() && operation == Operation::Barrier {
            return Err(PerfError::usage("--svg: a barrier has no size to draw anything over"));
        }
        Ok(vec![Plan::new(operation, ranks, &self.call, Range::TABLE.or(&self.sizes)?)?])
    }
}
