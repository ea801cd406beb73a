//! Starts the ranks of a job on this machine, supervises them, and terminates them together.

mod devices;
mod environment;
mod error;
mod guard;
mod limits;
mod lines;
mod process;
mod relay;
mod signals;
mod store;
mod supervisor;

use std::env;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::{NonZero, NonZeroU64};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use comm::tcp::{StoreConfig, TcpStoreServer};
use rustix::rand::{GetRandomFlags, getrandom};

pub use devices::{Devices, DevicesError};
pub use error::{LaunchError, ProcessExit, RankFailure, Restart};

use environment::Job;
use process::RankProcess;
use relay::{Destination, Relay, Source};
use signals::StopSignals;
use supervisor::{Events, Replacements, Supervisor};

const DEFAULT_GRACE: Duration = Duration::from_secs(3);

/// A builder that runs a program as several ranks of one job on this machine.
///
/// Every rank inherits the launcher's environment and gets `RANK`, `WORLD_SIZE`, `LOCAL_RANK`,
/// `LOCAL_WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT` as under torchrun, `COMM_JOB_ID` with a
/// random nonzero number in hexadecimal, `COMM_STORE=launcher`, and `COMM_JOIN=0`. The launcher
/// serves the store at `MASTER_ADDR:MASTER_PORT`, on a free port, and outlives every rank. The
/// standard input of ranks is empty.
///
/// Unless they are set, every rank also gets `COMM_SECRET` with a random secret that is new for
/// each start (see [`Launch::random_secret`]), and `OMP_NUM_THREADS` and `RAYON_NUM_THREADS` with
/// the number of cores divided by the number of ranks, but at least 1. The secret is never passed
/// as an argument, and `Debug` omits the values of variables. The store uses the secret, and TLS if
/// the ranks get `COMM_TLS=1` (feature `tls`).
///
/// ```no_run
/// use comm_cli::launch::Launch;
///
/// let program = std::env::current_exe()?;
/// Launch::new(program).arg("--epochs=5").ranks(4).tag_output(true).run()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
#[must_use = "a launch starts nothing until `run`"]
pub struct Launch {
    program: OsString,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    ranks: usize,
    master_addr: IpAddr,
    tag_output: bool,
    grace: Duration,
    devices: Option<Devices>,
    random_secret: bool,
    max_restarts: usize,
    on_restart: fn(&Restart),
    ranks_min: usize,
    ranks_max: usize,
    on_loss: fn(&RankFailure),
}

impl fmt::Debug for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&OsString> = self.env.iter().map(|(name, _)| name).collect();
        f.debug_struct("Launch")
            .field("program", &self.program)
            .field("args", &self.args)
            .field("env", &names)
            .field("ranks", &self.ranks)
            .field("master_addr", &self.master_addr)
            .field("tag_output", &self.tag_output)
            .field("grace", &self.grace)
            .field("devices", &self.devices)
            .field("random_secret", &self.random_secret)
            .field("max_restarts", &self.max_restarts)
            .field("ranks_min", &self.ranks_min)
            .field("ranks_max", &self.ranks_max)
            .finish_non_exhaustive()
    }
}

impl Launch {
    /// Creates a launch of one rank of `program`, which is looked up in `PATH` unless it contains a
    /// slash.
    pub fn new(program: impl Into<OsString>) -> Self {
        Self {
            program: program.into(),
            args: Vec::new(),
            env: Vec::new(),
            ranks: 1,
            master_addr: IpAddr::V4(Ipv4Addr::LOCALHOST),
            tag_output: false,
            grace: DEFAULT_GRACE,
            devices: None,
            random_secret: true,
            max_restarts: 0,
            on_restart: |_| {},
            ranks_min: usize::MAX,
            ranks_max: 0,
            on_loss: |_| {},
        }
    }

    /// Adds an argument for every rank.
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Adds arguments for every rank.
    pub fn args(mut self, args: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Sets the number of ranks, at least 1. The default is 1.
    pub fn ranks(mut self, ranks: usize) -> Self {
        self.ranks = ranks;
        self
    }

    /// Sets whether ranks get a random secret if `COMM_SECRET` is not set. The default is true.
    /// Without a secret, any process on this machine can join the job, but bytes over TCP need no
    /// authentication codes.
    pub fn random_secret(mut self, random_secret: bool) -> Self {
        self.random_secret = random_secret;
        self
    }

    /// Sets an environment variable of every rank. [`Launch::run`] fails for variables that the
    /// launcher sets.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Sets the local address of the store. The default is 127.0.0.1.
    pub fn master_addr(mut self, address: IpAddr) -> Self {
        self.master_addr = address;
        self
    }

    /// Sets whether to prefix every line of output with `[rank]: `. An unfinished line is then
    /// buffered until its end. By default ranks inherit the launcher's standard output and error.
    pub fn tag_output(mut self, tag: bool) -> Self {
        self.tag_output = tag;
        self
    }

    /// Sets the time between SIGTERM and SIGKILL when ranks are terminated. The default is 3
    /// seconds.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Sets `CUDA_VISIBLE_DEVICES` of each rank to one GPU. By default ranks inherit it.
    pub fn devices(mut self, devices: Devices) -> Self {
        self.devices = Some(devices);
        self
    }

    /// Sets how many times all ranks are restarted after one of them has failed. The default is
    /// 0. Every rank gets the number of restarts so far as `TORCHELASTIC_RESTART_COUNT`, as under
    /// torchrun.
    pub fn max_restarts(mut self, restarts: usize) -> Self {
        self.max_restarts = restarts;
        self
    }

    /// Sets a function that is called before each restart.
    pub fn on_restart(mut self, report: fn(&Restart)) -> Self {
        self.on_restart = report;
        self
    }

    /// Lets the other ranks go on after one has failed, as long as at least `ranks` have not
    /// failed. By default a failure ends all ranks.
    ///
    /// A program for this continues with the ranks that remain, for example by
    /// [`Comm::shrink`](comm::Comm::shrink).
    pub fn ranks_min(mut self, ranks: usize) -> Self {
        self.ranks_min = ranks;
        self
    }

    /// Starts another process for a rank that has failed, as long as fewer than `ranks` run and not
    /// more than [`Launch::max_restarts`] times in all. Then no failure restarts all ranks. By
    /// default no process is replaced.
    ///
    /// The new process gets `COMM_JOIN=1`: with [`ElasticGroup`](comm::ElasticGroup) it joins the
    /// group of the others, whose ranks it does not affect. Nothing is replaced once a rank has
    /// exited with code 0, and processes that wait to join then end.
    pub fn ranks_max(mut self, ranks: usize) -> Self {
        self.ranks_max = ranks;
        self
    }

    /// Sets a function that is called when a rank has failed and the others go on.
    pub fn on_loss(mut self, report: fn(&RankFailure)) -> Self {
        self.on_loss = report;
        self
    }

    /// Starts all ranks and blocks until the last one has exited. If the calling thread ends, even
    /// by a SIGKILL to the process, the kernel kills the ranks, and a guard process (`sh`) kills
    /// their process groups; without `sh`, only the ranks themselves are killed.
    ///
    /// Until then, SIGINT, SIGTERM and SIGHUP to this process are forwarded to the ranks; a SIGINT
    /// or SIGTERM while ranks are being terminated kills them immediately. When a rank has exited,
    /// the remaining processes of its process group are terminated too.
    ///
    /// # Errors
    ///
    /// - [`LaunchError::RankFailed`] names the rank that failed first, after the last restart, or
    ///   after which too few were left. The others got SIGTERM, and SIGKILL after the grace period.
    /// - [`LaunchError::Interrupted`] if a signal stopped the launcher.
    /// - For the other variants, no rank was started or all were killed.
    pub fn run(self) -> Result<(), LaunchError> {
        self.check()?;
        let devices = self.assigned_devices()?;
        let mut number = 0;
        loop {
            match self.run_once(number, devices.clone()) {
                Err(LaunchError::RankFailed(failure))
                    if number < self.max_restarts && self.ranks_max == 0 =>
                {
                    number += 1;
                    (self.on_restart)(&Restart { failure, number, max: self.max_restarts });
                }
                outcome => return outcome,
            }
        }
    }

    fn run_once(&self, restarts: usize, devices: Option<Vec<String>>) -> Result<(), LaunchError> {
        let system = |what| move |source| LaunchError::System { what, source };
        let signals = StopSignals::catch().map_err(system("catch signals"))?;
        let id = random_job_id().map_err(system("draw a job id"))?;
        let address = SocketAddr::new(self.master_addr, 0);
        let secret = self.secret().map_err(system("draw a secret"))?;
        let failed = |error| LaunchError::Store { address, error: Box::new(error) };
        let store_config = self.store_config(id, secret.as_ref()).map_err(failed)?;
        // The launcher serves the store instead of rank 0, so that the remaining ranks can still
        // reach it after a failure.
        let store = TcpStoreServer::bind(address, store_config.clone()).map_err(failed)?;
        let (ranks, address) = (self.ranks, store.local_addr());
        let job = Job { ranks, restarts, store: address, store_config, id, secret, devices };
        let mut supervisor = Supervisor::new(signals, self.grace).map_err(system("watch the ranks"))?;
        let replacements = Replacements { ranks_max: self.ranks_max, left: self.max_restarts };
        supervisor.tolerate(self.ranks.saturating_sub(self.ranks_min), replacements, self.on_loss);
        let outputs = self.start_all(&job, &mut supervisor)?;
        let mut running = Running { launch: self, job: &job, relays: Vec::new() };
        running.relay(outputs)?;
        // When this returns, the ranks have exited, only output is left to relay, and Ctrl-C has
        // its default effect again.
        let outcome = supervisor.run(&mut running);
        let relayed = running.relays.into_iter().map(Relay::finish).fold(Ok(()), io::Result::and);
        outcome.and(relayed.map_err(system("relay output")))
    }

    fn check(&self) -> Result<(), LaunchError> {
        if self.ranks == 0 {
            return Err(LaunchError::NoRanks);
        }
        if self.devices.is_some() && self.env.iter().any(|(name, _)| name == devices::VISIBLE) {
            return Err(LaunchError::ReservedVariable(devices::VISIBLE));
        }
        self.env.iter().try_for_each(|(name, _)| environment::check_not_reserved(name))?;
        limits::check(self.ranks, self.tag_output)
    }

    fn assigned_devices(&self) -> Result<Option<Vec<String>>, LaunchError> {
        let visible = env::var(devices::VISIBLE).ok();
        let assign = |devices: &Devices| devices.assign(self.ranks, visible.as_deref());
        Ok(self.devices.as_ref().map(assign).transpose()?)
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
    fn store_config(&self, job: NonZeroU64, secret: Option<&OsString>) -> comm::Result<StoreConfig> {
        let secret = secret.map(|secret| (environment::SECRET.into(), secret.clone()));
        comm::Config::launcher_store(job.get(), env::vars_os().chain(self.env.clone()).chain(secret))
    }

    /// Returns variables that limit the total number of threads of all ranks to the number of
    /// cores.
    fn threads(&self) -> impl Iterator<Item = (&'static str, String)> {
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        let share = (cores / self.ranks.max(1)).max(1).to_string();
        let unset = environment::THREADS.into_iter().filter(|name| self.given_env(name).is_none());
        unset.map(move |name| (name, share.clone()))
    }

    /// Starts every rank under the supervisor, and returns the outputs to relay.
    fn start_all(&self, job: &Job, supervisor: &mut Supervisor) -> Result<Vec<Source>, LaunchError> {
        let mut outputs = Vec::new();
        for rank in 0..self.ranks {
            let (process, sources) = self.spawn(job, rank, false)?;
            outputs.extend(sources);
            supervisor.add(process).map_err(|source| self.not_started(rank, source))?;
        }
        Ok(outputs)
    }

    /// Starts a rank, and returns its outputs, if they are to be relayed.
    fn spawn(
        &self,
        job: &Job,
        rank: usize,
        joins: bool,
    ) -> Result<(RankProcess, impl Iterator<Item = Source> + use<>), LaunchError> {
        let process = RankProcess::spawn(&mut self.command(job, rank, joins));
        let mut process = process.map_err(|source| self.not_started(rank, source))?;
        let stdout = process.take_stdout().map(|pipe| Source::new(rank, pipe, Destination::Stdout));
        let stderr = process.take_stderr().map(|pipe| Source::new(rank, pipe, Destination::Stderr));
        Ok((process, stdout.into_iter().chain(stderr)))
    }

    fn command(&self, job: &Job, rank: usize, joins: bool) -> Command {
        let mut command = Command::new(&self.program);
        // A rank is not in the foreground process group, so reading from the terminal would stop
        // it.
        command.args(&self.args).stdin(Stdio::null());
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command.envs(self.threads()).envs(job.secret.iter().map(|secret| (environment::SECRET, secret)));
        command.envs(job.variables(rank, joins)).envs(job.device(rank));
        if self.tag_output {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
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

/// A launch whose ranks run.
struct Running<'a> {
    launch: &'a Launch,
    job: &'a Job,
    relays: Vec<Relay>,
}

impl Running<'_> {
    /// Relays outputs, if they are tagged.
    fn relay(&mut self, outputs: Vec<Source>) -> Result<(), LaunchError> {
        if !outputs.is_empty() {
            let system = |source| LaunchError::System { what: "relay output", source };
            self.relays.push(Relay::start(outputs).map_err(system)?);
        }
        Ok(())
    }
}

impl Events for Running<'_> {
    fn replace(&mut self, rank: usize) -> Result<RankProcess, LaunchError> {
        let (process, outputs) = self.launch.spawn(self.job, rank, true)?;
        self.relay(outputs.collect())?;
        Ok(process)
    }

    fn first_success(&mut self) {
        if self.launch.ranks_max > 0 {
            // If this fails, processes that wait to join end at their deadline.
            let _ = store::close_wait_list(self.job);
        }
    }
}

fn random_secret() -> io::Result<OsString> {
    let mut bytes = [0; 16];
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)).into())
}

fn random_job_id() -> io::Result<NonZeroU64> {
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
