//! How long clients wait, and what they say when that was not enough or went wrong.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use comm_core::{During, Error, Invalid};
use rustix::event::PollFlags;
use socket2::Socket;

use super::frame::FrameError;
use crate::connect::Connector;

/// How long to try to reach a server that was reached before: one that has gone does not come back with its data.
pub(super) const RECONNECT_MAX: Duration = Duration::from_secs(5);

/// How much of a value an error shows.
const SHOWN_BYTES: usize = 256;

/// The time for an answer that is due when the time is over; it may take a little longer.
pub(super) fn with_grace(timeout: Duration) -> Duration {
    const GRACE_MIN: Duration = Duration::from_secs(1);
    const GRACE_MAX: Duration = Duration::from_secs(5);
    timeout.saturating_add((timeout / 10).clamp(GRACE_MIN, GRACE_MAX))
}

/// Sleeps until a socket is ready; past the deadline that is an error of kind `TimedOut`.
pub(super) fn await_socket(socket: &Socket, flags: PollFlags, deadline: Instant) -> Result<(), FrameError> {
    match comm_mesh::wait_for(socket, flags, deadline) {
        Ok(true) => Ok(()),
        Ok(false) => Err(FrameError::Io(io::ErrorKind::TimedOut.into())),
        Err(e) => Err(FrameError::Io(e)),
    }
}

/// There is nothing to dial.
pub(super) fn no_address() -> Error {
    Error::setting("addresses", "", "a client of a store needs an address to connect to")
}

/// None of the addresses that were dialed has answered.
pub(super) fn unreachable(dials: &[Connector], timeout: Duration) -> Error {
    let addresses: Vec<String> = dials.iter().map(|dial| dial.address().to_string()).collect();
    let attempts: u32 = dials.iter().map(Connector::attempts).sum();
    let doing =
        format!("reach the store at {} within {timeout:?}, in {attempts} attempts", addresses.join(" or "));
    let excuse = match dials {
        [dial] => dial.reason(),
        _ => {
            let excuses: Vec<String> =
                dials.iter().map(|dial| format!("{}: {}", dial.address(), dial.reason())).collect();
            io::Error::new(io::ErrorKind::TimedOut, excuses.join("; "))
        }
    };
    Error::io(doing, excuse)
}

pub(super) fn timed_out(key: &str, after: Duration) -> Error {
    Error::Timeout { waiting_for: Vec::new(), after, during: During::Store { key: key.to_owned() } }
}

/// Text that others have written, for errors and logs: control characters are escaped.
pub(super) fn printable(text: &[u8]) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in String::from_utf8_lossy(text).chars() {
        if character.is_control() {
            shown.extend(character.escape_default());
        } else {
            shown.push(character);
        }
    }
    shown
}

pub(super) fn not_a_number(key: &str, value: &[u8]) -> Error {
    let value = printable(value.get(..SHOWN_BYTES).unwrap_or(value));
    Invalid::Setting { name: key.to_owned(), value, reason: "no sum: not a number, or too large".into() }
        .into()
}

/// Why an operation on a key failed on its way to the server at `address` or back.
pub(super) fn failed(address: SocketAddr, key: &str, after: Duration, error: FrameError) -> Error {
    let error = match error {
        FrameError::Io(e) if e.kind() == io::ErrorKind::TimedOut => return timed_out(key, after),
        FrameError::Io(e) => e,
        FrameError::Closed => {
            io::Error::new(io::ErrorKind::ConnectionAborted, "the server closed the connection")
        }
        FrameError::TooLong(bytes) => io::Error::new(
            io::ErrorKind::InvalidData,
            format!("its response of {bytes} bytes is longer than this side accepts"),
        ),
    };
    using(address, key, error)
}

/// An error of the system, or of the server, while a key was used.
pub(super) fn using(address: SocketAddr, key: &str, error: io::Error) -> Error {
    Error::io(format!("use key {key:?} of the store at {address}"), error)
}

/// What is wrong with a response that makes no sense.
pub(super) fn nonsense() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "its response makes no sense")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_others_cannot_write_lines_or_escapes_to_a_terminal() {
        assert_eq!(printable("a\u{1b}[2J\nb é".as_bytes()), "a\\u{1b}[2J\\nb é");
        let error = not_a_number("k", &[b'\x07'; 1000]).to_string();
        assert!(!error.contains('\x07') && error.len() < 2000, "{error}");
    }
}
