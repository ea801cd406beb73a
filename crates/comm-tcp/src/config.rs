//! How the sockets of lanes are set up.

use std::time::Duration;

use comm_core::{Error, Result};

use crate::stripes::Stripes;

/// How the sockets of lanes are set up. The default suits most machines; every field is a promise to the kernel or a
/// limit that it keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TcpConfig {
    /// The kernel's send buffer per socket in bytes (`SO_SNDBUF`). `None` lets the kernel size it. Less than
    /// [`TcpConfig::BUFFER_BYTES_MIN`] counts as that.
    pub send_buffer: Option<usize>,
    /// The kernel's receive buffer per socket in bytes (`SO_RCVBUF`). `None` lets the kernel size it. Less than
    /// [`TcpConfig::BUFFER_BYTES_MIN`] counts as that.
    pub recv_buffer: Option<usize>,
    /// How many sockets carry the stream to each peer, and from it, on lanes that carry data: from 1 to
    /// [`TcpConfig::SOCKETS_MAX`]. Rank 0's setting holds for all ranks. More than one pays where a network gives one
    /// connection less than it can carry, not where the processors are the limit, as on one host.
    pub sockets_per_peer: usize,
    /// How many bytes of a stream go through one of several sockets before the next one has its turn, at least 1. What
    /// lies within one stripe needs no more system calls than over one socket. Rank 0's setting holds for all ranks.
    pub stripe_bytes: usize,
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
    /// The least that a socket's buffer holds, in bytes: two segments of a loopback. A receiver whose window is
    /// smaller than a segment makes Linux send nothing until a timer of 200 ms and more has run out, again and again.
    pub const BUFFER_BYTES_MIN: usize = 128 * 1024;
    /// The least memory for reading ahead, in bytes.
    pub const READ_AHEAD_MIN: usize = 64;
    /// The most sockets per peer and lane.
    pub const SOCKETS_MAX: usize = 64;

    /// How streams are to be dealt out to sockets.
    pub(crate) fn stripes(&self) -> Result<Stripes> {
        let refused = |name, value: usize, reason: &str| Error::setting(name, value.to_string(), reason);
        if !(1..=Self::SOCKETS_MAX).contains(&self.sockets_per_peer) {
            let reason = format!("it must be from 1 to {}", Self::SOCKETS_MAX);
            return Err(refused("sockets_per_peer", self.sockets_per_peer, &reason));
        }
        if self.stripe_bytes == 0 {
            return Err(refused("stripe_bytes", 0, "a stripe must hold something"));
        }
        Ok(Stripes { sockets: self.sockets_per_peer as u8, bytes: self.stripe_bytes as u64 })
    }
}

impl Default for TcpConfig {
    fn default() -> Self {
        Self {
            send_buffer: None,
            recv_buffer: None,
            sockets_per_peer: 1,
            stripe_bytes: 64 * 1024,
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
#[non_exhaustive]
pub struct Keepalive {
    /// The silence before the first question.
    pub idle: Duration,
    /// The time between questions.
    pub interval: Duration,
}

/// Setters, as in `Keepalive::default().idle(Duration::from_secs(60))`.
impl Keepalive {
    /// The keepalive with this silence before the first question.
    #[must_use]
    pub const fn idle(mut self, idle: Duration) -> Self {
        self.idle = idle;
        self
    }

    /// The keepalive with this time between questions.
    #[must_use]
    pub const fn interval(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }
}

impl Default for Keepalive {
    fn default() -> Self {
        Self { idle: Duration::from_secs(10), interval: Duration::from_secs(5) }
    }
}

/// The congestion control of outgoing bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
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
