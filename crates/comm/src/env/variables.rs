//! The variables that this library reads: one table, by which they are parsed, misspelt ones are found and the
//! documentation is written.

use comm_core::Group;

/// A variable of the environment.
#[derive(Debug)]
pub(crate) struct Variable {
    pub(crate) name: &'static str,
    pub(crate) values: Values,
    /// What holds if it is not set.
    #[cfg_attr(not(test), expect(dead_code, reason = "for the documentation"))]
    pub(crate) default: &'static str,
    #[cfg_attr(not(test), expect(dead_code, reason = "for the documentation"))]
    pub(crate) meaning: &'static str,
    /// What errors of the crates below call the setting.
    pub(crate) setting: Option<&'static str>,
    /// The feature without which it has no effect, and whether that is on.
    pub(crate) feature: Option<(&'static str, bool)>,
}

/// What a variable may hold.
#[derive(Debug)]
pub(crate) enum Values {
    /// A whole number, both bounds included.
    Number { min: u64, max: u64 },
    /// A number of at most 64 bits.
    Hexadecimal,
    /// A port, or the first and the last of several with a hyphen in between.
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

    /// The rank of a launcher's process.
    pub(super) const fn rank(name: &'static str) -> Self {
        let values = Values::Number { min: 0, max: Group::SIZE_MAX as u64 - 1 };
        Self::new(name, values, "", "the rank of this process")
    }

    /// A number of ranks that a launcher tells.
    pub(super) const fn size(name: &'static str) -> Self {
        let values = Values::Number { min: 1, max: Group::SIZE_MAX as u64 };
        Self::new(name, values, "", "the number of ranks")
    }

    /// A text that a launcher tells.
    pub(super) const fn text(name: &'static str) -> Self {
        Self::new(name, Values::Text("text"), "", "")
    }

    /// A number that a launcher tells.
    pub(super) const fn number(name: &'static str) -> Self {
        Self::new(name, Values::Number { min: 0, max: u64::MAX }, "", "")
    }
}

const SECONDS: Values = Values::Number { min: 1, max: u32::MAX as u64 };
const BYTES: Values = Values::Number { min: 0, max: usize::MAX as u64 };

pub(super) const MASTER_ADDR: Variable = Variable::new(
    "MASTER_ADDR",
    Values::Text("a name or an address"),
    "needed with more than one rank, unless `srun` or `mpirun` tells enough",
    "the host that serves the store in which the ranks meet: that of rank 0, unless `COMM_STORE` says otherwise",
);
pub(super) const MASTER_PORT: Variable = Variable::new(
    "MASTER_PORT",
    Values::Number { min: 1, max: u16::MAX as u64 },
    "as for `MASTER_ADDR`",
    "the port at which the store is served",
);
pub(super) const STORE: Variable = Variable::new(
    "COMM_STORE",
    Values::OneOf(&["rank0", "launcher", "torch"]),
    "`torch` under torchrun, else `rank0`",
    "who serves the store: rank 0, a launcher that was there first, or a launcher in PyTorch's protocol",
);
pub(super) const JOB_ID: Variable = Variable::new(
    "COMM_JOB_ID",
    Values::Hexadecimal,
    "made from torchrun's, Slurm's or Open MPI's name of the job, else 0",
    "tells the job from others: processes of another job are refused; equal on every rank",
);
pub(super) const SECRET: Variable = Variable::new(
    "COMM_SECRET",
    Values::Text("text, at least 16 random characters"),
    "none: whoever reaches a port can take part",
    "the secret that every connection is authenticated with; equal on every rank",
)
.sets("secret");
pub(super) const TRANSPORT: Variable = Variable::new(
    "COMM_TRANSPORT",
    Values::OneOf(&["auto", "tcp", "shm"]),
    "`auto`: shared memory within a host and TCP between hosts (TCP alone without the feature `hybrid`)",
    "how ranks reach each other; equal on every rank",
)
.sets("transport");
pub(super) const SOCKET_IFNAME: Variable = Variable::new(
    "COMM_SOCKET_IFNAME",
    Values::Text("`eth`, `=eth0`, `^docker`, or a list"),
    "the interface that leads to the master",
    "the network interfaces whose address the other ranks are told, in NCCL's syntax",
)
.sets("interface");
pub(super) const PORT_RANGE: Variable = Variable::new(
    "COMM_PORT_RANGE",
    Values::Ports,
    "ports that the system chooses",
    "the ports to listen on for other ranks over TCP; each rank of a host needs one, besides `MASTER_PORT`",
)
.sets("ports");
pub(super) const TCP_SOCKETS: Variable = Variable::new(
    "COMM_TCP_SOCKETS",
    Values::Number { min: 1, max: comm_tcp::TcpConfig::SOCKETS_MAX as u64 },
    "1",
    "sockets per peer over which each stream is striped; rank 0's number holds for all",
);
pub(super) const HOST_PART: Variable = Variable::new(
    "COMM_HOST_PART",
    Values::Text("text"),
    "none",
    "ranks of one host that give different names do not share memory, as if they were on different hosts",
)
.needs("shm", cfg!(feature = "shm"));
pub(super) const LEND_BYTES: Variable = Variable::new(
    "COMM_LEND_BYTES",
    BYTES,
    "2097152",
    "from how many bytes on buffers of `Comm::alloc` are read where they lie",
)
.needs("shm", cfg!(feature = "shm"));
pub(super) const SINGLE_COPY_BYTES: Variable = Variable::new(
    "COMM_SINGLE_COPY_BYTES",
    BYTES,
    "32768 where the kernel is found to copy quickly, else never",
    "from how many bytes on other memory is copied once, by the kernel, between processes of a host",
)
.needs("shm", cfg!(feature = "shm"));
pub(super) const TIMEOUT_S: Variable = Variable::new(
    "COMM_TIMEOUT_S",
    SECONDS,
    "300",
    "how many seconds a call may take, unless the call says otherwise",
);
pub(super) const RENDEZVOUS_TIMEOUT_S: Variable = Variable::new(
    "COMM_RENDEZVOUS_TIMEOUT_S",
    SECONDS,
    "300",
    "how many seconds `comm::init` waits for the other ranks",
);
pub(super) const LINKS: Variable = Variable::new(
    "COMM_LINKS",
    Values::Text("a `LinkModel`, or `@` and a file that holds one"),
    "an estimate",
    "what messages cost, by which algorithms are chosen; `commctl perf --calibrate` measures it",
);
pub(super) const DEVICE_PATH: Variable = Variable::new(
    "COMM_DEVICE_PATH",
    Values::OneOf(&["nccl", "staged", "auto"]),
    "`nccl`",
    "how buffers of devices travel: by NCCL, through the host, or by NCCL where that is possible",
)
.needs("nccl", cfg!(feature = "nccl"));
const NCCL_PATH: Variable = Variable::new(
    "COMM_NCCL_PATH",
    Values::Text("a file or a folder"),
    "the system's search path",
    "where NCCL's library is loaded from; read by `nccl-sys`, for which an empty one is not set",
)
.needs("nccl", cfg!(feature = "nccl"));

/// Every variable whose name begins with `COMM_`, in the order of the documentation.
pub(crate) const ALL: [&Variable; 15] = [
    &STORE,
    &JOB_ID,
    &SECRET,
    &TRANSPORT,
    &SOCKET_IFNAME,
    &PORT_RANGE,
    &TCP_SOCKETS,
    &HOST_PART,
    &LEND_BYTES,
    &SINGLE_COPY_BYTES,
    &TIMEOUT_S,
    &RENDEZVOUS_TIMEOUT_S,
    &LINKS,
    &DEVICE_PATH,
    &NCCL_PATH,
];
