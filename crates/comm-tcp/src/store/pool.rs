//! Connections of a client that are reused.

use std::sync::{Mutex, PoisonError};

use rustix::io::Errno;
use rustix::net::RecvFlags;

use crate::protection::Established;

/// The maximum number of idle connections.
const IDLE_MAX: usize = 4;

/// Idle connections, on which every request was answered.
#[derive(Debug, Default)]
pub(super) struct ConnectionPool(Mutex<Vec<Established>>);

impl ConnectionPool {
    /// Takes a connection that is open and has nothing to read.
    pub(super) fn take(&self) -> Option<Established> {
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(connection) = idle.pop() {
            let mut byte = [0];
            let peeked =
                rustix::net::recv(&connection.socket, &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT);
            if matches!(peeked, Err(Errno::AGAIN)) && !connection.has_received() {
                return Some(connection);
            }
        }
        None
    }

    /// Keeps a connection for later requests, or closes it if there are enough.
    pub(super) fn put(&self, connection: Established) {
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_MAX {
            idle.push(connection);
        }
    }
}
