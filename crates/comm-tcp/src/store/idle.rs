//! Connections that are kept while nobody uses them.

use std::sync::{Mutex, PoisonError};

use rustix::io::Errno;
use rustix::net::RecvFlags;
use socket2::Socket;

/// The most connections that are kept.
const IDLE_MAX: usize = 4;

/// Connections on which every question has got its answer.
#[derive(Debug, Default)]
pub(super) struct Idle(Mutex<Vec<Socket>>);

impl Idle {
    /// A connection that nobody else uses, and that was alive and silent a moment ago.
    pub(super) fn take(&self) -> Option<Socket> {
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(socket) = idle.pop() {
            let mut byte = [0];
            let peeked = rustix::net::recv(&socket, &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT);
            if matches!(peeked, Err(Errno::AGAIN)) {
                return Some(socket);
            }
        }
        None
    }

    pub(super) fn keep(&self, socket: Socket) {
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_MAX {
            idle.push(socket);
        }
    }
}
