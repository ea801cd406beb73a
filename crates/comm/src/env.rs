//! What the variables of the environment mean.

use std::fmt::Display;
use std::fs;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use comm_core::{Error, Invalid, LinkModel, Result};
use comm_tcp::{Secret, TcpConfig};

use crate::{Config, StoreHost, TransportKind};

/// Looks up a variable.
type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The variables of one launcher.
struct Family {
    rank: &'static str,
    world_size: &'static str,
    local_rank: &'static str,
    local_world_size: &'static str,
}

const FAMILIES: [Family; 4] = [
    Family {
        rank: "RANK",
        world_size: "WORLD_SIZE",
        local_rank: "LOCAL_RANK",
        local_world_size: "LOCAL_WORLD_SIZE",
    },
    Family {
        rank: "OMPI_COMM_WORLD_RANK",
        world_size: "OMPI_COMM_WORLD_SIZE",
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
        local_world_size: "OMPI_COMM_WORLD_LOCAL_SIZE",
    },
    Family {
        rank: "PMI_RANK",
        world_size: "PMI_SIZE",
        local_rank: "MPI_LOCALRANKID",
        local_world_size: "MPI_LOCALNRANKS",
    },
    Family {
        rank: "SLURM_PROCID",
        world_size: "SLURM_NTASKS",
        local_rank: "SLURM_LOCALID",
        local_world_size: "SLURM_NTASKS_PER_NODE",
    },
];

#[cfg(feature = "nccl")]
const DEVICE_PATH: &str = "COMM_DEVICE_PATH";
const LINKS: &str = "COMM_LINKS";
const SOCKETS: &str = "COMM_TCP_SOCKETS";
const MISSING: &str =
    "it is not set; start the program with `commctl run -n N -- PROGRAM`, torchrun, mpirun or srun";

/// Whether some launcher has told a rank.
pub(crate) fn is_launched(lookup: Lookup<'_>) -> bool {
    FAMILIES.iter().any(|family| lookup(family.rank).is_some())
}

/// The configuration that the environment describes.
pub(crate) fn config(lookup: Lookup<'_>) -> Result<Config> {
    let [torch, ..] = &FAMILIES;
    let family = FAMILIES.iter().find(|family| lookup(family.rank).is_some()).unwrap_or(torch);
    let rank: usize = required(lookup, family.rank)?;
    let world_size: usize = required(lookup, family.world_size)?;
    if rank >= world_size {
        let reason =
            format!("ranks of {} = {world_size} count from 0 to {world_size} - 1", family.world_size);
        return Err(Error::setting(family.rank, rank.to_string(), reason));
    }
    let alone = world_size == 1;
    let master_addr = if alone { String::new() } else { required(lookup, "MASTER_ADDR")? };
    let master_port = if alone { 0 } else { required(lookup, "MASTER_PORT")? };
    if !alone && master_port == 0 {
        return Err(Error::setting("MASTER_PORT", "0", "ranks cannot find a port that the system chooses"));
    }
    let mut config = Config::new(rank, world_size, &master_addr, master_port)?;
    if let Some(local_rank) = optional(lookup, family.local_rank)? {
        config.local_rank = local_rank;
    }
    if let Some(local_world_size) = optional(lookup, family.local_world_size)? {
        config.local_world_size = local_world_size;
    }
    config.store = store_host(lookup)?;
    config.job = job(lookup)?;
    if config.store == StoreHost::TorchElastic {
        config.round = optional(lookup, "TORCHELASTIC_RESTART_COUNT")?.unwrap_or(0);
    }
    config.transport = transport(lookup)?;
    #[cfg(feature = "shm")]
    {
        config.host_part = lookup("COMM_HOST_PART").filter(|part| !part.is_empty());
        if let Some(bytes) = optional(lookup, "COMM_LEND_BYTES")? {
            config.shm.lend_bytes = bytes;
        }
        config.shm.single_copy_bytes = optional(lookup, "COMM_SINGLE_COPY_BYTES")?;
    }
    config.secret = lookup("COMM_SECRET").map(Secret::new).transpose()?;
    config.interface = lookup("COMM_SOCKET_IFNAME").filter(|setting| !setting.is_empty());
    if let Some(sockets) = optional(lookup, SOCKETS)? {
        config.tcp.sockets_per_peer = in_range(SOCKETS, sockets, 1..=TcpConfig::SOCKETS_MAX)?;
    }
    if let Some(seconds) = optional::<u64>(lookup, "COMM_TIMEOUT_S")? {
        config.timeout = Duration::from_secs(seconds);
    }
    if let Some(seconds) = optional::<u64>(lookup, "COMM_RENDEZVOUS_TIMEOUT_S")? {
        config.rendezvous_timeout = Duration::from_secs(seconds);
    }
    #[cfg(feature = "nccl")]
    if let Some(path) = lookup(DEVICE_PATH) {
        config.devices.path = path
            .parse()
            .map_err(|_| Error::setting(DEVICE_PATH, path.clone(), "it must be nccl, staged or auto"))?;
    }
    config.ring.links = lookup(LINKS).map(|setting| links(&setting)).transpose()?;
    Ok(config)
}

/// The model of the links: its text, or `@` and the file that holds it.
fn links(setting: &str) -> Result<LinkModel> {
    let refused = |reason: String| Error::setting(LINKS, setting, reason);
    let text = match setting.strip_prefix('@') {
        Some(file) => fs::read_to_string(file).map_err(|error| refused(error.to_string()))?,
        None => setting.to_owned(),
    };
    text.parse().map_err(|invalid| match invalid {
        Invalid::Setting { reason, .. } => refused(reason),
        other => other.into(),
    })
}

fn store_host(lookup: Lookup<'_>) -> Result<StoreHost> {
    match lookup("COMM_STORE").as_deref() {
        None if lookup("TORCHELASTIC_USE_AGENT_STORE").as_deref() == Some("True") => {
            Ok(StoreHost::TorchElastic)
        }
        None | Some("rank0") => Ok(StoreHost::RankZero),
        Some("launcher") => Ok(StoreHost::Launcher),
        Some("torch") => Ok(StoreHost::TorchElastic),
        Some(other) => Err(Error::setting("COMM_STORE", other, "it must be rank0, launcher or torch")),
    }
}

fn transport(lookup: Lookup<'_>) -> Result<TransportKind> {
    match lookup("COMM_TRANSPORT").as_deref() {
        None => Ok(TransportKind::default()),
        #[cfg(feature = "hybrid")]
        Some("auto") => Ok(TransportKind::Auto),
        Some("tcp") => Ok(TransportKind::Tcp),
        #[cfg(feature = "shm")]
        Some("shm") => Ok(TransportKind::SharedMemory),
        Some(other) => {
            let known = match (cfg!(feature = "hybrid"), cfg!(feature = "shm")) {
                (true, _) => "auto, tcp or shm",
                (false, true) => "tcp or shm; the feature `hybrid` is off",
                (false, false) => "tcp; the features `hybrid` and `shm` are off",
            };
            Err(Error::setting("COMM_TRANSPORT", other, format!("it must be {known}")))
        }
    }
}

fn job(lookup: Lookup<'_>) -> Result<u64> {
    let Some(job) = lookup("COMM_JOB_ID") else {
        return Ok(lookup("TORCHELASTIC_RUN_ID").map_or(0, |run| fnv_1a(run.as_bytes())));
    };
    u64::from_str_radix(&job, 16)
        .map_err(|_| Error::setting("COMM_JOB_ID", job, "it must be a hexadecimal number of at most 64 bits"))
}

/// The 64-bit hash of Fowler, Noll and Vo: equal on every rank, whatever it was built with.
fn fnv_1a(bytes: &[u8]) -> u64 {
    let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, mix)
}

fn required<T: FromStr<Err: Display>>(lookup: Lookup<'_>, name: &str) -> Result<T> {
    optional(lookup, name)?.ok_or_else(|| Error::setting(name, "", MISSING))
}

fn optional<T: FromStr<Err: Display>>(lookup: Lookup<'_>, name: &str) -> Result<Option<T>> {
    let Some(value) = lookup(name) else { return Ok(None) };
    let parsed = value.trim().parse();
    parsed
        .map(Some)
        .map_err(|reason: T::Err| Error::setting(name, value, format!("no whole number in range ({reason})")))
}

fn in_range(name: &str, value: usize, range: RangeInclusive<usize>) -> Result<usize> {
    if range.contains(&value) {
        return Ok(value);
    }
    let reason = format!("it must be from {} to {}", range.start(), range.end());
    Err(Error::setting(name, value.to_string(), reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(variables: &[(&str, &str)]) -> Result<Config> {
        config(&|name| {
            variables.iter().find(|(variable, _)| *variable == name).map(|(_, value)| (*value).to_owned())
        })
    }

    const TORCH: [(&str, &str); 4] =
        [("RANK", "1"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "localhost"), ("MASTER_PORT", "29500")];

    /// The environment with one variable replaced, or removed.
    fn but(name: &str, value: Option<&str>) -> String {
        let mut variables: Vec<_> = TORCH.into_iter().filter(|(variable, _)| *variable != name).collect();
        variables.extend(value.map(|value| (name, value)));
        from(&variables).unwrap_err().to_string()
    }

    #[test]
    fn torchrun_style() {
        let config = from(&TORCH).unwrap();
        assert_eq!((config.rank, config.world_size, config.master_port), (1, 4, 29500));
        assert_eq!(config.store, StoreHost::RankZero);
        assert_eq!(config.master().unwrap().port(), 29500);
    }

    #[test]
    fn the_agent_of_torchrun_serves_the_store_unless_told_otherwise() {
        let elastic = [
            ("TORCHELASTIC_USE_AGENT_STORE", "True"),
            ("TORCHELASTIC_RUN_ID", "foobar"),
            ("TORCHELASTIC_RESTART_COUNT", "2"),
        ];
        let with = |more: &[(&str, &str)]| from(&[&TORCH[..], &elastic, more].concat()).unwrap();
        let config = with(&[]);
        assert_eq!(config.store, StoreHost::TorchElastic);
        assert_eq!((config.job, config.round), (0x8594_4171_f739_67e8, 2));
        assert_eq!(with(&[("COMM_JOB_ID", "a")]).job, 10);
        let fresh = with(&[("COMM_STORE", "rank0")]);
        assert_eq!((fresh.store, fresh.round), (StoreHost::RankZero, 0));
        assert_eq!(with(&[("COMM_STORE", "launcher")]).store, StoreHost::Launcher);
        let count = ("TORCHELASTIC_RESTART_COUNT", "two");
        let error = from(&[&TORCH[..], &elastic[..2], &[count]].concat()).unwrap_err().to_string();
        assert!(error.contains("TORCHELASTIC_RESTART_COUNT") && error.contains("two"), "{error}");
        let own = [&TORCH[..], &[("TORCHELASTIC_USE_AGENT_STORE", "False")]].concat();
        assert_eq!(from(&own).unwrap().store, StoreHost::RankZero);
        let named = [&TORCH[..], &[("COMM_STORE", "torch")]].concat();
        assert_eq!(from(&named).unwrap().store, StoreHost::TorchElastic);
    }

    #[test]
    fn streams_go_over_one_socket_unless_told_otherwise() {
        let with = |count| from(&[&TORCH[..], &[("COMM_TCP_SOCKETS", count)]].concat()).unwrap();
        assert_eq!(from(&TORCH).unwrap().tcp.sockets_per_peer, 1);
        assert_eq!(with("4").tcp.sockets_per_peer, 4);
    }

    #[test]
    fn the_transport_can_be_named() {
        let with = |name| from(&[&TORCH[..], &[("COMM_TRANSPORT", name)]].concat());
        assert_eq!(from(&TORCH).unwrap().transport, TransportKind::default());
        #[cfg(feature = "hybrid")]
        assert_eq!(from(&TORCH).unwrap().transport, TransportKind::Auto);
        #[cfg(feature = "hybrid")]
        assert_eq!(with("auto").unwrap().transport, TransportKind::Auto);
        assert_eq!(with("tcp").unwrap().transport, TransportKind::Tcp);
        #[cfg(feature = "shm")]
        assert_eq!(with("shm").unwrap().transport, TransportKind::SharedMemory);
        let error = with("carrier pigeon").unwrap_err().to_string();
        assert!(error.contains("COMM_TRANSPORT") && error.contains("carrier pigeon"), "{error}");
    }

    #[cfg(feature = "nccl")]
    #[test]
    fn the_way_of_device_buffers_can_be_named() {
        use comm_hybrid::DevicePath;

        let with = |name| from(&[&TORCH[..], &[("COMM_DEVICE_PATH", name)]].concat());
        assert_eq!(
            from(&TORCH).unwrap().devices.path,
            DevicePath::Nccl,
            "another way is never taken unasked"
        );
        for path in DevicePath::ALL {
            assert_eq!(with(path.name()).unwrap().devices.path, path);
        }
        let error = with("pcie").unwrap_err().to_string();
        assert!(error.contains("COMM_DEVICE_PATH") && error.contains("pcie"), "{error}");
    }

    #[cfg(feature = "shm")]
    #[test]
    fn a_part_of_a_host_can_be_named() {
        let with = |name| from(&[&TORCH[..], &[("COMM_HOST_PART", name)]].concat()).unwrap().host_part;
        assert_eq!((with("left"), with("")), (Some("left".into()), None));
    }

    #[cfg(feature = "shm")]
    #[test]
    fn the_size_from_which_on_memory_is_read_where_it_lies_can_be_set() {
        let with = |bytes: &str| from(&[&TORCH[..], &[("COMM_SINGLE_COPY_BYTES", bytes)]].concat());
        assert_eq!(from(&TORCH).unwrap().shm.single_copy_bytes, None);
        for bytes in [0, 65_536, usize::MAX] {
            assert_eq!(with(&bytes.to_string()).unwrap().shm.single_copy_bytes, Some(bytes));
        }
        assert!(with("never").unwrap_err().to_string().contains("COMM_SINGLE_COPY_BYTES"));
    }

    #[cfg(feature = "shm")]
    #[test]
    fn the_size_from_which_on_buffers_are_lent_can_be_set() {
        let with = |bytes: &str| from(&[&TORCH[..], &[("COMM_LEND_BYTES", bytes)]].concat());
        let default = comm_shm::SharedMemoryConfig::default().lend_bytes;
        assert_eq!(from(&TORCH).unwrap().shm.lend_bytes, default);
        for bytes in [0, 1, 65_536, usize::MAX] {
            assert_eq!(with(&bytes.to_string()).unwrap().shm.lend_bytes, bytes);
        }
        for wrong in ["", "64K", "-1", "18446744073709551616"] {
            let error = with(wrong).unwrap_err();
            assert!(matches!(error, Error::Invalid(Invalid::Setting { .. })), "{error:?}");
            let text = error.to_string();
            assert!(text.contains("COMM_LEND_BYTES") && text.contains(&format!("{wrong:?}")), "{text}");
        }
    }

    #[test]
    fn other_launchers_are_understood_and_not_mixed() {
        let master = [("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "1")];
        let open_mpi = [("OMPI_COMM_WORLD_RANK", "2"), ("OMPI_COMM_WORLD_SIZE", "3"), ("PMI_RANK", "0")];
        assert_eq!(from(&[&master[..], &open_mpi].concat()).unwrap().rank, 2);
        let slurm = [("SLURM_PROCID", "5"), ("SLURM_NTASKS", "8"), ("SLURM_LOCALID", "1")];
        let config = from(&[&master[..], &slurm].concat()).unwrap();
        assert_eq!((config.rank, config.world_size, config.local_rank), (5, 8, 1));
    }

    #[test]
    fn who_was_launched_knows_it() {
        assert!(is_launched(&|name| (name == "PMI_RANK").then(|| "0".into())));
        assert!(!is_launched(&|name| (name == "WORLD_SIZE").then(|| "1".into())));
    }

    #[test]
    fn a_world_of_one_needs_no_master() {
        assert_eq!(from(&[("RANK", "0"), ("WORLD_SIZE", "1")]).unwrap().world_size, 1);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let contains = |text: String, parts: &[&str]| {
            assert!(parts.iter().all(|part| text.contains(part)), "{text}");
        };
        contains(but("RANK", None), &["RANK", "not set", "commctl run"]);
        contains(but("RANK", Some("4")), &["RANK", "\"4\"", "WORLD_SIZE = 4"]);
        contains(but("RANK", Some("-1")), &["RANK", "\"-1\""]);
        contains(but("WORLD_SIZE", None), &["WORLD_SIZE", "not set"]);
        contains(but("WORLD_SIZE", Some("0")), &["WORLD_SIZE = 0"]);
        contains(but("MASTER_ADDR", None), &["MASTER_ADDR"]);
        contains(but("MASTER_PORT", Some("http")), &["MASTER_PORT", "\"http\""]);
        contains(but("MASTER_PORT", Some("70000")), &["MASTER_PORT", "\"70000\""]);
        contains(but("MASTER_PORT", Some("0")), &["MASTER_PORT", "\"0\""]);
        contains(but("COMM_STORE", Some("redis")), &["COMM_STORE", "redis"]);
        contains(but("COMM_TCP_SOCKETS", Some("0")), &["COMM_TCP_SOCKETS", "\"0\"", "from 1 to 64"]);
        contains(but("COMM_TCP_SOCKETS", Some("65")), &["COMM_TCP_SOCKETS", "\"65\""]);
        contains(but("COMM_TCP_SOCKETS", Some("many")), &["COMM_TCP_SOCKETS", "\"many\""]);
        contains(but("COMM_JOB_ID", Some("xyz")), &["COMM_JOB_ID", "xyz"]);
    }

    #[test]
    fn the_model_of_the_links_is_text_or_in_a_file() {
        let link = "latency_us:5,overhead_us:1,gb_per_s:4";
        let text = format!("within={link} between={link} reduce_gb_per_s=8 ranks_per_host=2");
        let with = |links: &str| from(&[&TORCH[..], &[("COMM_LINKS", links)]].concat());
        assert_eq!(from(&TORCH).unwrap().ring.links, None);
        let model = with(&text).unwrap().ring.links.unwrap();
        assert_eq!((model.within.latency, model.ranks_per_host), (5e-6, 2));

        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("links");
        let named = format!("@{}", file.display());
        let missing = with(&named).unwrap_err().to_string();
        assert!(missing.contains("COMM_LINKS") && missing.contains(&named), "{missing}");
        fs::write(&file, text + "\n").unwrap();
        assert_eq!(with(&named).unwrap().ring.links, Some(model));
        fs::write(&file, "fast").unwrap();
        let nonsense = with(&named).unwrap_err();
        assert!(!nonsense.is_fatal());
        assert!(nonsense.to_string().contains("COMM_LINKS"), "{nonsense}");
    }

    #[test]
    fn a_host_without_address_is_the_callers_fault() {
        let config = Config::new(0, 2, "no.such.host.invalid", 1).unwrap();
        assert!(!config.master().unwrap_err().is_fatal());
    }
}
