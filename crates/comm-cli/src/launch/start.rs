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

use super::Launch;
use super::agents::Absent;
use super::elastic::{ElasticJob, Limits};
use super::environment::{self, Assigned, Job, Place};
use super::error::{LaunchError, system};
use super::logs::RankLogs;
use super::process::RankProcess;
use super::relay::{Destination, Relay, Source};
use super::running::Running;
use super::signals::StopSignals;
use super::store::JoinList;
use super::supervisor::Supervisor;

impl Launch {
    pub(super) fn limits(&self) -> Limits {
        let Self { ranks_min, ranks_max, max_restarts: replacements, .. } = *self;
        Limits { ranks_min, ranks_max, replacements }
    }

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
        let state = ElasticJob::new(self.limits(), 0, [(String::new(), ranks)]);
        let join_list = (self.ranks_max > 0).then(|| JoinList::new(address, config));
        let relays = Vec::new();
        let running =
            Running { launch: self, job: &job, relays, state, join_list, checked: None, others: None };
        self.run_ranks(running, None, signals).0
    }

    /// Starts the ranks of this host, which join the ranks of other hosts if they have `ids`, and
    /// waits for their end. Returns the nodes that were lost in the meantime, too.
    pub(super) fn run_ranks(
        &self,
        mut running: Running<'_>,
        ids: Option<Vec<u64>>,
        signals: StopSignals,
    ) -> (Result<(), LaunchError>, Absent) {
        let outcome = self.supervise(&mut running, ids, signals);
        let relays = std::mem::take(&mut running.relays);
        let relayed = relays.into_iter().map(Relay::finish).fold(Ok(()), io::Result::and);
        let outcome = outcome.map_err(|error| self.with_last_lines(error, &running));
        (outcome.and(relayed.map_err(system("relay output"))), running.absent())
    }

    /// When this returns, the ranks have exited, only output is left to relay, and Ctrl-C has its
    /// default effect again.
    fn supervise(
        &self,
        running: &mut Running<'_>,
        ids: Option<Vec<u64>>,
        signals: StopSignals,
    ) -> Result<(), LaunchError> {
        let records = self.given_env(environment::FLIGHT_DIR).is_some();
        let mut supervisor =
            Supervisor::new(signals, self.grace, records).map_err(system("watch the ranks"))?;
        let ids = ids.map_or_else(|| vec![None; self.ranks], |ids| ids.into_iter().map(Some).collect());
        let outputs = self.start_all(running.job, &mut supervisor, &ids)?;
        running.relay(outputs)?;
        supervisor.run(running)?;
        running.own_outcome()
    }

    /// Adds the last lines of a rank of this host that has failed, if its output is in files.
    fn with_last_lines(&self, error: LaunchError, running: &Running<'_>) -> LaunchError {
        match error {
            LaunchError::RankFailed(mut failure) if running.is_own(&failure) => {
                let known = running.state.last_lines(&failure).filter(|lines| !lines.is_empty());
                failure.last_lines = known.unwrap_or_else(|| self.last_lines(running.job, failure.rank));
                LaunchError::RankFailed(failure)
            }
            other => other,
        }
    }

    /// Returns the last lines of a rank of this host, if its output is in files.
    pub(super) fn last_lines(&self, job: &Job, rank: usize) -> Vec<String> {
        self.logs(job, rank).map(|logs| logs.last_lines()).unwrap_or_default()
    }

    fn logs(&self, job: &Job, rank: usize) -> Option<RankLogs> {
        self.log_dir.as_ref().map(|folder| RankLogs::new(folder, job.restarts, rank))
    }

    /// Returns the value of a variable that ranks would get from the caller or the environment.
    pub(super) fn given_env(&self, name: &str) -> Option<OsString> {
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
    pub(super) fn store_config(&self, job: u64, secret: Option<&OsString>) -> comm::Result<StoreConfig> {
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

    /// Starts a rank of this host for each id under the supervisor, and returns the outputs to
    /// relay.
    fn start_all(
        &self,
        job: &Job,
        supervisor: &mut Supervisor,
        ids: &[Option<u64>],
    ) -> Result<Vec<Source>, LaunchError> {
        let mut outputs = Vec::new();
        for (local, join_id) in ids.iter().enumerate() {
            let rank = job.place.first_rank + local;
            let (process, sources) = self.spawn(job, local, *join_id)?;
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
        join_id: Option<u64>,
    ) -> Result<(RankProcess, impl Iterator<Item = Source> + use<>), LaunchError> {
        let rank = job.place.first_rank + local;
        let mut command = self.command(job, local, join_id);
        let [mut stdout, mut stderr] = match self.logs(job, rank) {
            Some(logs) => logs.open(join_id.is_some())?.map(Some),
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

    fn command(&self, job: &Job, local: usize, join_id: Option<u64>) -> Command {
        let mut command = Command::new(&self.program);
        // A rank is not in the foreground process group, so reading from the terminal would stop
        // it.
        command.args(&self.args).stdin(Stdio::null());
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command.envs(self.threads(job, local));
        command.envs(job.secret.iter().map(|secret| (environment::SECRET, secret)));
        command.envs(job.variables(local, join_id)).envs(job.device(local));
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
