//! Reads a [`Config`] from the environment.

mod environment;
mod launcher;
#[cfg(test)]
mod launcher_tests;
mod misspelt;
mod port;
mod rendezvous;
mod slurm;
#[cfg(test)]
mod table_tests;
#[cfg(test)]
mod tests;
mod tls;
mod variables;

use std::fs;
use std::net::IpAddr;
use std::time::Duration;

use comm_core::{Error, Invalid, LinkModel, Membership, Refusal, Result};
use comm_tcp::Secret;

pub(crate) use self::environment::Environment;
use self::launcher::{Kind, Launch};
pub(crate) use self::port::introduced;
use self::rendezvous::StoreLocation;
use self::variables::{
    ADVERTISE_ADDR, CHECKSUM, JOB_ID, JOIN, JOIN_ID, KEEPALIVE_TIMEOUT_S, LINKS, MASTER_ADDR, MASTER_PORT,
    PORT_RANGE, RENDEZVOUS, RENDEZVOUS_TIMEOUT_S, SECRET, SOCKET_IFNAME, STORE, TCP_SOCKETS, TIMEOUT_S,
    TRANSPORT, Variable,
};
use crate::{Config, StoreHost, TransportKind};

/// Set to `True` by torchrun if its agent serves the store.
const AGENT_STORE: Variable = Variable::text("TORCHELASTIC_USE_AGENT_STORE");

/// Returns whether a launcher has set the rank of this process, even if the value is unusable.
pub(crate) fn is_launched(environment: &Environment) -> bool {
    launcher::has_started(environment)
}

/// Replaces the name of a setting in an error by the name of the variable that sets it.
pub(crate) fn name_variable(error: Error) -> Error {
    let has_address =
        matches!(StoreLocation::read(&Environment::of_process()), Ok(StoreLocation::Address(..)));
    let variable = |name: String| {
        if has_address && [MASTER_ADDR.name, MASTER_PORT.name].contains(&name.as_str()) {
            return RENDEZVOUS.name.to_owned();
        }
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

/// Returns the configuration that the environment describes.
pub(crate) fn config(environment: &Environment) -> Result<Config> {
    misspelt::check(environment)?;
    let launch = Launch::find(environment)?;
    let mut config = match &launch {
        Some(launch) => launched(launch, environment)?,
        None => alone(environment)?,
    };
    config.join = environment.number(&JOIN)? == Some(1);
    config.join_id = environment.number(&JOIN_ID)?.filter(|id| *id > 0);
    set_options(&mut config, environment)?;
    Ok(config)
}

/// Returns the configuration of a rank whose place in its world is known, with the options that the
/// environment sets.
pub(crate) fn options(membership: Membership, environment: &Environment) -> Result<Config> {
    misspelt::check(environment)?;
    let mut config = Config::new(membership, "", 0)?;
    set_options(&mut config, environment)?;
    Ok(config)
}

/// Sets the fields that do not depend on the launcher.
fn set_options(config: &mut Config, environment: &Environment) -> Result<()> {
    config.transport = transport(environment)?;
    #[cfg(feature = "shm")]
    {
        config.host_id = environment.text(&variables::HOSTID)?.map(str::to_owned);
        if let Some(bytes) = environment.size(&variables::ZERO_COPY_BYTES)? {
            config.shm.zero_copy_bytes = bytes;
        }
        config.shm.single_copy_bytes = environment.size(&variables::SINGLE_COPY_BYTES)?;
    }
    config.secret = environment.text(&SECRET)?.map(Secret::new).transpose()?;
    config.tcp.checksums = environment.text(&CHECKSUM)? == Some("crc32c");
    tls::set(config, environment)?;
    config.interface = environment.text(&SOCKET_IFNAME)?.map(str::to_owned);
    config.advertise = environment.text(&ADVERTISE_ADDR)?.map(advertised).transpose()?;
    config.ports = environment.ports(&PORT_RANGE)?;
    config.tcp.sockets_per_peer = environment.size(&TCP_SOCKETS)?;
    if let Some(seconds) = environment.number(&KEEPALIVE_TIMEOUT_S)? {
        config.tcp.keepalive_timeout = Some(Duration::from_secs(seconds));
    }
    if let Some(seconds) = environment.number(&TIMEOUT_S)? {
        config.timeout = Duration::from_secs(seconds);
    }
    if let Some(seconds) = environment.number(&RENDEZVOUS_TIMEOUT_S)? {
        config.rendezvous_timeout = Duration::from_secs(seconds);
    }
    #[cfg(feature = "flight")]
    {
        config.flight_dir = environment.text(&variables::FLIGHT_DIR)?.map(Into::into);
        config.ring.record_on_close = environment.number(&variables::FLIGHT_ON_CLOSE)? == Some(1);
    }
    if let Some(calls) = environment.size(&variables::FLIGHT_CALLS)? {
        config.ring.recorded_calls = calls;
    }
    #[cfg(feature = "monitor")]
    {
        config.monitor = environment.number(&variables::MONITOR)? != Some(0);
    }
    config.ring.reject_nan = environment.number(&variables::NAN_CHECK)? == Some(1);
    config.ring.exact_times = environment.text(&variables::FLIGHT_TIMES)? == Some("exact");
    #[cfg(feature = "nccl")]
    if let Some(path) = environment.text(&variables::DEVICE_PATH)? {
        let refused =
            |_| Error::setting(variables::DEVICE_PATH.name, path, "it must be nccl, staged or auto");
        config.devices.path = path.parse().map_err(refused)?;
    }
    config.ring.links = environment.text(&LINKS)?.map(links).transpose()?;
    Ok(())
}

/// Returns the configuration of a process that serves the store for ranks with these variables.
pub(crate) fn store_server(environment: &Environment) -> Result<Config> {
    let mut config = Config::new(Membership { rank: 0, size: 1 }, "", 0)?;
    config.secret = environment.text(&SECRET)?.map(Secret::new).transpose()?;
    tls::set(&mut config, environment)?;
    Ok(config)
}

fn advertised(text: &str) -> Result<IpAddr> {
    let refused = |_| Error::setting(ADVERTISE_ADDR.name, text, "it must be an IP address, not a name");
    text.parse().map_err(refused)
}

/// Returns the configuration of a process without a launcher: a world of one rank.
fn alone(environment: &Environment) -> Result<Config> {
    if environment.is_set(slurm::RANK.name) {
        tracing::warn!(
            "world of one rank: Slurm started this process as a batch script or shell, not as a task; \
             use `srun PROGRAM` to start one rank per task"
        );
    } else {
        tracing::info!("world of one rank: no launcher has started this process");
    }
    Config::new(Membership { rank: 0, size: 1 }, "", 0)
}

/// Returns the configuration that a launcher describes.
fn launched(launch: &Launch, environment: &Environment) -> Result<Config> {
    let rank_info = launch.rank_info(environment)?;
    let location = StoreLocation::read(environment)?;
    let manager = match &location {
        StoreLocation::Launcher => launch.process_manager(environment, &rank_info)?,
        StoreLocation::Address(..) | StoreLocation::Folder(_) => None,
    };
    let (addr, port) = match &location {
        StoreLocation::Launcher if manager.is_some() => (String::new(), 0),
        StoreLocation::Launcher if rank_info.world_size > 1 || has_master(environment) => {
            launch.master(environment, &rank_info)?
        }
        StoreLocation::Address(host, port) => (host.clone(), *port),
        StoreLocation::Launcher | StoreLocation::Folder(_) => (String::new(), 0),
    };
    let mut config =
        Config::new(Membership { rank: rank_info.rank, size: rank_info.world_size }, &addr, port)?;
    config.local_rank = rank_info.local_rank;
    config.local_world_size = rank_info.local_world_size;
    config.store = match location {
        StoreLocation::Folder(folder) => StoreHost::Folder(folder),
        StoreLocation::Launcher if let Some(manager) = manager => manager,
        StoreLocation::Launcher | StoreLocation::Address(..) => store_host(launch, &location, environment)?,
    };
    config.job = match environment.number(&JOB_ID)? {
        Some(job) => job,
        None => launch.job(environment)?.map_or(0, |job| fnv_1a(job.as_bytes())),
    };
    Ok(config)
}

/// Returns whether the address of the store is set, which a world of one rank does not need, but a
/// process that joins it does.
fn has_master(environment: &Environment) -> bool {
    environment.is_set(MASTER_ADDR.name) && environment.is_set(MASTER_PORT.name)
}

fn store_host(launch: &Launch, location: &StoreLocation, environment: &Environment) -> Result<StoreHost> {
    let is_agents = || match launch.launcher.kind {
        Kind::Torch if *location == StoreLocation::Launcher => {
            Ok(environment.text(&AGENT_STORE)? == Some("True"))
        }
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
            let reason = "comm was built without the feature `shm`; use tcp, or enable the feature";
            return Err(Error::setting(TRANSPORT.name, "shm", reason));
        }
        _ => TransportKind::Auto,
    })
}

/// Parses a model of the links: its text, or `@` and the path of a file that contains it.
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

/// Returns the 64-bit FNV-1a hash, which is equal on every rank and in every build.
pub(crate) fn fnv_1a(bytes: &[u8]) -> u64 {
    let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, mix)
}
