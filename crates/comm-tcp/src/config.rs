//! Settings of the sockets of channels.

use std::time::Duration;

use comm_core::{ChannelKind, Error, Result};

use crate::growth::Sockets;
use crate::keepalive::Keepalive;
use crate::tls::Tls;

/// The maximum of `stripe_bytes`.
const STRIPE_BYTES_MAX: usize = 64 << 20;

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
    /// The number of sockets for the bytes that this rank sends to a peer on a channel of data,
    /// from 1 to [`TcpConfig::SOCKETS_MAX`]. More than one is faster if the network limits the rate
    /// of one connection.
    ///
    /// `None` means one to a peer on this host, and as many as the network needs to another one, up
    /// to 32: the rank adds sockets to a stream whose rate the network limits, and uses them as
    /// long as that increases the rate. Otherwise it adds them, besides the one with which the
    /// channel was opened, as soon as it sends something.
    ///
    /// If a peer has published several addresses
    /// ([`RendezvousConfig::interface`](crate::RendezvousConfig::interface)), sockets are added at
    /// all of them in turn, except where the peer does not answer or refuses the connection. The
    /// routes of the system decide through which interface an address is reached. The loss of one
    /// of these networks is an error, as that of the first one is.
    pub sockets_per_peer: Option<usize>,
    /// The number of consecutive bytes of a stream that go through one of several sockets, from 1
    /// to 64 MiB.
    pub stripe_bytes: usize,
    /// The congestion control of outgoing bytes.
    pub congestion: Congestion,
    /// The memory per peer for bytes that are read ahead, in bytes. It is allocated when a peer
    /// first sends something. At least 64 bytes.
    pub read_ahead: usize,
    /// The time after which the ranks of a host that does not answer are lost, from one second to
    /// [`TcpConfig::KEEPALIVE_TIMEOUT_MAX`], in whole seconds (fractions are rounded up). `None`
    /// means never.
    ///
    /// The host's kernel answers, so a process that is busy or stopped is not lost. A host that
    /// loses power or its network is lost at least this time later, and at most 1.5 seconds more,
    /// or three eighths more from 16 seconds on. An interruption of half this time loses nothing:
    /// the kernel doubles the time between its attempts to send bytes again.
    ///
    /// The kernel probes idle connections every second, or eight times in this time from 16
    /// seconds on (`TCP_KEEPIDLE`): one packet and its answer for each connection of a channel of
    /// control or of messages, or over another interface than theirs. Ranks that wait also look at
    /// connections with unacknowledged bytes. Connections within a host are not probed.
    pub keepalive_timeout: Option<Duration>,
    /// Whether the bytes of connections have checksums (CRC32C). The setting of one of the two
    /// sides suffices. Bytes that did not arrive as they were sent are an error
    /// ([`Loss::Corrupted`](comm_core::Loss::Corrupted)), and are never delivered. TCP's own
    /// checksum of 16 bits misses some errors of network devices and memory. With a secret,
    /// connections have stronger checks anyway.
    pub checksums: bool,
    /// TLS for all connections of channels, which encrypts their bytes. All ranks need it, or none.
    /// Ranks authenticate each other with the secret or with certificates.
    #[cfg(feature = "tls")]
    pub tls: Option<Tls>,
    /// The timeout of the handshake of an accepted connection.
    pub handshake_timeout: Duration,
    /// The largest number of ranks of a channel that connects all pairs of ranks when it is opened.
    /// In a larger channel of data, a pair is connected when one of the two first sends to the
    /// other or receives from it. All ranks need the same value.
    pub full_mesh_max: usize,
}

impl TcpConfig {
    /// The default of `keepalive_timeout`.
    pub const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(2);
    /// The maximum of `keepalive_timeout`.
    pub const KEEPALIVE_TIMEOUT_MAX: Duration = Duration::from_secs(3600);
    /// The smallest buffer of a socket in bytes: two segments of the loopback interface. If the
    /// receiver's window is smaller than a segment, Linux pauses again and again until a timer of
    /// at least 200 ms expires.
    pub const BUFFER_BYTES_MIN: usize = 128 * 1024;
    /// The minimum memory for reading ahead, in bytes.
    pub const READ_AHEAD_MIN: usize = 64;
    /// The default of `full_mesh_max`.
    pub const FULL_MESH_MAX: usize = 16;
    /// The maximum number of sockets per peer and channel.
    pub const SOCKETS_MAX: usize = 64;

    /// Returns an error if a setting is invalid.
    pub(crate) fn check(&self) -> Result<()> {
        let refused = |name, value: usize, reason: String| Error::setting(name, value.to_string(), reason);
        if let Some(sockets) = self.sockets_per_peer.filter(|n| !(1..=Self::SOCKETS_MAX).contains(n)) {
            let reason = format!("it must be from 1 to {}", Self::SOCKETS_MAX);
            return Err(refused("sockets_per_peer", sockets, reason));
        }
        if !(1..=STRIPE_BYTES_MAX).contains(&self.stripe_bytes) {
            let reason = format!("it must be from 1 to {STRIPE_BYTES_MAX}");
            return Err(refused("stripe_bytes", self.stripe_bytes, reason));
        }
        let valid = Duration::from_secs(1)..=Self::KEEPALIVE_TIMEOUT_MAX;
        if let Some(timeout) = self.keepalive_timeout.filter(|timeout| !valid.contains(timeout)) {
            let reason = format!("it must be from {:?} to {:?}", valid.start(), valid.end());
            return Err(Error::setting("keepalive_timeout", format!("{timeout:?}"), reason));
        }
        self.congestion.check()
    }

    #[cfg(feature = "tls")]
    pub(crate) fn tls_if_any(&self) -> Option<Tls> {
        self.tls.clone()
    }

    #[cfg(not(feature = "tls"))]
    #[expect(clippy::unused_self, reason = "as with TLS")]
    pub(crate) const fn tls_if_any(&self) -> Option<Tls> {
        None
    }

    /// Returns the times of keepalive of a channel. A channel for the data of collectives needs
    /// none: ranks also wait on the control channel of the group.
    pub(crate) fn keepalive(&self, kind: ChannelKind) -> Option<Keepalive> {
        let timeout = self.keepalive_timeout.filter(|_| kind != ChannelKind::Collective);
        timeout.map(Keepalive::new)
    }

    /// Returns the times of keepalive of sockets that connect other interfaces than the channels of
    /// a group: no other channel shows whether these answer.
    pub(crate) fn keepalive_of_others(&self) -> Option<Keepalive> {
        self.keepalive_timeout.map(Keepalive::new)
    }

    /// Returns the number of sockets of streams to a peer.
    pub(crate) fn sockets(&self, kind: ChannelKind, is_on_this_host: bool) -> Sockets {
        match self.sockets_per_peer {
            _ if kind == ChannelKind::Control => Sockets::One,
            Some(sockets) => Sockets::Fixed(sockets),
            None if is_on_this_host => Sockets::One,
            None => Sockets::Tuned,
        }
    }
}

impl Default for TcpConfig {
    fn default() -> Self {
        Self {
            send_buffer: None,
            recv_buffer: None,
            sockets_per_peer: None,
            stripe_bytes: 64 * 1024,
            congestion: Congestion::Auto,
            read_ahead: 128 * 1024,
            keepalive_timeout: Some(Self::KEEPALIVE_TIMEOUT),
            checksums: false,
            #[cfg(feature = "tls")]
            tls: None,
            handshake_timeout: Duration::from_secs(10),
            full_mesh_max: Self::FULL_MESH_MAX,
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_keepalive_timeout_out_of_range_is_refused() {
        let check = |timeout| TcpConfig { keepalive_timeout: timeout, ..TcpConfig::default() }.check();
        for millis in [0, 999, 3_600_001] {
            let error = check(Some(Duration::from_millis(millis))).unwrap_err();
            assert!(!error.is_fatal() && error.to_string().contains("keepalive_timeout"), "{error}");
        }
        for timeout in [None, Some(Duration::from_secs(1)), Some(TcpConfig::KEEPALIVE_TIMEOUT_MAX)] {
            check(timeout).unwrap();
        }
    }
}
