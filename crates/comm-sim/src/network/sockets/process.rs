//! Moves bytes between the network and the processes.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;

use rustix::event::Timespec;
use rustix::event::epoll::{self, EventFlags};

use super::segment::SegmentContent;
use super::{LISTENER, PeerEnd};
use crate::network::world::World;

/// The most bytes that are read from a process at a time.
const READ_BYTES: usize = 64 << 10;
/// The number of events of epoll that are taken at a time.
const EVENTS_PER_TURN: usize = 64;

impl World {
    /// Writes arrived bytes to the process's end, as far as there is space.
    pub(super) fn write_arrived(&mut self, id: usize) {
        let (mut accepted, mut is_closed) = (0, false);
        let socket = &mut self.sockets.sockets[id];
        let Some(end) = &mut socket.end else { return };
        while !socket.arrived.is_empty() {
            match end.write(socket.arrived.as_slices().0) {
                Ok(written) => {
                    socket.arrived.drain(..written);
                    accepted += written;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => {
                    is_closed = true;
                    break;
                }
            }
        }
        let ends = socket.arrived.is_empty() && socket.peer_end == PeerEnd::Arrived;
        if ends {
            socket.peer_end = PeerEnd::Delivered;
            is_closed |= end.shutdown(Shutdown::Write).is_err();
        }
        let (rank, peer) = (socket.rank, socket.peer);
        if is_closed {
            // As of a process that closed its socket, or exited. What it had sent and is not on its
            // way yet is lost with the connection.
            socket.arrived.clear();
            (socket.end, socket.has_ended) = (None, true);
            self.send_segment(id, SegmentContent::Reset);
        }
        if accepted > 0 || ends || is_closed {
            self.wake_system(rank);
        }
        let Some(peer) = peer.filter(|_| accepted > 0) else { return };
        let sender = &mut self.sockets.sockets[peer];
        // Bytes that were duplicated on the way count once.
        sender.in_flight = sender.in_flight.saturating_sub(accepted);
        if std::mem::take(&mut sender.has_unread) {
            self.read_sent(peer);
        }
    }

    /// Reads bytes that the process has sent, as far as they may be in flight.
    pub(super) fn read_sent(&mut self, id: usize) {
        let mut buffer = vec![0; READ_BYTES];
        loop {
            let socket = &mut self.sockets.sockets[id];
            let Some(end) = socket.end.as_mut().filter(|_| socket.filler == 0) else { return };
            let space = self.plan.capacity.saturating_sub(socket.in_flight).min(READ_BYTES);
            if space == 0 {
                socket.has_unread = true;
                return;
            }
            match end.read(&mut buffer[..space]) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                ended @ (Ok(0) | Err(_)) => {
                    // A process that closes a socket with unread bytes resets the connection.
                    let content = if ended.is_ok() { SegmentContent::End } else { SegmentContent::Reset };
                    if !std::mem::replace(&mut socket.has_ended, true) {
                        self.send_segment(id, content);
                    }
                    return;
                }
                Ok(read) => {
                    socket.in_flight += read;
                    let rank = socket.rank;
                    // There may be space for more.
                    self.wake_system(rank);
                    self.send_in_pieces(id, &buffer[..read]);
                }
            }
        }
    }

    /// Sends bytes in one segment, or in pieces of random lengths.
    pub(super) fn send_in_pieces(&mut self, id: usize, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (piece, rest) = bytes.split_at(self.piece(bytes.len()));
            self.send_segment(id, SegmentContent::Bytes(piece.to_vec()));
            bytes = rest;
        }
    }

    /// Moves the bytes that processes have written to or read from their ends since the last turn.
    pub(in crate::network) fn pump_sockets(&mut self) {
        loop {
            let Some(epoll) = &self.sockets.epoll else { return };
            let mut events = Vec::with_capacity(EVENTS_PER_TURN);
            let spare = rustix::buffer::spare_capacity(&mut events);
            if epoll::wait(epoll, spare, Some(&Timespec::default())).is_err() {
                return;
            }
            let closed =
                |&epoll::Event { data, flags }: &epoll::Event| (data.u64(), flags.contains(EventFlags::HUP));
            let mut tokens: Vec<(u64, bool)> = events.iter().map(closed).collect();
            tokens.sort_unstable();
            for (token, is_closed) in tokens {
                if token & LISTENER == 0 {
                    self.handle_process(token as usize, is_closed);
                } else {
                    self.check_listener((token & !LISTENER) as usize);
                }
            }
            if events.is_empty() {
                return;
            }
        }
    }

    /// Handles that a process has sent, received or closed something.
    pub(super) fn handle_process(&mut self, id: usize, is_closed: bool) {
        let socket = &mut self.sockets.sockets[id];
        if is_closed && socket.filler > 0 {
            // It gave up before it was connected.
            (socket.end, socket.has_ended, socket.filler) = (None, true, 0);
            return;
        }
        self.read_sent(id);
        self.write_arrived(id);
    }

    /// Closes a listener whose process has closed its end.
    pub(super) fn check_listener(&mut self, at: usize) {
        let listener = &mut self.sockets.listeners[at];
        let Some(end) = &mut listener.end else { return };
        let is_open = end.read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
        if !is_open {
            // Dropping the connections that were not accepted ends them.
            (listener.end, listener.queue) = (None, VecDeque::new());
        }
    }
}
