//! The receiving side of a stream over several sockets.

use comm_core::Corruption;
use rustix::io::Errno;

use super::{Flow, HEADER_BYTES, StripeHeader};
use crate::protection::RecvError;

/// The reason why a stream over several sockets cannot continue.
#[derive(Debug)]
pub(crate) enum Fault {
    /// A socket ended within a stripe.
    Ended,
    Socket(Errno),
    Corrupted(Corruption),
    /// The peer sent bytes that no correct peer sends.
    Protocol(String),
}

impl From<RecvError> for Fault {
    fn from(error: RecvError) -> Self {
        match error {
            RecvError::Socket(errno) => Self::Socket(errno),
            RecvError::Corrupted(corruption) => Self::Corrupted(corruption),
        }
    }
}

/// The sockets that the sender has added to a stream.
#[derive(Debug)]
pub(crate) struct StripeReader<F> {
    flows: Vec<InFlow<F>>,
    /// The socket whose stripe is being received.
    current: Option<usize>,
}

#[derive(Debug)]
struct InFlow<F> {
    /// The number of the socket in its hello.
    number: u8,
    flow: F,
    /// The bytes of the next header that have arrived.
    header: [u8; HEADER_BYTES],
    filled: usize,
    /// The rest of the stripe that begins here.
    stripe: Option<StripeHeader>,
    /// Whether anything has arrived.
    is_used: bool,
    /// Whether the socket has ended after a whole stripe.
    has_ended: bool,
}

impl<F: Flow> StripeReader<F> {
    pub(crate) const fn new() -> Self {
        Self { flows: Vec::new(), current: None }
    }

    /// Adds a socket. Returns it if there is one with this number.
    pub(crate) fn add(&mut self, number: u8, flow: F) -> Result<(), F> {
        if self.flow_mut(number).is_some() {
            return Err(flow);
        }
        let header = [0; HEADER_BYTES];
        self.flows.push(InFlow {
            number,
            flow,
            header,
            filled: 0,
            stripe: None,
            is_used: false,
            has_ended: false,
        });
        Ok(())
    }

    pub(crate) fn flow_mut(&mut self, number: u8) -> Option<&mut F> {
        self.flows.iter_mut().find(|flow| flow.number == number).map(|flow| &mut flow.flow)
    }

    /// Whether the peer has sent something on this socket, as far as was read. A socket that breaks
    /// unused is not missed: the peer may have left before it was connected.
    pub(crate) fn is_used(&self, number: u8) -> bool {
        self.flows.iter().any(|flow| flow.number == number && flow.is_used)
    }

    pub(crate) fn flows(&self) -> impl Iterator<Item = &F> {
        self.flows.iter().map(|flow| &flow.flow)
    }

    pub(crate) fn flows_mut(&mut self) -> impl Iterator<Item = &mut F> {
        self.flows.iter_mut().map(|flow| &mut flow.flow)
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    /// Whether the next byte is the first one of a stripe.
    pub(crate) const fn is_between_stripes(&self) -> bool {
        self.current.is_none()
    }

    /// Whether a read at this position of the stream would make progress or fail, as far as is
    /// known.
    pub(crate) fn can_read(&self, position: u64) -> bool {
        let is_next = |flow: &InFlow<F>| match flow.stripe {
            Some(stripe) => stripe.position <= position && flow.flow.is_readable(),
            None => flow.can_read_header(),
        };
        match self.current {
            Some(current) => self.flows[current].flow.is_readable(),
            None => self.flows.iter().any(is_next),
        }
    }

    /// Whether no socket will carry the next byte: each has ended, or carries later bytes.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.current.is_none() && self.flows.iter().all(|flow| flow.has_ended || flow.stripe.is_some())
    }

    /// Finds the stripe that begins at this position, unless one is being received. Returns whether
    /// there is one.
    pub(crate) fn select(&mut self, position: u64) -> Result<bool, Fault> {
        if self.current.is_some() {
            return Ok(true);
        }
        for (at, flow) in self.flows.iter_mut().enumerate() {
            let Some(stripe) = flow.next_stripe()? else { continue };
            if stripe.position < position {
                let (number, again) = (flow.number, stripe.position);
                return Err(Fault::Protocol(format!(
                    "socket {number} repeats byte {again} of the stream, which is at {position}"
                )));
            }
            if stripe.position == position {
                self.current = Some(at);
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Reads from the selected stripe into `into` and then `ahead`. Returns the number of bytes,
    /// which may be zero.
    pub(crate) fn read(&mut self, into: &mut [u8], ahead: &mut [u8]) -> Result<usize, Fault> {
        let Some(InFlow { flow, header, filled, stripe, .. }) =
            self.current.and_then(|current| self.flows.get_mut(current))
        else {
            return Ok(0);
        };
        let Some(rest) = stripe else { return Ok(0) };
        let left = rest.bytes as usize;
        let direct = into.len().min(left);
        // The next header follows a stripe, and costs no further read.
        let ahead_max = ahead.len().min(left - direct);
        let second = if direct == left { &mut header[..] } else { &mut ahead[..ahead_max] };
        let read = match flow.read(&mut into[..direct], second)? {
            None => return Ok(0),
            Some(0) => return Err(Fault::Ended),
            Some(read) => read,
        };
        let payload = read.min(left);
        *filled = read - payload;
        rest.position += payload as u64;
        // At most `left`.
        rest.bytes -= payload as u32;
        if rest.bytes == 0 {
            *stripe = None;
            self.current = None;
        }
        Ok(payload)
    }
}

impl<F: Flow> InFlow<F> {
    fn can_read_header(&self) -> bool {
        !self.has_ended && (self.filled == HEADER_BYTES || self.flow.is_readable())
    }

    /// Reads the next header if it has arrived. Returns the stripe that begins here.
    fn next_stripe(&mut self) -> Result<Option<StripeHeader>, Fault> {
        while self.stripe.is_none() && self.can_read_header() {
            if self.filled < HEADER_BYTES {
                match self.flow.read(&mut self.header[self.filled..], &mut []) {
                    Ok(None) => break,
                    Ok(Some(0)) if self.filled > 0 => return Err(Fault::Ended),
                    Ok(Some(0)) => self.has_ended = true,
                    Err(RecvError::Socket(_)) if !self.is_used => self.has_ended = true,
                    Err(error) => return Err(error.into()),
                    Ok(Some(read)) => (self.filled, self.is_used) = (self.filled + read, true),
                }
                continue;
            }
            let number = self.number;
            let invalid = |error| Fault::Protocol(format!("socket {number} of a stream: {error}"));
            self.stripe = Some(StripeHeader::decode(&self.header).map_err(invalid)?);
            self.filled = 0;
        }
        Ok(self.stripe)
    }
}
