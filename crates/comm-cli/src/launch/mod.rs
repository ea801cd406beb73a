//! Starts the ranks of a job on this machine and sees to it that all of them end.
//!
//! | file | question |
//! |---|---|
//! | `environment` | what does a rank learn about its place? |
//! | `devices` | which GPUs is it shown? |
//! | `store` | where do ranks meet? |
//! | `process` | how is one rank started so that it can always be ended? |
//! | `limits` | does this machine allow so many ranks? |
//! | `guard` | who ends the ranks when the launcher is killed? |
//! | `signals` | how does Ctrl-C arrive? |
//! | `supervisor` | who ended first, and what happens to the rest? |
//! | `relay`, `lines` | how do lines of many ranks become one output? |
//! | `error` | what went wrong, and which exit code says so? |

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

use rustix::rand::{GetRandomFlags, getrandom};

pub use devices::{Devices, DevicesError};
pub use error::{Ending, LaunchError, RankFailure};

use environment::Job;
use process::RankProcess;
use relay::{Destination, Relay, Source};
use signals::StopSignals;
use supervisor::Supervisor;

/// Leaves room below the five seconds after which a user reaches for `kill -9`.
const DEFAULT_GRACE: Duration = Duration::from_secs(3);

/// A program that is to run as several ranks of one job on this machine.
///
/// Every rank gets the launcher's environment and on top of it `RANK`, `WORLD_SIZE`, `LOCAL_RANK`,
/// `LOCAL_WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT` as under torchrun, `COMM_JOB_ID`, a random
/// number that is not zero in hexadecimal, and `COMM_STORE=launcher`. The launcher serves the store
/// at `MASTER_ADDR:MASTER_PORT`, on a free port, and outlives every rank. Ranks read end of file
/// from their standard input.
///
/// Unless they are set, every rank also gets `COMM_SECRET`, a random text that is new in each
/// launch, and `OMP_NUM_THREADS` and `RAYON_NUM_THREADS`, the number of cores divided by that of
/// ranks, at least 1. The secret is in the environment alone, never among arguments; `Debug` of a
/// launch shows the names of variables and not their values.
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
            .finish()
    }
}

impl Launch {
    /// One rank of `program`, which is looked up in `PATH` unless it contains a slash.
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

    /// How many processes to start; at least 1.
    pub fn ranks(mut self, ranks: usize) -> Self {
        self.ranks = ranks;
        self
    }

    /// Sets an environment variable of every rank. Those that the launcher sets are refused by
    /// [`Launch::run`].
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// The address of this machine that the store listens on; 127.0.0.1 unless set.
    pub fn master_addr(mut self, address: IpAddr) -> Self {
        self.master_addr = address;
        self
    }

    /// Whether to put `[rank]: ` before every line that a rank writes. Lines are then passed on
    /// whole; an unfinished line is held back until its end, however long it gets. Otherwise ranks
    /// inherit the launcher's output as it is.
    pub fn tag_output(mut self, tag: bool) -> Self {
        self.tag_output = tag;
        self
    }

    /// How long ranks that were asked to end may take before they are killed; 3 seconds unless set.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Shows each rank one GPU, by `CUDA_VISIBLE_DEVICES`; unless set, ranks are shown those that
    /// the launcher is.
    pub fn devices(mut self, devices: Devices) -> Self {
        self.devices = Some(devices);
        self
    }

    /// Starts all ranks and returns when the last one is gone. It blocks the calling thread, which
    /// the ranks are tied to: they are killed when it ends, even if by a SIGKILL to the whole
    /// process. A guard, a process of `sh`, then kills the process groups of the ranks; where there
    /// is no `sh`, only the ranks themselves are killed.
    ///
    /// While it runs, SIGINT, SIGTERM and SIGHUP are taken from this process and passed on to the
    /// ranks; a SIGINT or SIGTERM while ranks are already being ended kills them at once. A rank is
    /// its whole process group: when the rank itself has ended, what it left behind in the group is
    /// ended too.
    ///
    /// # Errors
    ///
    /// - [`LaunchError::RankFailed`] names the rank that failed first. The others were asked to end
    ///   at once, with SIGTERM, and killed after the grace period.
    /// - [`LaunchError::Interrupted`]: a signal told the launcher to stop.
    /// - The other variants tell why nothing was started, or nothing was left running.
    pub fn run(self) -> Result<(), LaunchError> {
        self.check()?;
        let devices = self.assigned_devices()?;
        let system = |what| move |source| LaunchError::System { what, source };
        let signals = StopSignals::catch().map_err(system("catch signals"))?;
        let id = random_job_id().map_err(system("draw a job id"))?;
        let address = SocketAddr::new(self.master_addr, 0);
        let secret = self.secret().map_err(system("draw a secret"))?;
        let store = store::serve(address, id, &secret)
            .map_err(|error| LaunchError::Store { address, error: Box::new(error) })?;
        let job = Job { ranks: self.ranks, store: store.local_addr(), id, secret, devices };
        let mut supervisor = Supervisor::new(signals, self.grace).map_err(system("watch the ranks"))?;
        let outputs = self.start_all(&job, &mut supervisor)?;
        let relay =
            self.tag_output.then(|| Relay::start(outputs)).transpose().map_err(system("relay output"))?;
        // After this a Ctrl-C does what it does by default: only the output of the dead is still
        // being written.
        let outcome = supervisor.run();
        let relayed = relay.map_or(Ok(()), Relay::finish).map_err(system("relay output"));
        outcome.and(relayed)
    }

    fn check(&self) -> Result<(), LaunchError> {
        if self.ranks == 0 {
            return Err(LaunchError::NoRanks);
        }
        let shows = self.devices.is_some();
        if shows && self.env.iter().any(|(name, _)| name == devices::VISIBLE) {
            return Err(LaunchError::ReservedVariable(devices::VISIBLE));
        }
        self.env.iter().try_for_each(|(name, _)| environment::check_not_reserved(name))?;
        limits::check(self.ranks, self.tag_output)
    }

    /// The device of each rank, if they are to be shown one each.
    fn assigned_devices(&self) -> Result<Option<Vec<String>>, LaunchError> {
        let visible = env::var(devices::VISIBLE).ok();
        let assign = |devices: &Devices| devices.assign(self.ranks, visible.as_deref());
        Ok(self.devices.as_ref().map(assign).transpose()?)
    }

    /// The value of a variable that the user chose for the ranks, here or in the environment of
    /// this process.
    fn chosen(&self, name: &str) -> Option<OsString> {
        let given = self.env.iter().rev().find(|(given, _)| given.as_os_str() == OsStr::new(name));
        given.map(|(_, value)| value.clone()).or_else(|| env::var_os(name))
    }

    /// The secret that the ranks will see: the user's, or a new one.
    fn secret(&self) -> io::Result<OsString> {
        self.chosen(environment::SECRET).map_or_else(random_secret, Ok)
    }

    /// The variables that keep the threads of all ranks together to the number of cores.
    fn threads(&self) -> impl Iterator<Item = (&'static str, String)> {
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        let share = (cores / self.ranks.max(1)).max(1).to_string();
        let unset = environment::THREADS.into_iter().filter(|name| self.chosen(name).is_none());
        unset.map(move |name| (name, share.clone()))
    }

    /// Starts every rank under the supervisor, and returns what of their output is to be relayed.
    fn start_all(&self, job: &Job, supervisor: &mut Supervisor) -> Result<Vec<Source>, LaunchError> {
        let mut outputs = Vec::new();
        for rank in 0..self.ranks {
            let not_started = |source| self.not_started(rank, source);
            let mut process = RankProcess::spawn(&mut self.command(job, rank)).map_err(not_started)?;
            outputs.extend(process.take_stdout().map(|pipe| Source::new(rank, pipe, Destination::Stdout)));
            outputs.extend(process.take_stderr().map(|pipe| Source::new(rank, pipe, Destination::Stderr)));
            supervisor.add(process).map_err(not_started)?;
        }
        Ok(outputs)
    }

    fn command(&self, job: &Job, rank: usize) -> Command {
        let mut command = Command::new(&self.program);
        // The terminal belongs to the launcher's process group: a rank that read from it would be
        // stopped.
        command.args(&self.args).stdin(Stdio::null());
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command.envs(self.threads()).env(environment::SECRET, &job.secret);
        command.envs(job.variables(rank)).envs(job.device(rank));
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

/// 128 random bits in hexadecimal.
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
