//! The sending side of a stream over several sockets.

use std::io::IoSlice;

use super::{Flow, HEADER_BYTES, StripeHeader};
use crate::protection::{PIECES_MAX, cut};

/// A stripe is this many times longer if only one socket is used.
const ALONE: usize = 16;
/// The bytes on a socket may arrive later than those on the fastest one by the time in which that
/// one carries this many. The receiver's buffer has space for about as many.
const LAG_BYTES: f64 = 2_000_000.0;

/// The sockets that a sender has added to a stream. Stripes go to some of them.
///
/// The bytes of a stripe that a socket does not accept are copied, and sent by
/// [`StripeWriter::flush`], so that the next stripe can use another socket meanwhile. Until then
/// they are not released.
#[derive(Debug)]
pub(crate) struct StripeWriter<F> {
    flows: Vec<OutFlow<F>>,
    /// The sockets that are used.
    used: Vec<usize>,
    stripe_bytes: usize,
    /// The stripe that is not complete.
    open: Option<OpenStripe>,
    /// The socket that is tried first for the next stripe, as an index in `used`.
    next: usize,
}

#[derive(Debug, Clone, Copy)]
struct OpenStripe {
    flow: usize,
    left: usize,
}

#[derive(Debug)]
struct OutFlow<F> {
    flow: F,
    /// Bytes that were accepted from the caller but not by the socket, from `sent` on.
    unsent: Vec<u8>,
    sent: usize,
    /// The position in the stream below which all bytes of this socket were sent, if some were not.
    held_from: Option<u64>,
    /// Its rate in bytes per second, once it is known.
    rate: Option<f64>,
}

impl<F: Flow> StripeWriter<F> {
    /// Creates a writer without sockets. `stripe_bytes` is at least 1.
    pub(crate) const fn new(stripe_bytes: usize) -> Self {
        Self { flows: Vec::new(), used: Vec::new(), stripe_bytes, open: None, next: 0 }
    }

    pub(crate) fn add(&mut self, flow: F) {
        self.flows.push(OutFlow { flow, unsent: Vec::new(), sent: 0, held_from: None, rate: None });
    }

    pub(crate) fn flows(&self) -> impl Iterator<Item = &F> {
        self.flows.iter().map(|flow| &flow.flow)
    }

    pub(crate) fn flows_mut(&mut self) -> impl Iterator<Item = &mut F> {
        self.flows.iter_mut().map(|flow| &mut flow.flow)
    }

    /// The sockets that carry stripes.
    pub(crate) fn used_flows(&self) -> impl Iterator<Item = &F> {
        self.used.iter().map(|&at| &self.flows[at].flow)
    }

    #[cfg(test)]
    pub(crate) fn used_indices(&self) -> &[usize] {
        &self.used
    }

    /// Makes these sockets, which exist, carry all later stripes.
    pub(crate) fn set_used(&mut self, used: impl IntoIterator<Item = usize>) {
        self.used = used.into_iter().collect();
    }

    /// Sets the rates of sockets in bytes per second. One without a rate keeps the former one.
    pub(crate) fn set_rates(&mut self, rates: impl IntoIterator<Item = Option<f64>>) {
        for (flow, rate) in self.flows.iter_mut().zip(rates) {
            let rate = rate.filter(|rate| *rate > 0.0);
            // A rate is measured in few ticks of the kernel's clock.
            flow.rate = rate.map(|rate| rate.midpoint(flow.rate.unwrap_or(rate))).or(flow.rate);
        }
    }

    /// The number of sockets that carry stripes. If it is zero, the stream is still on the socket
    /// of the channel.
    pub(crate) const fn used(&self) -> usize {
        self.used.len()
    }

    /// The position below which nothing waits to be sent, if something does.
    pub(crate) fn held_from(&self) -> Option<u64> {
        self.flows.iter().filter_map(|flow| flow.held_from).min()
    }

    /// Whether a write would accept bytes or fail, as far as is known.
    pub(crate) fn can_write(&self) -> bool {
        match self.open {
            Some(OpenStripe { flow, .. }) => {
                let flow = &self.flows[flow];
                flow.is_idle() && flow.flow.is_writable() || flow.held() < self.held_max()
            }
            None => self.choose().is_some(),
        }
    }

    /// Sends bytes that wait, on every socket that may accept them.
    pub(crate) fn flush(&mut self) -> rustix::io::Result<()> {
        self.flows.iter_mut().filter(|flow| flow.held_from.is_some()).try_for_each(OutFlow::flush)
    }

    /// Sends the pieces, which begin at `position` of the stream: at most `bytes_max` bytes, and
    /// no more than fit into one stripe. Returns the number of accepted bytes.
    pub(crate) fn write(
        &mut self,
        position: u64,
        pieces: &[IoSlice<'_>],
        bytes_max: usize,
    ) -> rustix::io::Result<usize> {
        let Some(open) = self.open.or_else(|| self.begin()) else { return Ok(0) };
        let is_new = self.open.is_none();
        // At most `ALONE` times a stripe, whose length was checked.
        let header = StripeHeader { position, bytes: open.left as u32 }.encode();
        let header = if is_new { &header[..] } else { &[] };
        let mut parts = [IoSlice::new(&[]); PIECES_MAX];
        parts[0] = IoSlice::new(header);
        let count = 1 + cut(pieces, 0, open.left.min(bytes_max), &mut parts[1..]);
        let parts = &parts[..count];
        let total: usize = parts.iter().map(|part| part.len()).sum();
        if total == header.len() {
            return Ok(0);
        }
        let held_max = self.held_max();
        let flow = &mut self.flows[open.flow];
        let sent =
            if flow.is_idle() && flow.flow.is_writable() { flow.flow.write(parts, total)? } else { 0 };
        if is_new && sent == 0 {
            return Ok(0);
        }
        let accepted = (sent + flow.hold(parts, sent, held_max)).saturating_sub(header.len());
        if !flow.is_idle() {
            flow.held_from.get_or_insert(position);
        }
        let left = open.left - accepted;
        self.open = (left > 0).then_some(OpenStripe { left, ..open });
        if is_new {
            self.next = self.used.iter().position(|&flow| flow == open.flow).map_or(0, |at| at + 1);
        }
        Ok(accepted)
    }

    /// The most bytes that may wait on a socket: the rest of a stripe fits.
    const fn held_max(&self) -> usize {
        self.stripe_bytes + HEADER_BYTES
    }

    /// Chooses a socket for the next stripe, if one accepts it.
    fn begin(&self) -> Option<OpenStripe> {
        let factor = if self.used.len() == 1 { ALONE } else { 1 };
        Some(OpenStripe { flow: self.choose()?, left: self.stripe_bytes.saturating_mul(factor) })
    }

    fn choose(&self) -> Option<usize> {
        let latest = self.latest();
        let used = self.used.len();
        let mut in_turn = (0..used).map(|at| self.used[(self.next + at) % used]);
        in_turn.find(|&at| {
            let flow = &self.flows[at];
            let is_late = latest.is_some_and(|(fastest, latest)| at != fastest && flow.delay() > latest);
            flow.is_idle() && flow.flow.is_writable() && !is_late
        })
    }

    /// Returns the fastest socket, and the time in seconds within which bytes on other ones are to
    /// arrive. Bytes on a slow socket must not arrive long after those that follow them on others,
    /// which would fill the receiver's buffers and wait. The fastest one is always used, and epoll
    /// reports when it accepts more.
    fn latest(&self) -> Option<(usize, f64)> {
        let rates = self.used.iter().filter_map(|&at| Some((at, self.flows[at].rate?)));
        let (fastest, rate) = rates.max_by(|a, b| a.1.total_cmp(&b.1))?;
        Some((fastest, self.flows[fastest].delay() + LAG_BYTES / rate))
    }
}

impl<F: Flow> OutFlow<F> {
    fn held(&self) -> usize {
        self.unsent.len() - self.sent
    }

    /// The time in seconds in which the bytes that were written arrive, if the rate is known.
    fn delay(&self) -> f64 {
        self.rate.map_or(0.0, |rate| self.flow.queued() as f64 / rate)
    }

    /// Whether nothing waits to be sent.
    fn is_idle(&self) -> bool {
        self.held() == 0 && !self.flow.holds_bytes()
    }

    /// Copies the bytes of the parts from `skip` on, as far as they fit. Returns their number.
    fn hold(&mut self, parts: &[IoSlice<'_>], mut skip: usize, held_max: usize) -> usize {
        let before = self.held();
        for part in parts {
            let skipped = skip.min(part.len());
            skip -= skipped;
            let rest = &part[skipped..];
            if rest.is_empty() {
                continue;
            }
            self.unsent.drain(..std::mem::take(&mut self.sent));
            let fits = rest.len().min(held_max.saturating_sub(self.unsent.len()));
            self.unsent.extend_from_slice(&rest[..fits]);
            if fits < rest.len() {
                break;
            }
        }
        self.held() - before
    }

    fn flush(&mut self) -> rustix::io::Result<()> {
        if self.flow.is_writable() {
            self.flow.flush()?;
            let held = self.held();
            if held > 0 && !self.flow.holds_bytes() {
                self.sent += self.flow.write(&[IoSlice::new(&self.unsent[self.sent..])], held)?;
            }
        }
        if self.is_idle() {
            self.held_from = None;
        }
        Ok(())
    }
}
