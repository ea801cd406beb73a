//! Settings of the sockets of channels.

use std::time::Duration;

use comm_core::{Error, Result};

use crate::stripes::Stripes;

/// Settings of the sockets of channels. The default suits most machines.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TcpConfig {
    /// The kernel's send buffer per socket in bytes (`SO_SNDBUF`). `None` lets the kernel size it.
    /// Smaller values than [`TcpConfig::BUFFER_BYTES_MIN`] are raised to it.
    pub send_buffer: Option<usize>,
    /// The kernel's receive buffer per socket in bytes (`SO_RCVBUF`). `None` lets the kernel size
    /// it. Smaller values than [`TcpConfig::BUFFER_BYTES_MIN`] are raised to it.
    pub recv_buffer: Option<usize>,
    /// The number of sockets per peer on channels that carry data, from 1 to
    /// [`TcpConfig::SOCKETS_MAX`]. The setting of rank 0 applies to all ranks. Several sockets are
    /// faster if the network limits the rate of one connection, but not if the processors are the
    /// limit, as within one host.
    pub sockets_per_peer: usize,
    /// The number of consecutive bytes of a stream that go through one socket before the next
    /// socket is used, at least 1. Messages within one stripe need no more system calls than over
    /// one socket. The setting of rank 0 applies to all ranks.
    pub stripe_bytes: usize,
    /// The congestion control of outgoing bytes.
    pub congestion: Congestion,
    /// The memory per peer for bytes that are read ahead, in bytes. It is allocated when a peer
    /// first sends something. At least 64 bytes.
    pub read_ahead: usize,
    /// When the kernel probes whether the machine of a silent peer is alive. The peer is lost after
    /// [`TcpConfig::KEEPALIVE_PROBES`] unanswered probes. `None` means no probes.
    pub keepalive: Option<Keepalive>,
    /// The time for which bytes of a control channel may stay unacknowledged before the peer is
    /// lost (`TCP_USER_TIMEOUT`). It is not set on channels that carry data, where the kernel would
    /// also count the time in which a busy peer does not read.
    pub control_timeout: Option<Duration>,
    /// The timeout of the handshake of an accepted connection.
    pub handshake_timeout: Duration,
}

impl TcpConfig {
    /// The number of unanswered probes after which a silent peer is lost.
    pub const KEEPALIVE_PROBES: u32 = 4;
    /// The smallest buffer of a socket in bytes: two segments of the loopback interface. If the
    /// receiver's window is smaller than a segment, Linux pauses again and again until a timer of
    /// at least 200 ms expires.
    pub const BUFFER_BYTES_MIN: usize = 128 * 1024;
    /// The minimum memory for reading ahead, in bytes.
    pub const READ_AHEAD_MIN: usize = 64;
    /// The maximum number of sockets per peer and channel.
    pub const SOCKETS_MAX: usize = 64;

    /// Returns the stripes, or an error if a setting is invalid.
    pub(crate) fn stripes(&self) -> Result<Stripes> {
        let refused = |name, value: usize, reason: &str| Error::setting(name, value.to_string(), reason);
        if !(1..=Self::SOCKETS_MAX).contains(&self.sockets_per_peer) {
            let reason = format!("it must be from 1 to {}", Self::SOCKETS_MAX);
            return Err(refused("sockets_per_peer", self.sockets_per_peer, &reason));
        }
        if self.stripe_bytes == 0 {
            return Err(refused("stripe_bytes", 0, "it must be at least 1"));
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

/// When the kernel probes a silent peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Keepalive {
    /// The silence before the first probe.
    pub idle: Duration,
    /// The time between probes.
    pub interval: Duration,
}

/// Setters, as in `Keepalive::default().idle(Duration::from_secs(60))`.
impl Keepalive {
    comm_core::setters!(idle: Duration, interval: Duration);
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
    /// Cubic, or else Reno, if both ends are on this machine, and the system's choice otherwise. A
    /// system that defaults to BBR paces even its loopback interface, at a fraction of its
    /// capacity.
    #[default]
    Auto,
    /// The algorithm that the system chooses.
    System,
    /// The algorithm of this name, as listed in
    /// `/proc/sys/net/ipv4/tcp_available_congestion_control`. It is an error if the kernel refuses
    /// it.
    Named(String),
}
