//! The table of environment variables, which is used to parse them, to detect misspelled names and
//! to generate their documentation.

use comm_core::Group;

/// An environment variable.
#[derive(Debug)]
pub(crate) struct Variable {
    pub(crate) name: &'static str,
    pub(crate) values: Values,
    /// Its default, for the documentation.
    #[cfg_attr(not(test), expect(dead_code, reason = "for the documentation"))]
    pub(crate) default: &'static str,
    #[cfg_attr(not(test), expect(dead_code, reason = "for the documentation"))]
    pub(crate) meaning: &'static str,
    /// The name of the setting in errors of lower crates.
    pub(crate) setting: Option<&'static str>,
    /// The feature that it needs, and whether that is enabled.
    pub(crate) feature: Option<(&'static str, bool)>,
}

/// The valid values of a variable.
#[derive(Debug)]
pub(crate) enum Values {
    /// A whole number, both bounds included.
    Number { min: u64, max: u64 },
    /// A number of at most 64 bits.
    Hexadecimal,
    /// A port, or a range of ports such as `29600-29699`.
    Ports,
    /// One of some words.
    OneOf(&'static [&'static str]),
    /// Text, described for the documentation.
    Text(#[cfg_attr(not(test), expect(dead_code, reason = "for the documentation"))] &'static str),
}

impl Variable {
    const fn new(name: &'static str, values: Values, default: &'static str, meaning: &'static str) -> Self {
        Self { name, values, default, meaning, setting: None, feature: None }
    }

    const fn sets(self, setting: &'static str) -> Self {
        Self { setting: Some(setting), ..self }
    }

    const fn needs(self, feature: &'static str, on: bool) -> Self {
        Self { feature: Some((feature, on)), ..self }
    }

    /// A variable in which a launcher sets a rank.
    pub(super) const fn rank(name: &'static str) -> Self {
        let values = Values::Number { min: 0, max: Group::SIZE_MAX as u64 - 1 };
        Self::new(name, values, "", "the rank of this process")
    }

    /// A variable in which a launcher sets a number of ranks.
    pub(super) const fn size(name: &'static str) -> Self {
        let values = Values::Number { min: 1, max: Group::SIZE_MAX as u64 };
        Self::new(name, values, "", "the number of ranks")
    }

    /// A variable in which a launcher sets a text.
    pub(super) const fn text(name: &'static str) -> Self {
        Self::new(name, Values::Text("text"), "", "")
    }

    /// A variable in which a launcher sets a number.
    pub(super) const fn number(name: &'static str) -> Self {
        Self::new(name, Values::Number { min: 0, max: u64::MAX }, "", "")
    }
}

const SECONDS: Values = Values::Number { min: 1, max: u32::MAX as u64 };
const BYTES: Values = Values::Number { min: 0, max: usize::MAX as u64 };

pub(super) const MASTER_ADDR: Variable = Variable::new(
    "MASTER_ADDR",
    Values::Text("a name or an address"),
    "required for more than one rank, unless derived under `srun`, `mpirun` or `mpiexec`",
    "the host that serves the store: rank 0's, unless `COMM_STORE` names another process",
);
pub(super) const MASTER_PORT: Variable = Variable::new(
    "MASTER_PORT",
    Values::Number { min: 1, max: u16::MAX as u64 },
    "as for `MASTER_ADDR`",
    "the port at which the store is served",
);
pub(super) const RENDEZVOUS: Variable = Variable::new(
    "COMM_RENDEZVOUS",
    Values::Text("`env://`, `tcp://HOST:PORT` or `file:///PATH`"),
    "`env://`",
    "the store of the rendezvous: that at `MASTER_ADDR` and `MASTER_PORT`, a store at this address, or a folder that all \
     ranks see, for which no process serves a store",
)
.sets("rendezvous");
pub(super) const STORE: Variable = Variable::new(
    "COMM_STORE",
    Values::OneOf(&["rank0", "launcher", "torch"]),
    "`torch` under torchrun, else `rank0`",
    "the process that serves the store: rank 0, the launcher, or a launcher with PyTorch's `TCPStore`",
);
pub(super) const JOB_ID: Variable = Variable::new(
    "COMM_JOB_ID",
    Values::Hexadecimal,
    "derived from the job id of torchrun, Slurm or Open MPI, else 0",
    "the id of the job; processes with another id are refused; equal on every rank",
);
pub(super) const SECRET: Variable = Variable::new(
    "COMM_SECRET",
    Values::Text("text, at least 16 random characters"),
    "none: anyone who can reach a port can join",
    "the secret that authenticates every TCP connection and all its bytes, except to PyTorch's store; equal on every rank",
)
.sets("secret");
pub(super) const CHECKSUM: Variable = Variable::new(
    "COMM_CHECKSUM",
    Values::OneOf(&["none", "crc32c"]),
    "`none`",
    "the checksum of the bytes of TCP connections without a secret, which have stronger checks; \
     one rank of a pair that sets it suffices",
);
pub(super) const TLS: Variable = Variable::new(
    "COMM_TLS",
    Values::Number { min: 0, max: 1 },
    "0",
    "1 for TLS 1.3 on every TCP connection except to PyTorch's store; needs `COMM_SECRET`, certificates, or both; \
     equal on every rank",
)
.sets("tls")
.needs("tls", cfg!(feature = "tls"));
pub(super) const TLS_CA: Variable = Variable::new(
    "COMM_TLS_CA",
    Values::Text("a file in PEM"),
    "none: the secret alone authenticates",
    "the certificate of the authority that has issued the certificates of all ranks; needs the next two variables",
)
.sets("tls_ca")
.needs("tls", cfg!(feature = "tls"));
pub(super) const TLS_CERT: Variable = Variable::new(
    "COMM_TLS_CERT",
    Values::Text("a file in PEM"),
    "as for `COMM_TLS_CA`",
    "the certificate of this rank, with those between it and the authority, for servers and clients",
)
.sets("tls_cert")
.needs("tls", cfg!(feature = "tls"));
pub(super) const TLS_KEY: Variable = Variable::new(
    "COMM_TLS_KEY",
    Values::Text("a file in PEM"),
    "as for `COMM_TLS_CA`",
    "the private key of this rank's certificate",
)
.sets("tls_key")
.needs("tls", cfg!(feature = "tls"));
pub(super) const TRANSPORT: Variable = Variable::new(
    "COMM_TRANSPORT",
    Values::OneOf(&["auto", "tcp", "shm"]),
    "`auto`: shared memory within a host and TCP between hosts (TCP alone without the feature `hybrid`)",
    "the transport between ranks; equal on every rank",
)
.sets("transport");
pub(super) const SOCKET_IFNAME: Variable = Variable::new(
    "COMM_SOCKET_IFNAME",
    Values::Text("`eth`, `=eth0`, `^docker`, or a list"),
    "the interface that leads to the master",
    "the network interfaces whose addresses a rank advertises, in NCCL's syntax; fast streams between hosts use all of them",
)
.sets("interface");
pub(super) const ADVERTISE_ADDR: Variable = Variable::new(
    "COMM_ADVERTISE_ADDR",
    Values::Text("an IP address"),
    "the address of the interface",
    "the address at which others reach this rank, if that is a router's, which must forward `COMM_PORT_RANGE` unchanged",
)
.sets("advertise");
pub(super) const PORT_RANGE: Variable = Variable::new(
    "COMM_PORT_RANGE",
    Values::Ports,
    "chosen by the system",
    "the ports on which ranks listen for each other over TCP; each rank of a host needs one, besides `MASTER_PORT`",
)
.sets("ports");
pub(super) const TCP_SOCKETS: Variable = Variable::new(
    "COMM_TCP_SOCKETS",
    Values::Number { min: 1, max: comm_tcp::TcpConfig::SOCKETS_MAX as u64 },
    "1 within a host, and as many as the network needs to another one",
    "the number of sockets that carry what the rank sends to a peer over TCP",
);
pub(super) const KEEPALIVE_TIMEOUT_S: Variable = Variable::new(
    "COMM_KEEPALIVE_TIMEOUT_S",
    Values::Number { min: 1, max: comm_tcp::TcpConfig::KEEPALIVE_TIMEOUT_MAX.as_secs() },
    "2",
    "the time in seconds after which the ranks of a host that does not answer over TCP are lost",
)
.sets("keepalive_timeout");
pub(super) const HOSTID: Variable = Variable::new(
    "COMM_HOSTID",
    Values::Text("text"),
    "none",
    "the id of the host (compare `NCCL_HOSTID`); ranks with different ids do not share memory, as if they ran on different hosts",
)
.needs("shm", cfg!(feature = "shm"));
pub(super) const ZERO_COPY_BYTES: Variable = Variable::new(
    "COMM_ZERO_COPY_BYTES",
    BYTES,
    "131072",
    "the size in bytes from which peers read a buffer of `Comm::alloc` in place, without a copy",
)
.needs("shm", cfg!(feature = "shm"));
pub(super) const SINGLE_COPY_BYTES: Variable = Variable::new(
    "COMM_SINGLE_COPY_BYTES",
    BYTES,
    "32768 if the kernel's copy is measured to be fast, else never",
    "the size in bytes from which other buffers are copied once between processes of a host, by the kernel (`process_vm_readv`)",
)
.needs("shm", cfg!(feature = "shm"));
pub(super) const JOIN: Variable = Variable::new(
    "COMM_JOIN",
    Values::Number { min: 0, max: 1 },
    "0",
    "1 if this process joins a group that runs already; `commctl run --elastic` sets it for a process that replaces a lost one",
)
.sets("join");
pub(super) const JOIN_ID: Variable = Variable::new(
    "COMM_JOIN_ID",
    Values::Number { min: 0, max: u64::MAX },
    "0, which is none",
    "the number by which `commctl run --elastic` finds this process among those that wait to join",
)
.sets("join_id");
pub(super) const TIMEOUT_S: Variable = Variable::new(
    "COMM_TIMEOUT_S",
    SECONDS,
    "300",
    "the timeout of a call in seconds, unless the call sets its own",
);
pub(super) const RENDEZVOUS_TIMEOUT_S: Variable =
    Variable::new("COMM_RENDEZVOUS_TIMEOUT_S", SECONDS, "300", "the timeout of `comm::init` in seconds");
pub(super) const LINKS: Variable = Variable::new(
    "COMM_LINKS",
    Values::Text("a `LinkModel`, or `@` and the path of a file that contains one"),
    "an estimate",
    "the model of the links, by which algorithms are chosen; `commctl perf --calibrate` measures it",
);
pub(super) const FLIGHT_DIR: Variable = Variable::new(
    "COMM_FLIGHT_DIR",
    Values::Text("a folder"),
    "none: nothing is written",
    "the folder in which each rank writes its last calls when a communicator fails; `commctl doctor --flight` reads it",
)
.needs("flight", cfg!(feature = "flight"));
pub(super) const FLIGHT_ON_CLOSE: Variable = Variable::new(
    "COMM_FLIGHT_ON_CLOSE",
    Values::Number { min: 0, max: 1 },
    "0",
    "1 if each rank also writes its last calls when a communicator is closed without a failure",
)
.needs("flight", cfg!(feature = "flight"));
pub(super) const FLIGHT_CALLS: Variable = Variable::new(
    "COMM_FLIGHT_CALLS",
    Values::Number { min: 64, max: 1 << 20 },
    "512",
    "the number of last calls that each communicator keeps, rounded up to a power of two",
);
pub(super) const FLIGHT_TIMES: Variable = Variable::new(
    "COMM_FLIGHT_TIMES",
    Values::OneOf(&["coarse", "exact"]),
    "`coarse`",
    "the clock of the times of short calls: one that advances every few milliseconds, or the exact one, which takes about \
     40 ns more per call",
);
pub(super) const NAN_CHECK: Variable = Variable::new(
    "COMM_NAN_CHECK",
    Values::Number { min: 0, max: 1 },
    "0",
    "1 if this rank aborts when its contribution to a reduction on the host has a NaN, so that all ranks learn of whom it is",
);
pub(super) const MONITOR: Variable = Variable::new(
    "COMM_MONITOR",
    Values::Number { min: 0, max: 1 },
    "1",
    "0 if this rank does not answer `commctl top`, which shows its calls to processes of the same user",
)
.needs("monitor", cfg!(feature = "monitor"));
pub(super) const DEVICE_PATH: Variable = Variable::new(
    "COMM_DEVICE_PATH",
    Values::OneOf(&["nccl", "staged", "auto"]),
    "`nccl`",
    "the path of device buffers: NCCL, through the host, or NCCL if all ranks support it",
)
.needs("nccl", cfg!(feature = "nccl"));
const NCCL_PATH: Variable = Variable::new(
    "COMM_NCCL_PATH",
    Values::Text("a file or a folder"),
    "the system's search path",
    "the file or folder from which NCCL is loaded; `nccl-sys` treats an empty value as not set",
)
.needs("nccl", cfg!(feature = "nccl"));

/// Every variable whose name begins with `COMM_`, in the order of the documentation.
pub(crate) const ALL: [&Variable; 31] = [
    &RENDEZVOUS,
    &STORE,
    &JOIN,
    &JOIN_ID,
    &JOB_ID,
    &SECRET,
    &CHECKSUM,
    &TLS,
    &TLS_CA,
    &TLS_CERT,
    &TLS_KEY,
    &TRANSPORT,
    &SOCKET_IFNAME,
    &ADVERTISE_ADDR,
    &PORT_RANGE,
    &TCP_SOCKETS,
    &KEEPALIVE_TIMEOUT_S,
    &HOSTID,
    &ZERO_COPY_BYTES,
    &SINGLE_COPY_BYTES,
    &TIMEOUT_S,
    &RENDEZVOUS_TIMEOUT_S,
    &LINKS,
    &FLIGHT_DIR,
    &FLIGHT_ON_CLOSE,
    &FLIGHT_CALLS,
    &FLIGHT_TIMES,
    &NAN_CHECK,
    &MONITOR,
    &DEVICE_PATH,
    &NCCL_PATH,
];
