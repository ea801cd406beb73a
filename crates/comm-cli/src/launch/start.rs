//! One start of the ranks of this host.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::net::SocketAddr;
use std::num::{NonZero, NonZeroU64};
use std::process::{Command, Stdio};
use std::thread;

use comm::tcp::{StoreConfig, TcpStoreServer};
use rustix::rand::{GetRandomFlags, getrandom};

use super::agents::{Agents, RankStore, Round, Share};
use super::environment::{self, Assigned, Job, Place};
use super::error::{LaunchError, RankFailure, system};
use super::events::Replacements;
use super::logs::RankLogs;
use super::process::RankProcess;
use super::relay::{Destination, Relay, Source};
use super::running::{OtherNodes, Running};
use super::signals::StopSignals;
use super::supervisor::Supervisor;
use super::{Launch, Nodes};

impl Launch {
    /// Starts all ranks on this host, and waits for their end.
    pub(super) fn run_alone(&self, restarts: usize, assigned: Assigned) -> Result<(), LaunchError> {
        let signals = StopSignals::catch().map_err(system("catch signals"))?;
        let id = random_id().map_err(system("draw a job id"))?;
        let address = SocketAddr::new(self.master_addr, 0);
        let secret = self.secret().map_err(system("draw a secret"))?;
        let config = self.store_config(id.get(), secret.as_ref()).map_err(not_served(address))?;
        // The launcher serves the store instead of rank 0, so that the remaining ranks can still
        // reach it after a failure.
        let server = TcpStoreServer::bind(address, config.clone()).map_err(not_served(address))?;
        let address = server.local_addr();
        let (ranks, max_restarts) = (self.ranks, self.max_restarts);
        let place = Place { node: 0, nodes: 1, first_rank: 0, world_size: ranks };
        let master = (address.ip().to_string(), address.port());
        let job = Job { ranks, place, restarts, max_restarts, master, id, secret, assigned };
        let store = Some((address, config));
        self.run_ranks(Running { launch: self, job: &job, relays: Vec::new(), store, others: None }, signals)
    }

    /// Starts the ranks of this host together with those of all others, and waits for the end of
    /// all.
    pub(super) fn run_on_nodes(
        &self,
        restarts: usize,
        assigned: Assigned,
        agents: &mut Agents,
    ) -> Result<(), LaunchError> {
        let round = agents.open_round(restarts)?;
        // Lives until all agents have agreed that the ranks have ended.
        let mut server = None;
        let own = self.run_round(restarts, assigned, (agents, &round), &mut server).err();
        if let Some(error) = &own {
            agents.publish(&round, error);
        }
        agents.end(round, own, self.grace)
    }

    fn run_round(
        &self,
        restarts: usize,
        assigned: Assigned,
        (agents, round): (&Agents, &Round),
        server: &mut Option<TcpStoreServer>,
    ) -> Result<(), LaunchError> {
        let RankStore { job: id, port } = agents.agree_on_store(round, || {
            let job = random_id().map_err(system("draw a job id"))?.get();
            let bound = agents.serve(job)?;
            let port = bound.local_addr().port();
            *server = Some(bound);
            Ok(RankStore { job, port })
        })?;
        let signals = StopSignals::catch().map_err(system("catch signals"))?;
        let (first_rank, world_size) = agents.ranks();
        let place = Place { node: agents.own().rank, nodes: agents.count(), first_rank, world_size };
        let (ranks, max_restarts, secret) =
            (self.ranks, self.max_restarts, self.given_env(environment::SECRET));
        let master = (self.nodes.as_ref().map(Nodes::host).unwrap_or_default().to_owned(), port);
        let id = NonZeroU64::new(id).unwrap_or(NonZeroU64::MAX);
        let job = Job { ranks, place, restarts, max_restarts, master, id, secret, assigned };
        let others = Some(OtherNodes { agents, round });
        self.run_ranks(Running { launch: self, job: &job, relays: Vec::new(), store: None, others }, signals)
    }

    /// Meets the launchers of the other hosts.
    pub(super) fn join(&self, nodes: &Nodes) -> Result<Agents, LaunchError> {
        let secret = self.given_env(environment::SECRET);
        let config = self.store_config(0, secret.as_ref()).map_err(|error| nodes.failed(error))?;
        let share = Share { ranks: self.ranks, max_restarts: self.max_restarts };
        Ok(Agents::join(nodes, share, config)?)
    }

    fn run_ranks(&self, mut running: Running<'_>, signals: StopSignals) -> Result<(), LaunchError> {
        let mut supervisor = Supervisor::new(signals, self.grace).map_err(system("watch the ranks"))?;
        let replacements = Replacements { ranks_max: self.ranks_max, left: self.max_restarts };
        supervisor.tolerate(self.ranks.saturating_sub(self.ranks_min), replacements, self.on_loss);
        let outputs = self.start_all(running.job, &mut supervisor)?;
        running.relay(outputs)?;
        // When this returns, the ranks have exited, only output is left to relay, and Ctrl-C has
        // its default effect again.
        let outcome = supervisor.run(&mut running);
        let relayed = running.relays.into_iter().map(Relay::finish).fold(Ok(()), io::Result::and);
        let outcome = outcome.map_err(|error| self.with_last_lines(error, running.job));
        outcome.and(relayed.map_err(system("relay output")))
    }

    /// Adds the last lines of a rank of this host that has failed, if its output is in files.
    fn with_last_lines(&self, error: LaunchError, job: &Job) -> LaunchError {
        match error {
            LaunchError::RankFailed(RankFailure { rank, pid, exit, node: None, .. }) => {
                let last_lines = self.logs(job, rank).map(|logs| logs.last_lines()).unwrap_or_default();
                LaunchError::RankFailed(RankFailure { rank, pid, exit, node: None, last_lines })
            }
            other => other,
        }
    }

    fn logs(&self, job: &Job, rank: usize) -> Option<RankLogs> {
        self.log_dir.as_ref().map(|folder| RankLogs::new(folder, job.restarts, rank))
    }

    /// Returns the value of a variable that ranks would get from the caller or the environment.
    fn given_env(&self, name: &str) -> Option<OsString> {
        let given = self.env.iter().rev().find(|(given, _)| given.as_os_str() == OsStr::new(name));
        given.map(|(_, value)| value.clone()).or_else(|| env::var_os(name))
    }

    fn secret(&self) -> io::Result<Option<OsString>> {
        match self.given_env(environment::SECRET) {
            None if self.random_secret => random_secret().map(Some),
            given => Ok(given),
        }
    }

    /// Returns the configuration of the store, as the environment of the ranks describes it.
    fn store_config(&self, job: u64, secret: Option<&OsString>) -> comm::Result<StoreConfig> {
        let secret = secret.map(|secret| (environment::SECRET.into(), secret.clone()));
        comm::Config::launcher_store(job, env::vars_os().chain(self.env.clone()).chain(secret))
    }

    /// Returns variables that limit the total number of threads of all ranks to the number of
    /// cores.
    fn threads(&self, job: &Job, local: usize) -> impl Iterator<Item = (&'static str, String)> {
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        let share =
            job.cpus(local).map_or((cores / self.ranks.max(1)).max(1), |cpus| cpus.threads).to_string();
        let unset = environment::THREADS.into_iter().filter(|name| self.given_env(name).is_none());
        unset.map(move |name| (name, share.clone()))
    }

    /// Starts every rank of this host under the supervisor, and returns the outputs to relay.
    fn start_all(&self, job: &Job, supervisor: &mut Supervisor) -> Result<Vec<Source>, LaunchError> {
        let mut outputs = Vec::new();
        for local in 0..self.ranks {
            let rank = job.place.first_rank + local;
            let (process, sources) = self.spawn(job, local, false)?;
            outputs.extend(sources);
            supervisor.add(rank, process).map_err(|source| self.not_started(rank, source))?;
        }
        Ok(outputs)
    }

    /// Starts a rank, and returns its outputs, if they are to be relayed.
    pub(super) fn spawn(
        &self,
        job: &Job,
        local: usize,
        joins: bool,
    ) -> Result<(RankProcess, impl Iterator<Item = Source> + use<>), LaunchError> {
        let rank = job.place.first_rank + local;
        let mut command = self.command(job, local, joins);
        let [mut stdout, mut stderr] = match self.logs(job, rank) {
            Some(logs) => logs.open(joins)?.map(Some),
            None => [None, None],
        };
        if self.is_relayed() {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        } else if let (Some(stdout), Some(stderr)) = (stdout.take(), stderr.take()) {
            command.stdout(stdout).stderr(stderr);
        }
        let process = RankProcess::spawn(&mut command, job.cpus(local).map(|cpus| cpus.set));
        let mut process = process.map_err(|source| self.not_started(rank, source))?;
        let source = |destination, log| move |pipe| Source::new(rank, pipe, destination, log);
        let stdout = process.take_stdout().map(source(Destination::Stdout, stdout));
        let stderr = process.take_stderr().map(source(Destination::Stderr, stderr));
        Ok((process, stdout.into_iter().chain(stderr)))
    }

    fn command(&self, job: &Job, local: usize, joins: bool) -> Command {
        let mut command = Command::new(&self.program);
        // A rank is not in the foreground process group, so reading from the terminal would stop
        // it.
        command.args(&self.args).stdin(Stdio::null());
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command.envs(self.threads(job, local));
        command.envs(job.secret.iter().map(|secret| (environment::SECRET, secret)));
        command.envs(job.variables(local, joins)).envs(job.device(local));
        command
    }

    fn not_started(&self, rank: usize, source: io::Error) -> LaunchError {
        let program = self.program.clone();
        match source.kind() {
            io::ErrorKind::NotFound => LaunchError::ProgramNotFound { program },
            _ => LaunchError::Spawn { rank, program, source },
        }
    }
}

fn not_served(address: SocketAddr) -> impl Fn(comm::Error) -> LaunchError {
    move |error| LaunchError::Store { address, error: Box::new(error) }
}

fn random_secret() -> io::Result<OsString> {
    let mut bytes = [0; 16];
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)).into())
}

/// Returns a random number that is not 0.
pub(super) fn random_id() -> io::Result<NonZeroU64> {
    loop {
        let mut bytes = [0; 8];
        getrandom(&mut bytes, GetRandomFlags::empty())?;
        if let Some(id) = NonZeroU64::new(u64::from_ne_bytes(bytes)) {
            return Ok(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_get_a_given_secret_or_a_random_one_if_the_launch_wants_it() {
        if env::var_os(environment::SECRET).is_some() {
            return;
        }
        let launch = Launch::new("true");
        let random = launch.secret().expect("random bytes").expect("a secret");
        assert_eq!(random.len(), 32);
        let launch = launch.random_secret(false);
        assert_eq!(launch.secret().expect("no random bytes"), None);
        let launch = launch.env(environment::SECRET, "hush");
        assert_eq!(launch.secret().expect("no random bytes"), Some("hush".into()));
    }
}
