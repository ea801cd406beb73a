//! Starts the ranks of a job on this machine, supervises them, and terminates them together, also
//! with those on other hosts.

mod agents;
mod binding;
mod devices;
mod elastic;
mod environment;
mod error;
mod events;
mod guard;
mod hosts;
mod limits;
mod lines;
mod logs;
mod process;
mod relay;
mod running;
mod signals;
mod start;
mod store;
mod supervisor;

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use environment::Assigned;

pub use agents::{AgentError, Node, NodeChange, Nodes};
pub use binding::{BindTo, BindingError};
pub use devices::{Devices, DevicesError};
pub use error::{LaunchError, ProcessExit, RankFailure, Restart};

const DEFAULT_GRACE: Duration = Duration::from_secs(3);

/// A builder that runs a program as several ranks of one job on this machine, and with
/// [`Launch::nodes`] on several.
///
/// Every rank inherits the launcher's environment and gets `RANK`, `WORLD_SIZE`, `LOCAL_RANK`,
/// `LOCAL_WORLD_SIZE`, `GROUP_RANK` (also as `NODE_RANK`), `GROUP_WORLD_SIZE`, `MASTER_ADDR`,
/// `MASTER_PORT` and `TORCHELASTIC_MAX_RESTARTS` as under torchrun, `COMM_JOB_ID` with a random
/// nonzero number in hexadecimal, `COMM_STORE=launcher`, `COMM_JOIN=0` and `COMM_JOIN_ID=0`. The
/// launcher serves the store at `MASTER_ADDR:MASTER_PORT`, on a free port, and outlives every rank.
/// The standard input of ranks is empty.
///
/// Unless they are set, every rank also gets `COMM_SECRET` with a random secret that is new for
/// each start (see [`Launch::random_secret`]), and `OMP_NUM_THREADS` and `RAYON_NUM_THREADS` with
/// the number of cores divided by the number of ranks, but at least 1. On several hosts no secret
/// is drawn, because it would have to be sent. The secret is never passed
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
    nodes: Option<Nodes>,
    tag_output: bool,
    log_dir: Option<PathBuf>,
    tee: bool,
    bind_to: BindTo,
    grace: Duration,
    devices: Option<Devices>,
    random_secret: bool,
    max_restarts: usize,
    on_restart: fn(&Restart),
    ranks_min: usize,
    ranks_max: usize,
    on_loss: fn(&RankFailure),
    on_node_change: fn(&NodeChange),
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
            .field("nodes", &self.nodes)
            .field("tag_output", &self.tag_output)
            .field("log_dir", &self.log_dir)
            .field("tee", &self.tee)
            .field("bind_to", &self.bind_to)
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
            nodes: None,
            tag_output: false,
            log_dir: None,
            tee: false,
            bind_to: BindTo::None,
            grace: DEFAULT_GRACE,
            devices: None,
            random_secret: true,
            max_restarts: 0,
            on_restart: |_| {},
            ranks_min: usize::MAX,
            ranks_max: 0,
            on_loss: |_| {},
            on_node_change: |_| {},
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

    /// Sets the number of ranks on this host, at least 1. The default is 1.
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

    /// Runs the ranks together with the ranks of other hosts; on each of these, another launch
    /// starts its own. Ranks are numbered by node rank, and hosts may have different numbers of
    /// them.
    ///
    /// When a rank fails, or a host or its launcher is lost, all launches terminate their ranks and
    /// return the same cause; they also restart their ranks together. With [`Launch::ranks_min`] or
    /// [`Launch::ranks_max`] they go on instead, and another launch with the same node rank may
    /// take the place of one that was lost, unless that was node 0, which serves the stores. The
    /// agents and the ranks use the secret in `COMM_SECRET`, which has to be the same on all hosts.
    /// Without one, anyone who can reach the address can join.
    pub fn nodes(mut self, nodes: Nodes) -> Self {
        self.nodes = Some(nodes);
        self
    }

    /// Sets whether to prefix every line of output with `[rank]: `. An unfinished line is then
    /// buffered until its end. By default ranks inherit the launcher's standard output and error.
    pub fn tag_output(mut self, tag: bool) -> Self {
        self.tag_output = tag;
        self
    }

    /// Writes the output of each rank to files: `START/rank-R/stdout.log` and `stderr.log` in this
    /// folder, where START is the number of restarts before. Files that exist are emptied. After a
    /// failure, [`RankFailure::last_lines`] has the end of the rank's `stderr.log`.
    ///
    /// The output is then not shown, unless [`Launch::tee`] or [`Launch::tag_output`] is set.
    pub fn log_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        self.log_dir = Some(folder.into());
        self
    }

    /// Sets whether output that is written to files is also shown, as by [`Launch::tag_output`].
    pub fn tee(mut self, tee: bool) -> Self {
        self.tee = tee;
        self
    }

    /// Binds ranks to processors. By default ranks may use all those of the launcher.
    ///
    /// `OMP_NUM_THREADS` and `RAYON_NUM_THREADS` then default to the number of processors of the
    /// rank, divided by the number of ranks that share them.
    pub fn bind_to(mut self, bind_to: BindTo) -> Self {
        self.bind_to = bind_to;
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

    /// Sets the number of times that all ranks are restarted after one of them has failed. The
    /// default is 0. Every rank gets the number of restarts so far as
    /// `TORCHELASTIC_RESTART_COUNT`, as under torchrun.
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
    /// failed. By default a failure ends all ranks. On several hosts, this counts the ranks of all,
    /// and a host may be lost with its ranks.
    ///
    /// A program for this continues with the ranks that remain, for example by
    /// [`Comm::shrink`](comm::Comm::shrink).
    pub fn ranks_min(mut self, ranks: usize) -> Self {
        self.ranks_min = ranks;
        self
    }

    /// Starts another process for a rank that has failed, as long as fewer than `ranks` run and not
    /// more than [`Launch::max_restarts`] times in all. Then no failure restarts all ranks. By
    /// default no process is replaced. On several hosts, both limits count the ranks of all; the
    /// process is started on the host of the failed rank.
    ///
    /// The new process gets `COMM_JOIN=1` and a `COMM_JOIN_ID`: with
    /// [`ElasticGroup`](comm::ElasticGroup) it joins the group of the others, whose ranks it does
    /// not affect. Nothing is replaced once a rank has exited with code 0, and processes that wait
    /// to join then end. If no rank of the group is left that a process could join, the launch ends
    /// with the first failure.
    pub fn ranks_max(mut self, ranks: usize) -> Self {
        self.ranks_max = ranks;
        self
    }

    /// Sets a function that is called when a rank has failed and the others go on.
    pub fn on_loss(mut self, report: fn(&RankFailure)) -> Self {
        self.on_loss = report;
        self
    }

    /// Sets a function that is called when a host is lost and the others go on, and when a host
    /// that was lost has come back.
    pub fn on_node_change(mut self, report: fn(&NodeChange)) -> Self {
        self.on_node_change = report;
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
    ///   With `COMM_FLIGHT_DIR`, SIGTERM came a second later, for them to record their calls.
    /// - [`LaunchError::Interrupted`] if a signal stopped the launcher.
    /// - [`LaunchError::Agents`] if the launchers of several hosts did not meet, or one of them was
    ///   lost, was stopped or could not start its ranks.
    /// - For the other variants, no rank was started or all were killed.
    pub fn run(self) -> Result<(), LaunchError> {
        self.check()?;
        let assigned = Assigned { devices: self.assigned_devices()?, cpus: self.bind_to.assign(self.ranks)? };
        let mut agents = self.nodes.as_ref().map(|nodes| self.join(nodes)).transpose()?;
        let mut number = 0;
        loop {
            let outcome = match &mut agents {
                Some(agents) => self.run_on_nodes(number, assigned.clone(), agents),
                None => self.run_alone(number, assigned.clone()),
            };
            match outcome {
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

    fn check(&self) -> Result<(), LaunchError> {
        if self.ranks == 0 {
            return Err(LaunchError::NoRanks);
        }
        let restarts = self.ranks_max == 0 && self.max_restarts > 0;
        if self.nodes.is_some() && self.is_elastic() && restarts {
            return Err(AgentError::ElasticRestarts.into());
        }
        if self.devices.is_some() && self.env.iter().any(|(name, _)| name == devices::VISIBLE) {
            return Err(LaunchError::ReservedVariable(devices::VISIBLE));
        }
        self.env.iter().try_for_each(|(name, _)| environment::check_not_reserved(name))?;
        let (pipes, files) = (usize::from(self.is_relayed()) * 2, usize::from(self.log_dir.is_some()) * 2);
        limits::check(self.ranks, pipes + files)
    }

    /// Returns whether the others go on after a rank has failed.
    fn is_elastic(&self) -> bool {
        self.ranks_max > 0 || self.ranks_min < usize::MAX
    }

    /// Returns whether the launcher shows the output of ranks, line by line.
    fn is_relayed(&self) -> bool {
        self.tag_output || self.tee
    }

    fn assigned_devices(&self) -> Result<Option<Vec<String>>, LaunchError> {
        let visible = env::var(devices::VISIBLE).ok();
        let assign = |devices: &Devices| devices.assign(self.ranks, visible.as_deref());
        Ok(self.devices.as_ref().map(assign).transpose()?)
    }
}
