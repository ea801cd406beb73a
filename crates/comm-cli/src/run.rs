//! The command line of `commctl run`.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use comm_cli::__private::program::report;
use comm_cli::launch::{BindTo, Devices, Launch, Nodes};

use crate::error::Result;

/// The default number of processes that may be started for ranks that have failed.
const REPLACEMENTS: usize = 16;

/// Start a program as several ranks on this machine, or on several
#[derive(Debug, Args)]
#[command(
    override_usage = "commctl run -n N [OPTIONS] [--] PROGRAM [ARGS]...",
    after_help = "\
Each rank gets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, GROUP_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, \
COMM_JOB_ID, COMM_STORE=launcher, TORCHELASTIC_RESTART_COUNT and TORCHELASTIC_MAX_RESTARTS in its environment; the launcher serves the store at that address, on a free port. The rest of the \
environment is inherited. Unless they are set, COMM_SECRET is a new random secret for each start, and OMP_NUM_THREADS \
and RAYON_NUM_THREADS are the number of cores divided by the number of ranks, at least 1.

On several hosts, run the same command on each, with --nnodes and --rendezvous, and COMM_SECRET set to the same random text in the \
environment. When a rank fails or a host is lost, all hosts end their ranks and report the cause; they also restart together. \
With --elastic, the others go on instead, and a lost host may be started again with its --node-rank.

Every user of a machine can read arguments: pass a secret in the environment, not with --env COMM_SECRET=TEXT.

When a rank fails, the others get SIGTERM, and SIGKILL after the grace period, unless --elastic lets them go on. SIGINT, SIGTERM and SIGHUP are forwarded \
to all ranks; a second SIGINT or SIGTERM kills them immediately. When the launcher is killed, all ranks and their \
process groups are killed too.

Exit status: 0 if every rank exited 0, or as many as --elastic requires; otherwise the code of the rank that failed first, or 128 plus the signal that \
killed it or that stopped the launcher; 127 if the program was not found, 126 if it cannot be executed.

Examples:
  commctl run -n 4 --tag-output -- ./train --epochs 5
  commctl run -n 4 --nnodes 2 --rendezvous node1:29500 -- ./train    (on node1 and on node2)"
)]
pub(crate) struct Run {
    /// Number of ranks on this machine
    #[arg(short = 'n', long = "ranks", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    ranks: u32,

    /// Number of hosts; `commctl run` starts its ranks on each of them
    #[arg(long, value_name = "N", requires = "rendezvous", value_parser = clap::value_parser!(u32).range(1..))]
    nnodes: Option<u32>,

    /// The number of this host, from 0. By default the host with the address of --rendezvous has
    /// number 0, and the others are numbered as they arrive
    #[arg(long, value_name = "K", requires = "nnodes")]
    node_rank: Option<usize>,

    /// Address of host 0, equal on all hosts, at which they meet
    #[arg(long, value_name = "HOST:PORT", requires = "nnodes", conflicts_with = "master_addr", value_parser = host_and_port)]
    rendezvous: Option<(String, u16)>,

    /// The time for which a host waits for the others
    #[arg(long, value_name = "SECONDS", requires = "nnodes", default_value = "300", value_parser = seconds)]
    rendezvous_timeout: Duration,

    /// Prefix each line of a rank's output with `[rank]: `
    #[arg(long)]
    tag_output: bool,

    /// Write the output of each rank to DIR/START/rank-R/stdout.log and stderr.log, where START is
    /// the number of restarts before. After a failure, the rank's last lines are printed
    #[arg(long, value_name = "DIR")]
    log_dir: Option<PathBuf>,

    /// Show output that is written to files too, with the prefix of --tag-output
    #[arg(long, requires = "log_dir")]
    tee: bool,

    /// Bind each rank to its own share of the cores (core), or to one NUMA node (numa), of those
    /// that commctl may use. If there are more ranks, they share them
    #[arg(long, value_name = "core|numa|none", default_value = "none", hide_default_value = true)]
    bind_to: BindTo,

    /// Set an environment variable of every rank; can be repeated. NAME alone takes the
    /// value from the environment of commctl, and is an error if it is unset
    #[arg(long = "env", value_name = "NAME[=VALUE]", value_parser = variable)]
    env: Vec<Variable>,

    /// Set CUDA_VISIBLE_DEVICES of each rank to one GPU: of a list of indices or names (0,1,2,3),
    /// or device R for rank R (per-rank). Indices refer to the devices visible to commctl
    #[arg(long, value_name = "LIST|per-rank")]
    devices: Option<Devices>,

    /// Let several ranks share a device. NCCL supports that from version 2.30.3 on, with
    /// NCCL_MULTI_RANK_GPU_ENABLE=1
    #[arg(long, requires = "devices")]
    share_devices: bool,

    /// Address of this machine that the store listens on
    #[arg(long, value_name = "IP", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    master_addr: IpAddr,

    /// Restart all ranks after one has failed, at most N times. They get the number of restarts as
    /// TORCHELASTIC_RESTART_COUNT. With --elastic MIN:MAX, start at most N processes for ranks that
    /// have failed [default: 0, or 16 with --elastic MIN:MAX]
    #[arg(long, value_name = "N")]
    max_restarts: Option<usize>,

    /// Let the others go on after a rank has failed, as long as at least MIN have not. With MAX,
    /// start another process for it with COMM_JOIN=1, as long as fewer than MAX run. On several
    /// hosts, both count the ranks of all
    #[arg(long, value_name = "MIN[:MAX]", value_parser = elastic)]
    elastic: Option<Elastic>,

    /// Grace period between SIGTERM and SIGKILL
    #[arg(long, value_name = "SECONDS", default_value = "3", value_parser = seconds)]
    grace: Duration,

    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

impl Run {
    pub(crate) fn execute(self) -> Result<()> {
        let ranks_max = self.elastic.and_then(|elastic| elastic.ranks_max).unwrap_or(0);
        let default_restarts = if ranks_max > 0 { REPLACEMENTS } else { 0 };
        let nodes = self.nodes();
        let mut command = self.command.into_iter();
        let launch = Launch::new(command.next().unwrap_or_default())
            .args(command)
            .ranks(self.ranks as usize)
            .tag_output(self.tag_output)
            .tee(self.tee)
            .bind_to(self.bind_to)
            .master_addr(self.master_addr)
            .max_restarts(self.max_restarts.unwrap_or(default_restarts))
            .on_restart(|restart| report("commctl", restart))
            .ranks_min(self.elastic.map_or(usize::MAX, |elastic| elastic.ranks_min))
            .ranks_max(ranks_max)
            .on_loss(|failure| report("commctl", failure))
            .on_node_change(|change| report("commctl", change))
            .grace(self.grace);
        let set = |launch: Launch, Variable { name, value }| launch.env(name, value);
        let launch = self.env.into_iter().fold(launch, set);
        let launch = match self.devices {
            Some(devices) => launch.devices(devices.shared(self.share_devices)),
            None => launch,
        };
        let launch = match self.log_dir {
            Some(folder) => launch.log_dir(folder),
            None => launch,
        };
        let launch = match nodes {
            Some(nodes) => launch.nodes(nodes),
            None => launch,
        };
        Ok(launch.run()?)
    }

    /// Returns the hosts, if there are several.
    fn nodes(&self) -> Option<Nodes> {
        let ((host, port), count) = (self.rendezvous.clone()?, self.nnodes?);
        if !self.is_set("COMM_SECRET") && !self.is_set("COMM_TLS_CA") && !is_loopback(&host) {
            let warning = format!(
                "no secret: anyone who can reach {host}:{port} can join the job; \
                 set COMM_SECRET to the same random text on every host"
            );
            report("commctl", warning);
        }
        let nodes = Nodes::new(count as usize, host, port).timeout(self.rendezvous_timeout);
        Some(self.node_rank.into_iter().fold(nodes, Nodes::rank))
    }

    /// Returns whether ranks get a variable from the options or the environment.
    fn is_set(&self, name: &str) -> bool {
        self.env.iter().any(|variable| variable.name == name) || env::var_os(name).is_some()
    }
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

pub(crate) fn host_and_port(text: &str) -> Result<(String, u16), &'static str> {
    let wrong = "expected HOST:PORT, with a port from 1 to 65535, as in node1:29500 or [fd00::1]:29500";
    let (host, port) = text.rsplit_once(':').ok_or(wrong)?;
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    // Without brackets, the last part of an IPv6 address would be taken for the port.
    if host.is_empty() || (bare.is_none() && host.contains(':')) {
        return Err(wrong);
    }
    let port = port.parse().ok().filter(|port| *port > 0).ok_or(wrong)?;
    Ok((bare.unwrap_or(host).to_owned(), port))
}

/// The limits of `--elastic`.
#[derive(Debug, Clone, Copy)]
struct Elastic {
    ranks_min: usize,
    ranks_max: Option<usize>,
}

fn elastic(text: &str) -> Result<Elastic, &'static str> {
    let number = |text: &str| text.parse::<usize>().ok().filter(|ranks| *ranks > 0);
    let (min, max) = match text.split_once(':') {
        Some((min, max)) => (number(min), number(max).map(Some)),
        None => (number(text), Some(None)),
    };
    match (min, max) {
        (Some(ranks_min), Some(ranks_max)) if ranks_max.is_none_or(|max| max >= ranks_min) => {
            Ok(Elastic { ranks_min, ranks_max })
        }
        _ => Err("expected MIN or MIN:MAX, numbers of ranks from 1, MAX not less than MIN"),
    }
}

/// An environment variable of the ranks. `Debug` omits its value, which may be a secret.
#[derive(Clone)]
struct Variable {
    name: String,
    value: OsString,
}

impl fmt::Debug for Variable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Variable").field("name", &self.name).finish_non_exhaustive()
    }
}

fn variable(text: &str) -> Result<Variable, &'static str> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value.into())),
        None => (text, None),
    };
    if name.is_empty() {
        return Err("expected NAME=VALUE or NAME");
    }
    let value = value.or_else(|| env::var_os(name)).ok_or("it is not set in the environment of commctl")?;
    Ok(Variable { name: name.to_owned(), value })
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|error| format!("{error}"))?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}
