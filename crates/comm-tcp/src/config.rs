//! How the sockets of lanes are set up.

use std::time::Duration;

/// How the sockets of lanes are set up. The default suits most machines; every field is a promise to the kernel or a
/// limit that it keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TcpConfig {
    /// The kernel's send buffer per socket in bytes (`SO_SNDBUF`). `None` lets the kernel size it.
    pub send_buffer: Option<usize>,
    /// The kernel's receive buffer per socket in bytes (`SO_RCVBUF`). `None` lets the kernel size it.
    pub recv_buffer: Option<usize>,
    /// The congestion control of outgoing bytes.
    pub congestion: Congestion,
    /// The memory per peer, in bytes, in which this process keeps what it has read ahead of what was asked for. It is
    /// allocated when a peer first sends something. At least 64.
    pub read_ahead: usize,
    /// How long a connection is silent before the kernel asks whether the peer's machine is still there. It gives up
    /// after [`TcpConfig::KEEPALIVE_PROBES`] questions. `None` never asks.
    pub keepalive: Option<Keepalive>,
    /// How long bytes of a control lane may stay unacknowledged before the peer counts as lost
    /// (`TCP_USER_TIMEOUT`). It is not set on lanes that carry data: there the kernel would also count the time in
    /// which a living peer, busy with something else, does not read.
    pub control_timeout: Option<Duration>,
    /// How long a connection to the listener has for its handshake.
    pub handshake_timeout: Duration,
}

impl TcpConfig {
    /// How many questions stay unanswered before a silent peer counts as lost.
    pub const KEEPALIVE_PROBES: u32 = 4;
    /// The least memory for reading ahead, in bytes.
    pub const READ_AHEAD_MIN: usize = 64;
}

impl Default for TcpConfig {
    fn default() -> Self {
        Self {
            send_buffer: None,
            recv_buffer: None,
            congestion: Congestion::Auto,
            read_ahead: 128 * 1024,
            keepalive: Some(Keepalive::default()),
            control_timeout: Some(Duration::from_secs(30)),
            handshake_timeout: Duration::from_secs(10),
        }
    }
}

/// When the kernel asks a silent peer whether it is still there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keepalive {
    /// The silence before the first question.
    pub idle: Duration,
    /// The time between questions.
    pub interval: Duration,
}

impl Default for Keepalive {
    fn default() -> Self {
        Self { idle: Duration::from_secs(10), interval: Duration::from_secs(5) }
    }
}

/// The congestion control of outgoing bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Congestion {
    /// Cubic, else Reno, where both ends are on this machine; the system's choice elsewhere. A system that defaults
    /// to BBR paces even its loopback, at a fraction of what it can carry.
    #[default]
    Auto,
    /// What the system chooses.
    System,
    /// The one of this name, as in `/proc/sys/net/ipv4/tcp_available_congestion_control`. It is an error if the
    /// kernel refuses it.
    Named(String),
}
