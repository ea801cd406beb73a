//! The deadlines and errors of clients of a store.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use comm_core::{During, Error};
use rustix::event::PollFlags;
use socket2::Socket;

use super::frame::FrameError;
use crate::connect::Connector;

/// The maximum time to reconnect to a server that was reached before. A server that has exited does
/// not come back with its data.
pub(super) const RECONNECT_MAX: Duration = Duration::from_secs(5);

/// The maximum number of bytes of a value that an error shows.
const VALUE_BYTES_MAX: usize = 256;

/// Adds the time to wait for a response that the server sends when `timeout` has passed.
pub(super) fn with_grace(timeout: Duration) -> Duration {
    const GRACE_MIN: Duration = Duration::from_secs(1);
    const GRACE_MAX: Duration = Duration::from_secs(5);
    timeout.saturating_add((timeout / 10).clamp(GRACE_MIN, GRACE_MAX))
}

/// Sleeps until a socket is ready, or until the deadline.
pub(super) fn await_socket(socket: &Socket, flags: PollFlags, deadline: Instant) -> Result<(), FrameError> {
    match comm_mesh::wait_for(socket, flags, deadline) {
        Ok(true) => Ok(()),
        Ok(false) => Err(FrameError::TimedOut),
        Err(e) => Err(FrameError::Io(e)),
    }
}

/// Returns the error if no address has answered. It is of the kind that all reasons have in common.
pub(super) fn unreachable(connectors: &[Connector], timeout: Duration) -> Error {
    let addresses: Vec<String> = connectors.iter().map(|connector| connector.address.to_string()).collect();
    let attempts: u32 = connectors.iter().map(|connector| connector.attempts).sum();
    let addresses = addresses.join(" or ");
    let within = to_millis(timeout);
    let doing = format!("reach the store at {addresses} within {within:?} (attempts: {attempts})");
    let reason = match connectors {
        [connector] => connector.reason(),
        _ => {
            let reasons: Vec<io::Error> = connectors.iter().map(Connector::reason).collect();
            let kind = match &reasons[..] {
                [first, rest @ ..] if rest.iter().all(|other| other.kind() == first.kind()) => first.kind(),
                _ => io::ErrorKind::TimedOut,
            };
            let texts: Vec<String> = connectors
                .iter()
                .zip(&reasons)
                .map(|(connector, reason)| format!("{}: {reason}", connector.address))
                .collect();
            io::Error::new(kind, texts.join("; "))
        }
    };
    Error::io(doing, reason)
}

/// Rounds a time to milliseconds, because the rest of a timeout is rarely a round number.
fn to_millis(time: Duration) -> Duration {
    let millis = time.saturating_add(Duration::from_micros(500)).as_millis();
    u64::try_from(millis).map_or(time, Duration::from_millis)
}

pub(super) fn timed_out(key: &str, after: Duration) -> Error {
    Error::Timeout { waiting_for: Vec::new(), after, during: During::Store { key: key.to_owned() } }
}

/// Escapes control characters of text from other processes, for errors and logs.
pub(super) fn printable(text: &[u8]) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in String::from_utf8_lossy(text).chars() {
        if character.is_control() {
            escaped.extend(character.escape_default());
        } else {
            escaped.push(character);
        }
    }
    escaped
}

pub(super) fn not_a_number(key: &str, value: &[u8]) -> Error {
    let value = printable(value.get(..VALUE_BYTES_MAX).unwrap_or(value));
    Error::setting(key, value, "it is not a number, or the sum is too large")
}

/// Returns the error for an operation on a key whose request or response was lost.
pub(super) fn failed(address: SocketAddr, key: &str, after: Duration, error: FrameError) -> Error {
    let error = match error {
        FrameError::TimedOut => return timed_out(key, after),
        // The kernel gave up.
        FrameError::Io(e) if is_unreachable(e.kind()) => io::Error::new(e.kind(), "its host does not answer"),
        FrameError::Io(e) => e,
        FrameError::Closed => {
            io::Error::new(io::ErrorKind::ConnectionAborted, "the server closed the connection")
        }
        FrameError::Corrupted(corruption) => io::Error::new(io::ErrorKind::InvalidData, corruption),
        FrameError::TooLong(bytes) => io::Error::new(
            io::ErrorKind::InvalidData,
            format!("its response of {bytes} bytes is longer than this side accepts"),
        ),
    };
    using(address, key, error)
}

const fn is_unreachable(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::{HostUnreachable, NetworkUnreachable, TimedOut};
    matches!(kind, TimedOut | HostUnreachable | NetworkUnreachable)
}

/// Returns an error of the system or of the server in an operation on a key.
pub(super) fn using(address: SocketAddr, key: &str, error: io::Error) -> Error {
    Error::io(format!("use key {key:?} of the store at {address}"), error)
}

/// Returns the error for a response that violates the protocol.
pub(super) fn malformed_response() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "its response is malformed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_of_a_timeout_is_rounded() {
        for (nanos, expected) in [(4_999_992_088, "5s"), (299_400_000, "299ms"), (1_999_499_999, "1.999s")] {
            let error = unreachable(&[], Duration::from_nanos(nanos)).to_string();
            assert!(error.contains(&format!("within {expected} ")), "{error}");
        }
    }

    #[test]
    fn text_of_other_processes_cannot_write_control_characters_to_a_terminal() {
        assert_eq!(printable("a\u{1b}[2J\nb é".as_bytes()), "a\\u{1b}[2J\\nb é");
        let error = not_a_number("k", &[b'\x07'; 1000]).to_string();
        assert!(!error.contains('\x07') && error.len() < 2000, "{error}");
    }
}
