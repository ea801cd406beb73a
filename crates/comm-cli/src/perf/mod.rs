//! `commctl perf`: measures collectives like nccl-tests, and messages between two ranks.

mod args;
mod buffers;
mod calibrate;
mod memory;
mod messages;
mod plan;
mod plot;
mod print;
mod rank;
mod row;
mod session;
mod timing;

use std::env;
use std::thread;

use comm::{Collective, Config, Membership, TransportKind};
use comm_cli::launch::{BindTo, Launch, LaunchError};

use crate::error::{CliError, Result};
use args::Benchmark;
pub(crate) use args::Perf;

use plan::{Plan, SizeRange};
use session::Session;

impl Perf {
    /// Starts the ranks, or measures as one of them.
    pub(crate) fn execute(self) -> Result<()> {
        if Config::is_launched() { self.join() } else { self.launch() }
    }

    /// Checks the arguments, and then starts this program with the same arguments once per rank.
    fn launch(&self) -> Result<()> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let ranks = self.ranks.map_or(cores.max(2), |ranks| ranks as usize);
        let config = Config::new(Membership { rank: 0, size: ranks }, "", 0)?;
        let tuning = session::default_tuning(self.transport(&config), &config)?;
        for plan in self.plans(ranks)? {
            memory::check(&plan, &tuning, ranks)?;
        }
        let program =
            env::current_exe().map_err(|source| CliError::System { what: "find this program", source })?;
        let run = |bind_to| {
            // Connections are measured as they are without a secret, unless one is given.
            let launch = Launch::new(&program).random_secret(false).bind_to(bind_to);
            launch.args(env::args_os().skip(1)).ranks(ranks).run()
        };
        match run(self.bind_to.unwrap_or(BindTo::Core)) {
            // No rank was started.
            Err(LaunchError::Binding(_)) if self.bind_to.is_none() => Ok(run(BindTo::None)?),
            result => Ok(result?),
        }
    }

    fn join(&self) -> Result<()> {
        let config = Config::from_env()?;
        if let Some(ranks) = self.ranks.filter(|ranks| *ranks as usize != config.world_size) {
            let reason = format!("-n {ranks}: the launcher started {} ranks", config.world_size);
            return Err(CliError::usage(reason));
        }
        let plans = self.plans(config.world_size)?;
        let session = Session::join(self.transport(&config), &config)?;
        timing::settle(&session.comm)?;
        match self.benchmark {
            Some(Benchmark::SendRecv) => messages::run(&session, self),
            Some(Benchmark::Collective(_)) => {
                plans.iter().try_for_each(|plan| rank::run(&session, plan, self))
            }
            None => calibrate::run(&session, &plans, self),
        }
    }

    fn transport(&self, config: &Config) -> TransportKind {
        self.transport.unwrap_or(config.transport)
    }

    fn plans(&self, ranks: usize) -> Result<Vec<Plan>> {
        let collective = match self.benchmark {
            None => return calibrate::plans(ranks, &self.sizes),
            Some(Benchmark::SendRecv) => return messages::check(self, ranks).map(|()| Vec::new()),
            Some(Benchmark::Collective(collective)) => collective,
        };
        if self.output.svg.is_some() && collective == Collective::Barrier {
            return Err(CliError::usage("--svg: a barrier has no sizes"));
        }
        Ok(vec![Plan::new(collective, ranks, &self.call, SizeRange::TABLE.or(&self.sizes)?)?])
    }
}
