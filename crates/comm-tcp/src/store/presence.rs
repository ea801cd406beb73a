//! A connection whose end shows the server that the client has exited.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use comm_core::{Presence, Result};
use socket2::Socket;

use super::client::{exchange, read_response, send};
use super::errors::failed;
use super::frame::{Frame, FrameError, FrameReader, FrameWriter};
use super::protocol::Request;
use crate::protection::{ByteStream, Established, FrameCheck};
use crate::tls::TlsSession;

/// The will to leave and the key to watch.
pub(super) struct PresenceConfig<'a> {
    pub(super) address: SocketAddr,
    pub(super) bytes_max: usize,
    /// The deadline for the server to accept the will.
    pub(super) deadline: Instant,
    pub(super) will: Vec<u8>,
    pub(super) key: &'a str,
    /// The time for which the server waits for the key.
    pub(super) timeout: Duration,
}

/// A connection that waits for one response.
#[derive(Debug)]
pub(super) struct TcpPresence {
    socket: Socket,
    address: SocketAddr,
    key: String,
    timeout: Duration,
    bytes_max: usize,
    state: Mutex<PresenceState>,
}

#[derive(Debug)]
enum PresenceState {
    Waiting(FrameReader, Option<FrameCheck>, Option<Box<TlsSession>>),
    Answered(Result<Option<Vec<u8>>>),
}

impl TcpPresence {
    /// Leaves the will and requests the key.
    pub(super) fn new(mut connection: Established, config: PresenceConfig<'_>) -> Result<Self> {
        let PresenceConfig { address, bytes_max, deadline, will, key, timeout } = config;
        let broken = |error| failed(address, key, timeout, error);
        let answer = exchange(&mut connection, will, bytes_max, deadline).map_err(broken)?;
        read_response(address, key, timeout, &answer)?;
        let request =
            Request::Get { key, timeout }.encode().map_err(|_| broken(FrameError::TooLong(key.len())))?;
        let request = FrameWriter::new(request, connection.sending());
        send(&mut connection, request, deadline).map_err(broken)?;
        let Established { socket, protection, tls } = connection;
        let check = protection.map(|protection| protection.receiving);
        let state = Mutex::new(PresenceState::Waiting(FrameReader::default(), check, tls));
        Ok(Self { socket, address, key: key.to_owned(), timeout, bytes_max, state })
    }
}

impl Presence for TcpPresence {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn poll(&self) -> Result<Option<Vec<u8>>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while let PresenceState::Waiting(reader, check, tls) = &mut *state {
            let stream = ByteStream::new(&self.socket, tls.as_deref_mut());
            let answer = match reader.fill(stream, check.as_mut(), self.bytes_max, |_| true) {
                // The descriptor does not report bytes that have left the socket.
                Ok(None) if tls.as_ref().is_some_and(|tls| tls.is_ready()) => continue,
                Ok(None | Some(Frame::Skipped)) => return Ok(None),
                Ok(Some(Frame::Whole(frame))) => {
                    let value = read_response(self.address, &self.key, self.timeout, &frame);
                    value.map(|value| Some(value.to_vec()))
                }
                Err(error) => Err(failed(self.address, &self.key, self.timeout, error)),
            };
            *state = PresenceState::Answered(answer);
        }
        match &*state {
            PresenceState::Waiting(..) => Ok(None),
            PresenceState::Answered(answer) => answer.clone(),
        }
    }
}
