//! Random messages between two ranks.

use std::ops::Range;

use comm_core::{ANY_TAG, Comm, Received, Result, Source};

use crate::exact;
use crate::random::Random;
use crate::swarm::SwarmRank;

/// A message.
#[derive(Debug, Clone, Copy)]
struct PlannedMessage {
    from: usize,
    to: usize,
    tag: u64,
    len: usize,
}

/// Messages that are exchanged together, the same list on all ranks.
#[derive(Debug)]
pub(super) struct Messages {
    messages: Vec<PlannedMessage>,
    step: usize,
    /// Whether every rank sends one message and receives one.
    is_shift: bool,
    /// Whether receives match any source.
    is_any_source: bool,
}

/// The numbers of messages of a round.
const COUNT: Range<usize> = 1..6;

impl Messages {
    pub(super) fn draw(random: &mut Random, len_max: usize, size: usize, step: usize) -> Self {
        let is_shift = random.one_in(2);
        let (distance, magnitude) = (random.below(size), random.below(16));
        let count = if is_shift { size } else { COUNT.start + random.below(COUNT.len()) };
        let mut message = |index: usize| {
            let (from, to) = (random.below(size), random.below(size));
            let (from, to) = if is_shift { (index, (index + distance) % size) } else { (from, to) };
            let len = random.below(1 << magnitude).min(len_max);
            PlannedMessage { from, to, tag: (step * 16 + index) as u64, len }
        };
        let messages = (0..count).map(&mut message).collect();
        Self { messages, step, is_shift, is_any_source: random.one_in(4) }
    }

    /// Exchanges the messages and compares them. Errors are only recorded: they concern no later
    /// collective.
    pub(super) fn exchange(&self, rank: &SwarmRank<'_>, comm: &Comm) {
        // Shorter than that of a collective, for which all ranks must arrive in time.
        let timeout = rank.timeout() / 4;
        let comm = comm.with_timeout(timeout);
        let limit = timeout * (1 + self.messages.len() as u32);
        let name = format!("messages of step {}", self.step);
        // The record of the call contains the error.
        let _ = rank.exchange(name, limit, || self.exchanged(rank, &comm));
    }

    fn exchanged(&self, rank: &SwarmRank<'_>, comm: &Comm) -> Result<()> {
        let outcome = if self.is_shift { self.shift(rank, comm) } else { self.exchange_in_order(rank, comm) };
        // No message may be left over: every tag is used once.
        match outcome.and_then(|()| comm.try_probe(Source::Any, ANY_TAG)) {
            Ok(Some(left)) if self.is_own(left.tag, comm.rank()) => {
                rank.wrong(format!("a second message with tag {} arrived", left.tag));
                Ok(())
            }
            other => other.map(drop),
        }
    }

    /// Sends and receives one message at the same time.
    fn shift(&self, rank: &SwarmRank<'_>, comm: &Comm) -> Result<()> {
        let own = comm.rank();
        let outgoing = self.messages.iter().find(|message| message.from == own);
        let incoming = self.messages.iter().find(|message| message.to == own);
        let (Some(outgoing), Some(incoming)) = (outgoing, incoming) else { return Ok(()) };
        let mut buffer = vec![0_u32; incoming.len];
        let source = self.source(incoming);
        let (to, from) = ((outgoing.to, outgoing.tag), (source, incoming.tag));
        let received = comm.send_recv(to, &outgoing.content(), from, &mut buffer)?;
        incoming.check(rank, received, &buffer);
        Ok(())
    }

    /// Sends and receives one message after the other. All ranks use the same order, so no rank
    /// waits for one that waits for it.
    fn exchange_in_order(&self, rank: &SwarmRank<'_>, comm: &Comm) -> Result<()> {
        let own = comm.rank();
        let mut outcome = Ok(());
        for message in &self.messages {
            let mut buffer = vec![0_u32; message.len];
            let (to, from) = ((message.to, message.tag), (self.source(message), message.tag));
            let received = match (message.from == own, message.to == own) {
                (true, true) => comm.send_recv(to, &message.content(), from, &mut buffer).map(Some),
                (true, false) => comm.send(message.to, message.tag, &message.content()).map(|()| None),
                (false, true) => comm.recv(from.0, message.tag, &mut buffer).map(Some),
                (false, false) => Ok(None),
            };
            match received {
                Ok(Some(received)) => message.check(rank, received, &buffer),
                Ok(None) => {}
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        outcome
    }

    const fn source(&self, message: &PlannedMessage) -> Source {
        if self.is_any_source { Source::Any } else { Source::Rank(message.from) }
    }

    /// Returns whether a message of this round with this tag was received.
    fn is_own(&self, tag: u64, own: usize) -> bool {
        self.messages.iter().any(|message| message.tag == tag && message.to == own)
    }
}

impl PlannedMessage {
    fn check(&self, rank: &SwarmRank<'_>, received: Received, content: &[u32]) {
        if content != self.content() || received.source != self.from || received.tag != self.tag {
            rank.wrong(format!("the message with {self:?} differs, and is from rank {}", received.source));
        }
    }

    fn content(&self) -> Vec<u32> {
        let shift = self.tag as usize;
        exact::elements(shift..shift + self.len, |at| exact::block_number(self.from, self.to, at))
    }
}
