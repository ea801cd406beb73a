//! Connections: how processes listen, connect and accept.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Write};
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::sockopt::set_socket_send_buffer_size;

use super::segment::{Segment, SegmentContent};
use super::{LISTENER, Listener, NetworkSocket, PeerEnd, address_of, inode};
use crate::network::world::{Event, World};

/// The first port of connections, and of listeners that leave the choice to the system.
const FIRST_PORT: u16 = 40_000;
/// The largest part of the bytes in flight that the kernel holds on the side of the sender.
const SEND_BUFFER_MAX: usize = 64 << 10;

impl World {
    /// Listens on an address for a rank. Returns the process's end.
    pub(in crate::network) fn listen(&mut self, rank: usize, address: SocketAddr) -> io::Result<OwnedFd> {
        // A process may have closed its listener just now.
        self.pump_sockets();
        let sockets = &mut self.sockets;
        let number = sockets.listeners.len();
        let port = if address.port() == 0 { FIRST_PORT + number as u16 } else { address.port() };
        let address = SocketAddr::new(address.ip(), port);
        if sockets.is_in_use(address) {
            return Err(ErrorKind::AddrInUse.into());
        }
        let (end, own) = sockets.pair(LISTENER | number as u64)?;
        let queue = VecDeque::new();
        sockets.listeners.push(Listener { rank, address, end: Some(end), queue, is_silent: false });
        Ok(own.into())
    }

    /// Accepts a connection at the listener with this descriptor.
    pub(in crate::network) fn accept(
        &mut self,
        listener: BorrowedFd<'_>,
    ) -> io::Result<Option<(OwnedFd, SocketAddr)>> {
        let token = self.sockets.tokens.get(&inode(listener)?).filter(|&token| token & LISTENER != 0);
        let at = token.map(|token| (token & !LISTENER) as usize).ok_or(ErrorKind::InvalidInput)?;
        let state = &mut self.sockets.listeners[at];
        let Some(accepted) = state.queue.pop_front() else { return Ok(None) };
        rustix::io::read(listener, &mut [0])?;
        Ok(Some(accepted))
    }

    /// Adds one side of a connection. Returns its number, and the process's end.
    pub(super) fn add_socket(&mut self, rank: usize, address: SocketAddr) -> io::Result<(usize, UnixStream)> {
        let capacity = self.plan.capacity.min(SEND_BUFFER_MAX);
        let id = self.sockets.sockets.len();
        let (end, own) = self.sockets.pair(id as u64)?;
        set_socket_send_buffer_size(&own, capacity)?;
        self.sockets.sockets.push(NetworkSocket {
            rank,
            address,
            end: Some(end),
            peer: None,
            error: None,
            filler: 0,
            segments: VecDeque::new(),
            in_flight: 0,
            busy_until: Duration::ZERO,
            has_unread: false,
            has_ended: false,
            arrived: VecDeque::new(),
            peer_end: PeerEnd::None,
        });
        Ok((id, own))
    }

    /// Begins to connect a rank to an address. Returns the process's end, which becomes writable
    /// when the other side has answered.
    pub(in crate::network) fn connect_socket(&mut self, rank: usize, to: SocketAddr) -> io::Result<OwnedFd> {
        let port = FIRST_PORT.wrapping_add(self.sockets.sockets.len() as u16);
        let (id, own) = self.add_socket(rank, SocketAddr::new(address_of(rank), port))?;
        let filler = &mut self.sockets.sockets[id].filler;
        while let Ok(written) = (&own).write(&[0; 4096]) {
            *filler += written;
        }
        self.send_segment(id, SegmentContent::Syn(to));
        Ok(own.into())
    }

    /// Handles a request to connect.
    pub(super) fn connect_to_listener(&mut self, id: usize, to: SocketAddr) {
        let Some(at) = self.sockets.listener_at(to) else { return self.reply(id, SegmentContent::Refusal) };
        let Listener { rank, is_silent, .. } = self.sockets.listeners[at];
        if is_silent || self.sockets.sockets[id].end.is_none() {
            return;
        }
        let Ok((accepted, own)) = self.add_socket(rank, to) else { return };
        let (sockets, listener) = (&mut self.sockets.sockets, &mut self.sockets.listeners[at]);
        (sockets[id].peer, sockets[accepted].peer) = (Some(accepted), Some(id));
        listener.queue.push_back((own.into(), sockets[id].address));
        // It has space for one byte per connection.
        let _ = listener.end.as_ref().map(|mut end| end.write(&[1]));
        self.wake_system(rank);
        self.send_segment(accepted, SegmentContent::SynAck);
    }

    /// Answers a side for an address at which there is no other side.
    pub(super) fn reply(&mut self, id: usize, content: SegmentContent) {
        let arrives = self.now() + self.plan.latency;
        self.sockets.sockets[id].segments.push_back(Segment { departs: arrives, arrives, content });
        self.plan_event(self.plan.latency, Event::Segment { socket: id });
    }
}
