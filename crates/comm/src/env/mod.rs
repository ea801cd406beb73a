//! What the variables of the environment mean.

mod environment;
mod launcher;
#[cfg(test)]
mod launcher_tests;
mod misspelt;
mod slurm;
#[cfg(test)]
mod table_tests;
#[cfg(test)]
mod tests;
mod variables;

use std::fs;
use std::time::Duration;

use comm_core::{Error, Invalid, LinkModel, Membership, Refusal, Result};
use comm_tcp::Secret;

pub(crate) use self::environment::Environment;
use self::launcher::{Kind, Launch};
use self::variables::{
    JOB_ID, LINKS, PORT_RANGE, RENDEZVOUS_TIMEOUT_S, SECRET, SOCKET_IFNAME, STORE, TCP_SOCKETS, TIMEOUT_S,
    TRANSPORT, Variable,
};
use crate::{Config, StoreHost, TransportKind};

/// What torchrun says of its agent's store, and how often it has started the ranks.
const AGENT_STORE: Variable = Variable::text("TORCHELASTIC_USE_AGENT_STORE");

/// Whether a launcher has told this process its rank, rightly or not.
pub(crate) fn is_launched(environment: &Environment) -> bool {
    launcher::has_started(environment)
}

/// The same error, with a setting of the crates below under the name of the variable that set it.
pub(crate) fn name_variable(error: Error) -> Error {
    let variable = |name: String| {
        let variable = variables::ALL.into_iter().find(|ours| ours.setting == Some(name.as_str()));
        variable.map_or(name, |variable| variable.name.to_owned())
    };
    match error {
        Error::Invalid(Invalid::Setting { name, value, reason }) => {
            Invalid::Setting { name: variable(name), value, reason }.into()
        }
        Error::Handshake { with, refusal: Refusal::Setting { name, ours, theirs, rank } } => {
            let refusal = Refusal::Setting { name: variable(name), ours, theirs, rank };
            Error::Handshake { with, refusal }
        }
        other => other,
    }
}

/// The configuration that the environment describes.
pub(crate) fn config(environment: &Environment) -> Result<Config> {
    misspelt::check(environment)?;
    let launch = Launch::find(environment)?;
    let mut config = match &launch {
        Some(launch) => launched(launch, environment)?,
        None => alone(environment)?,
    };
    config.transport = transport(environment)?;
    #[cfg(feature = "shm")]
    {
        config.host_part = environment.text(&variables::HOST_PART)?.map(str::to_owned);
        if let Some(bytes) = environment.size(&variables::LEND_BYTES)? {
            config.shm.lend_bytes = bytes;
        }
        config.shm.single_copy_bytes = environment.size(&variables::SINGLE_COPY_BYTES)?;
    }
    config.secret = environment.text(&SECRET)?.map(Secret::new).transpose()?;
    config.interface = environment.text(&SOCKET_IFNAME)?.map(str::to_owned);
    config.ports = environment.ports(&PORT_RANGE)?;
    if let Some(sockets) = environment.size(&TCP_SOCKETS)? {
        config.tcp.sockets_per_peer = sockets;
    }
    if let Some(seconds) = environment.number(&TIMEOUT_S)? {
        config.timeout = Duration::from_secs(seconds);
    }
    if let Some(seconds) = environment.number(&RENDEZVOUS_TIMEOUT_S)? {
        config.rendezvous_timeout = Duration::from_secs(seconds);
    }
    #[cfg(feature = "nccl")]
    if let Some(path) = environment.text(&variables::DEVICE_PATH)? {
        let refused =
            |_| Error::setting(variables::DEVICE_PATH.name, path, "it must be nccl, staged or auto");
        config.devices.path = path.parse().map_err(refused)?;
    }
    config.ring.links = environment.text(&LINKS)?.map(links).transpose()?;
    Ok(config)
}

/// The configuration of a process that no launcher has started: a world of one.
fn alone(environment: &Environment) -> Result<Config> {
    if environment.is_set(slurm::RANK.name) {
        tracing::warn!(
            "a world of one rank: this process is a batch script's or a shell's, not a task of srun; \
             `srun PROGRAM` starts a rank per task"
        );
    } else {
        tracing::info!("a world of one rank: no launcher has started this process");
    }
    Config::new(Membership { rank: 0, size: 1 }, "", 0)
}

/// What the launcher says.
fn launched(launch: &Launch, environment: &Environment) -> Result<Config> {
    let standing = launch.standing(environment)?;
    let (addr, port) = match standing.world_size {
        1 => (String::new(), 0),
        _ => launch.master(environment, &standing)?,
    };
    let mut config = Config::new(Membership { rank: standing.rank, size: standing.world_size }, &addr, port)?;
    config.local_rank = standing.local_rank;
    config.local_world_size = standing.local_world_size;
    config.store = store_host(launch, environment)?;
    config.job = match environment.number(&JOB_ID)? {
        Some(job) => job,
        None => launch.job(environment)?.map_or(0, |job| fnv_1a(job.as_bytes())),
    };
    Ok(config)
}

fn store_host(launch: &Launch, environment: &Environment) -> Result<StoreHost> {
    let is_agents = || match launch.launcher.kind {
        Kind::Torch => Ok(environment.text(&AGENT_STORE)? == Some("True")),
        _ => Ok::<_, Error>(false),
    };
    Ok(match environment.text(&STORE)? {
        Some("launcher") => StoreHost::Launcher,
        Some("torch") => StoreHost::TorchElastic,
        None if is_agents()? => StoreHost::TorchElastic,
        _ => StoreHost::RankZero,
    })
}

fn transport(environment: &Environment) -> Result<TransportKind> {
    Ok(match environment.text(&TRANSPORT)? {
        Some("tcp") => TransportKind::Tcp,
        #[cfg(feature = "shm")]
        Some("shm") => TransportKind::SharedMemory,
        #[cfg(not(feature = "shm"))]
        Some("shm") => {
            let reason = "comm was built without the feature `shm`";
            return Err(Error::setting(TRANSPORT.name, "shm", reason));
        }
        _ => TransportKind::Auto,
    })
}

/// The model of the links: its text, or `@` and the file that holds it.
fn links(setting: &str) -> Result<LinkModel> {
    let refused = |reason: String| Error::setting(LINKS.name, setting, reason);
    let text = match setting.strip_prefix('@') {
        Some(file) => fs::read_to_string(file).map_err(|error| refused(error.to_string()))?,
        None => setting.to_owned(),
    };
    text.parse().map_err(|invalid| match invalid {
        Invalid::Setting { reason, .. } => refused(reason),
        other => other.into(),
    })
}

/// The 64-bit hash of Fowler, Noll and Vo: equal on every rank, whatever it was built with.
fn fnv_1a(bytes: &[u8]) -> u64 {
    let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, mix)
}
