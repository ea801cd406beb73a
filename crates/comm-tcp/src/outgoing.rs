//! The sockets that a rank adds to the stream to a peer.

use std::ops::Range;
use std::time::Instant;

use crate::config::TcpConfig;
use crate::connection::Connection;
use crate::growth::{Growth, Rates, Sample, Sockets};
use crate::stripes::StripeWriter;

/// The maximum number of bytes on one of several sockets that the kernel has accepted but not sent.
const UNSENT_MAX: u32 = 256 * 1024;

/// The sockets that a rank adds to the stream to a peer, and their number.
#[derive(Debug)]
pub(crate) struct OutgoingSockets {
    pub(crate) writer: StripeWriter<Connection>,
    growth: Growth,
    rates: Rates,
    /// The number of sockets that are being connected.
    connecting: usize,
    /// The number of the last socket that was added.
    last_number: u8,
}

impl OutgoingSockets {
    /// Creates a stream to which no socket is added, in stripes of at least one byte.
    pub(crate) fn new(stripe_bytes: usize) -> Self {
        Self {
            writer: StripeWriter::new(stripe_bytes),
            growth: Growth::new(Sockets::One),
            rates: Rates::default(),
            connecting: 0,
            last_number: 0,
        }
    }

    /// Sets the number of sockets that may carry the stream.
    pub(crate) const fn set_sockets(&mut self, sockets: Sockets) {
        self.growth = Growth::new(sockets);
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

    /// Decides on the number of sockets that carry the stream, of which `first` is the one with
    /// which the channel was opened. Returns the numbers of those to add.
    /// [`OutgoingSockets::add`] follows for each.
    pub(crate) fn grow(&mut self, first: &Connection, sent: u64, now: Instant) -> Range<u8> {
        let used = self.writer.used();
        if used > 0 {
            let rates = self.rates.look(now, self.writer.flows().map(Connection::info));
            self.writer.set_rates(rates);
        }
        let sample = || {
            let first = [first].into_iter().filter(|_| used == 0);
            Sample::of(first.chain(self.writer.flows().take(used)).filter_map(Connection::info))
        };
        let Some(wanted) = self.growth.look(now, sent, sample) else { return 0..0 };
        let added = wanted.saturating_sub(self.count());
        // Both are at most `SOCKETS_MAX`, which is less than 255.
        let free = TcpConfig::SOCKETS_MAX as u8 - self.last_number;
        let end = self.last_number + free.min(added.min(TcpConfig::SOCKETS_MAX) as u8);
        let numbers = self.last_number + 1..end + 1;
        (self.connecting, self.last_number) = (numbers.len(), end);
        if numbers.is_empty() {
            self.use_added(wanted, now);
        }
        numbers
    }

    /// Adds a socket, or handles that one cannot be connected.
    pub(crate) fn add(&mut self, connection: Option<Connection>, now: Instant) {
        connection.into_iter().for_each(|connection| self.writer.add(connection));
        self.connecting = self.connecting.saturating_sub(1);
        if self.connecting == 0 {
            self.use_added(usize::MAX, now);
        }
    }

    /// Uses at most this many of the added sockets.
    fn use_added(&mut self, at_most: usize, now: Instant) {
        let sockets = self.count().min(at_most);
        if self.growth.end_connecting(now, sockets) {
            self.writer.set_used(sockets);
            let unsent = if sockets == 1 { u32::MAX } else { UNSENT_MAX };
            self.writer.flows().for_each(|connection| connection.limit_unsent(unsent));
        }
    }
}
