//! The sockets that a rank adds to the stream to a peer.

use std::time::Instant;

use crate::config::TcpConfig;
use crate::connection::Connection;
use crate::growth::{Growth, Rates, Sample, Sockets};
use crate::stripes::StripeWriter;

/// The maximum number of bytes on one of several sockets that the kernel has accepted but not sent.
const UNSENT_MAX: u32 = 256 * 1024;

/// A socket to be added to a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NewSocket {
    /// Its number in the hello.
    pub(crate) number: u8,
    /// The address to connect to, as an index into the addresses of the peer.
    pub(crate) address: usize,
}

/// The sockets that a rank adds to the stream to a peer, and their number.
#[derive(Debug)]
pub(crate) struct OutgoingSockets {
    pub(crate) writer: StripeWriter<Connection>,
    /// The address of each socket of the writer.
    addresses: Vec<usize>,
    /// The addresses to which sockets can be connected. The first one is that of the channel.
    usable: Vec<usize>,
    growth: Growth,
    rates: Rates,
    /// The number of sockets that are being connected.
    connecting: usize,
    /// Those that are connected and wait for the others, so that they are added in order.
    connected: Vec<(NewSocket, Connection)>,
    /// The addresses of those that could not be connected.
    failed: Vec<usize>,
    /// The number of the last socket that was added.
    last_number: u8,
}

impl OutgoingSockets {
    /// Creates a stream to which no socket is added, in stripes of at least one byte.
    pub(crate) fn new(stripe_bytes: usize) -> Self {
        Self {
            writer: StripeWriter::new(stripe_bytes),
            addresses: Vec::new(),
            usable: vec![0],
            growth: Growth::new(Sockets::One),
            rates: Rates::default(),
            connecting: 0,
            connected: Vec::new(),
            failed: Vec::new(),
            last_number: 0,
        }
    }

    /// Sets the number of sockets that may carry the stream, and the number of addresses of the
    /// peer, at least one.
    pub(crate) fn set_sockets(&mut self, sockets: Sockets, addresses: usize) {
        self.growth = Growth::new(sockets);
        self.usable = (0..addresses).collect();
        self.growth.set_networks(addresses);
    }

    /// Whether sockets are being connected.
    pub(crate) const fn is_connecting(&self) -> bool {
        self.connecting > 0
    }

    /// Whether the peer may add sockets to its stream without being asked, as this side may.
    pub(crate) const fn expects_added(&self) -> bool {
        self.growth.is_tuned()
    }

    /// The number of sockets that were added.
    pub(crate) fn count(&self) -> usize {
        self.writer.flows().count()
    }

    /// Whether [`OutgoingSockets::grow`] is due after this many bytes of the stream.
    pub(crate) const fn is_due(&self, sent: u64) -> bool {
        self.growth.is_due(sent)
    }

    /// Decides on the number of sockets that carry the stream; the channel was opened with `first`.
    /// Returns those to add. [`OutgoingSockets::end_connect`] follows for each.
    pub(crate) fn grow(&mut self, first: &Connection, sent: u64, now: Instant) -> Vec<NewSocket> {
        let used = self.writer.used();
        if used > 0 {
            let rates = self.rates.look(now, self.writer.flows().map(Connection::info));
            self.writer.set_rates(rates);
        }
        let sample = || {
            let first = [first].into_iter().filter(|_| used == 0);
            Sample::of(first.chain(self.writer.used_flows()).filter_map(Connection::info))
        };
        let Some(wanted) = self.growth.look(now, sent, sample) else { return Vec::new() };
        let sockets = self.missing(wanted);
        self.connecting = sockets.len();
        if sockets.is_empty() {
            self.use_added(wanted, now);
        }
        sockets
    }

    /// Returns the sockets that are missing to this many, each at the address that has the fewest.
    fn missing(&mut self, wanted: usize) -> Vec<NewSocket> {
        let present = self.eligible().count();
        let at = |address: &usize| self.addresses.iter().filter(|other| *other == address).count();
        let mut counts: Vec<(usize, usize)> = self.spread().iter().map(|it| (at(it), *it)).collect();
        let mut fewest = || {
            let (count, address) = counts.iter_mut().min()?;
            *count += 1;
            Some(*address)
        };
        // It is at most `SOCKETS_MAX`, which is less than 255.
        let free = self.last_number + 1..TcpConfig::SOCKETS_MAX as u8 + 1;
        let numbers = free.take(wanted.saturating_sub(present));
        let sockets: Vec<NewSocket> =
            numbers.filter_map(|number| Some(NewSocket { number, address: fewest()? })).collect();
        self.last_number = sockets.last().map_or(self.last_number, |socket| socket.number);
        sockets
    }

    /// The addresses that the stream is to use.
    fn spread(&self) -> &[usize] {
        &self.usable[..self.growth.networks_used().min(self.usable.len())]
    }

    /// The indices of the added sockets in the networks that the stream is to use.
    fn eligible(&self) -> impl Iterator<Item = usize> {
        let spread = self.spread();
        self.addresses.iter().enumerate().filter(|(_, address)| spread.contains(address)).map(|(at, _)| at)
    }

    /// Handles that a socket is connected, or cannot be.
    pub(crate) fn end_connect(&mut self, socket: NewSocket, connection: Option<Connection>) {
        self.connecting = self.connecting.saturating_sub(1);
        match connection {
            Some(connection) => self.connected.push((socket, connection)),
            None => self.failed.push(socket.address),
        }
    }

    /// Gives up the addresses at which no socket could be connected, except the channel's, once
    /// none is being connected. Returns these addresses.
    pub(crate) fn give_up_addresses(&mut self) -> Vec<usize> {
        let failed = std::mem::take(&mut self.failed);
        let is_good = |address: usize| {
            address == 0
                || !failed.contains(&address)
                || self.addresses.contains(&address)
                || self.connected.iter().any(|(socket, _)| socket.address == address)
        };
        let (good, bad) = self.usable.iter().partition(|address| is_good(**address));
        self.usable = good;
        self.growth.set_networks(self.usable.len());
        bad
    }

    /// Takes the connected sockets, in the order of their numbers. [`OutgoingSockets::add`] follows
    /// for each, and then [`OutgoingSockets::use_added`].
    pub(crate) fn take_connected(&mut self) -> Vec<(NewSocket, Connection)> {
        let mut connected = std::mem::take(&mut self.connected);
        connected.sort_by_key(|(socket, _)| socket.number);
        connected
    }

    /// Adds a socket that is connected to this address of the peer.
    pub(crate) fn add(&mut self, connection: Connection, address: usize) {
        self.writer.add(connection);
        self.addresses.push(address);
    }

    /// Uses at most this many of the added sockets.
    pub(crate) fn use_added(&mut self, at_most: usize, now: Instant) {
        let used: Vec<usize> = self.eligible().take(at_most).collect();
        if self.growth.end_connecting(now, used.len()) {
            let unsent = if used.len() == 1 { u32::MAX } else { UNSENT_MAX };
            self.writer.set_used(used);
            self.writer.flows().for_each(|connection| connection.limit_unsent(unsent));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn connection() -> Connection {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        Connection::new(socket2::Socket::from(socket).into(), 1000)
    }

    /// Ends attempts to connect, which succeed at these addresses only. Returns the addresses of
    /// the sockets that carry the stream, in order.
    fn connect(outgoing: &mut OutgoingSockets, mut sockets: Vec<NewSocket>, good: &[usize]) -> Vec<usize> {
        // They end in any order.
        sockets.rotate_left(1);
        for socket in sockets {
            let is_good = good.contains(&socket.address);
            outgoing.end_connect(socket, is_good.then(connection));
        }
        assert!(!outgoing.is_connecting());
        outgoing.give_up_addresses();
        for (socket, connection) in outgoing.take_connected() {
            outgoing.add(connection, socket.address);
        }
        outgoing.use_added(usize::MAX, Instant::now());
        outgoing.writer.used_indices().iter().map(|at| outgoing.addresses[*at]).collect()
    }

    #[test]
    fn sockets_are_added_at_all_addresses_in_turn() {
        let (mut outgoing, first) = (OutgoingSockets::new(1000), connection());
        outgoing.set_sockets(Sockets::Fixed(7), 3);
        let sockets = outgoing.grow(&first, 1, Instant::now());
        let expected = [0, 1, 2, 0, 1, 2, 0];
        let numbered = (1..).zip(expected).map(|(number, address)| NewSocket { number, address });
        assert_eq!(sockets, numbered.collect::<Vec<_>>());
        assert_eq!(connect(&mut outgoing, sockets, &[0, 1, 2]), expected);
        assert!(outgoing.grow(&first, u64::MAX / 2, Instant::now()).is_empty());
    }

    #[test]
    fn sockets_are_added_where_there_are_the_fewest() {
        let mut outgoing = OutgoingSockets::new(1000);
        outgoing.set_sockets(Sockets::Tuned, 2);
        (0..4).for_each(|_| outgoing.add(connection(), 0));
        let addresses: Vec<usize> = outgoing.missing(9).iter().map(|socket| socket.address).collect();
        assert_eq!(addresses, [1, 1, 1, 1, 0]);
    }

    #[test]
    fn an_address_without_a_connection_is_replaced_by_the_others() {
        let (mut outgoing, first) = (OutgoingSockets::new(1000), connection());
        outgoing.set_sockets(Sockets::Fixed(6), 3);
        let sockets = outgoing.grow(&first, 1, Instant::now());
        assert_eq!(connect(&mut outgoing, sockets, &[0, 2]), [0, 2, 0, 2]);
        let sockets = outgoing.grow(&first, 1 << 40, Instant::now());
        assert_eq!(sockets.iter().map(|socket| socket.number).collect::<Vec<_>>(), [7, 8]);
        assert_eq!(connect(&mut outgoing, sockets, &[0, 2]), [0, 2, 0, 2, 0, 2]);
        assert!(outgoing.grow(&first, 1 << 50, Instant::now()).is_empty());
    }

    #[test]
    fn an_address_with_a_connection_stays_in_use_if_another_one_fails() {
        let (mut outgoing, first) = (OutgoingSockets::new(1000), connection());
        outgoing.set_sockets(Sockets::Fixed(4), 2);
        let sockets = outgoing.grow(&first, 1, Instant::now());
        for (at, socket) in sockets.into_iter().enumerate() {
            outgoing.end_connect(socket, (at != 1).then(connection));
        }
        assert_eq!(outgoing.give_up_addresses(), []);
        assert_eq!(outgoing.usable, [0, 1]);
    }

    #[test]
    fn the_address_of_the_channel_is_tried_again() {
        let (mut outgoing, first) = (OutgoingSockets::new(1000), connection());
        outgoing.set_sockets(Sockets::Fixed(2), 2);
        let sockets = outgoing.grow(&first, 1, Instant::now());
        assert_eq!(connect(&mut outgoing, sockets, &[]), []);
        let sockets = outgoing.grow(&first, 1 << 40, Instant::now());
        assert!(sockets.iter().all(|socket| socket.address == 0) && sockets.len() == 2, "{sockets:?}");
        assert_eq!(connect(&mut outgoing, sockets, &[0]), [0, 0]);
    }
}
