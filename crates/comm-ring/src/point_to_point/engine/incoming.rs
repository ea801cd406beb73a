//! What peers say, and what follows from it.

use comm_core::{During, Error, Loss, Result, Transport};

use super::operation::{Kind, Operation, misplaced};
use super::peer::{Into, Reading, Report, Transfer};
use super::{Body, Engine, Mine, Ticket, cost};
use crate::point_to_point::frame::{ANNOUNCED_MAX, CREDIT, Frame};
use crate::point_to_point::matching::Label;

/// How much is read from one peer before it is another one's turn.
const BYTES_PER_TURN: usize = 1 << 20;

impl Engine {
    /// Reads from a peer what has arrived, as much as is its turn. Tells whether anything had.
    pub(super) fn read(
        &mut self,
        transport: &mut dyn Transport,
        from: usize,
        mine: &mut Mine<'_>,
    ) -> Result<bool> {
        let mut left = BYTES_PER_TURN;
        while left > 0 && self.peers[from].is_there() && self.poison.is_none() {
            let received = self.read_some(transport, from, mine)?;
            if received == 0 {
                break;
            }
            left = left.saturating_sub(received);
        }
        Ok(left < BYTES_PER_TURN)
    }

    /// Reads once, into where the bytes belong.
    fn read_some(
        &mut self,
        transport: &mut dyn Transport,
        from: usize,
        mine: &mut Mine<'_>,
    ) -> Result<usize> {
        let peer = &mut self.peers[from];
        match &mut peer.reading {
            Reading::Head { have } => {
                let received = transport.try_recv(from, &mut peer.head[*have..])?;
                *have += received;
                if *have == Frame::BYTES {
                    peer.reading = Reading::Head { have: 0 };
                    let frame =
                        Frame::decode(&peer.head).ok_or_else(|| garbage(from, "no head of a frame"))?;
                    self.hear(from, frame)?;
                }
                Ok(received)
            }
            Reading::Eager { into, done, length } => {
                let (into, start, length) = (*into, *done, *length);
                let received = match space_of(self, into, start..length, mine) {
                    Ok(space) => transport.try_recv(from, space)?,
                    Err(error) => return Ok(self.read_nothing(into, error)),
                };
                let done = start + received;
                self.peers[from].reading = Reading::Eager { into, done, length };
                if done == length {
                    self.arrived(from, into, length, mine);
                }
                Ok(received)
            }
            Reading::Part { id, left } => {
                let (id, left) = (*id, *left);
                let Some(asked) = peer.asked.get(&id).copied() else {
                    return Err(garbage(from, "a part of an unknown message"));
                };
                let into = Into::Receive(asked.receive);
                let received = match space_of(self, into, asked.done..asked.done + left, mine) {
                    Ok(space) => transport.try_recv(from, space)?,
                    Err(error) => return Ok(self.read_nothing(into, error)),
                };
                self.part_arrived(from, id, left, received);
                Ok(received)
            }
            Reading::Text { text, have, of } => {
                let received = transport.try_recv(from, &mut text[*have..])?;
                *have += received;
                if *have == text.len() {
                    let (of, text) = (*of, String::from_utf8_lossy(text).into_owned());
                    peer.reading = Reading::Head { have: 0 };
                    self.reported(from, of, text);
                }
                Ok(received)
            }
        }
    }

    /// Reads nothing this time, as there is no memory for it.
    fn read_nothing(&mut self, into: Into, error: Error) -> usize {
        match into {
            Into::Receive(receive) => self.without_space(receive, error),
            Into::Message(_) => self.end_all(error),
        }
        0
    }

    /// Acts on the head of a frame.
    fn hear(&mut self, from: usize, frame: Frame) -> Result<()> {
        let peer = &mut self.peers[from];
        match frame {
            Frame::Eager { tag, dtype, length } => {
                // The head bounds the length, so that it fits any integer.
                let length = length as usize;
                peer.held += cost(length);
                if peer.held > CREDIT {
                    return Err(garbage(from, "more than it has credit for"));
                }
                let label = Label { source: from, tag };
                let into = match self.claim(label, dtype, length) {
                    Some(receive) => Into::Receive(receive),
                    None => Into::Message(self.file(label, dtype, length, Body::Arriving(Vec::new()))),
                };
                self.peers[from].reading = Reading::Eager { into, done: 0, length };
                if length == 0 {
                    self.arrived(from, into, 0, &mut Mine::default());
                }
            }
            Frame::Announce { tag, dtype, length, id } => {
                // The head bounds the length to what an address can reach.
                let (label, length) = (Label { source: from, tag }, length as usize);
                if peer.offered.contains_key(&id) || peer.asked.contains_key(&id) {
                    return Err(garbage(from, "two messages of one number"));
                }
                if peer.offered.len() >= ANNOUNCED_MAX {
                    return Err(garbage(from, "more messages than may wait"));
                }
                match self.claim(label, dtype, length) {
                    Some(receive) => self.ask(from, id, receive, length),
                    None => {
                        let number = self.file(label, dtype, length, Body::Announced(id));
                        self.peers[from].offered.insert(id, number);
                    }
                }
            }
            Frame::Clear { id } => {
                let Some(send) = peer.announced.remove(&id) else {
                    return Err(garbage(from, "it asks for an unknown message"));
                };
                self.cleared(from, id, send);
            }
            Frame::Data { length, id } => {
                let Some(asked) = peer.asked.get(&id) else {
                    return Err(garbage(from, "a part of an unknown message"));
                };
                let left = usize::try_from(length).unwrap_or(usize::MAX);
                if left > asked.length - asked.done {
                    return Err(garbage(from, "more of a message than it announced"));
                }
                peer.reading = Reading::Part { id, left };
            }
            Frame::Credit { amount } => {
                let Some(spent) = peer.spent.checked_sub(amount) else {
                    return Err(garbage(from, "credit that it never took"));
                };
                peer.spent = spent;
            }
            Frame::Goodbye => self.lose(from, Loss::Finished),
            Frame::Abort { length, by } => {
                let by = usize::try_from(by).ok().filter(|&by| by < self.group.size()).unwrap_or(from);
                self.expect_text(from, length, Report::Aborted { by });
            }
            Frame::Lost { length, rank } => match usize::try_from(rank) {
                Ok(rank) if rank < self.group.size() => {
                    self.expect_text(from, length, Report::Lost { rank });
                }
                _ => return Err(garbage(from, "the death of a rank that is no member")),
            },
        }
        Ok(())
    }

    /// Reads the text of a report next. Its head bounds the length.
    fn expect_text(&mut self, from: usize, length: u64, of: Report) {
        if length == 0 {
            return self.reported(from, of, String::new());
        }
        self.peers[from].reading = Reading::Text { text: vec![0; length as usize], have: 0, of };
    }

    /// Acts on a report of a peer.
    fn reported(&mut self, from: usize, of: Report, text: String) {
        match of {
            Report::Aborted { by } => self.end_all(Error::Aborted { by, reason: text }),
            // Whether this rank is alive it knows best itself.
            Report::Lost { rank } if rank == self.group.rank() => {}
            Report::Lost { rank } => drop(self.peers[from].witnessed.get_or_insert((rank, text))),
        }
    }

    /// A message that came whole is complete.
    fn arrived(&mut self, from: usize, into: Into, length: usize, mine: &mut Mine<'_>) {
        self.peers[from].reading = Reading::Head { have: 0 };
        match into {
            Into::Receive(receive) => {
                self.free(from, length);
                self.end_received(receive);
            }
            Into::Message(number) => {
                let Some(message) = self.messages.get_mut(&number) else { return };
                message.arrived();
                let Some(receive) = message.receive else { return };
                if let Some(Body::Whole(bytes)) = self.messages.remove(&number).map(|message| message.body) {
                    self.free(from, length);
                    self.deliver(receive, &bytes, mine);
                }
            }
        }
    }

    /// Some of a part of a message has come.
    fn part_arrived(&mut self, from: usize, id: u64, left: usize, received: usize) {
        let peer = &mut self.peers[from];
        let Some(asked) = peer.asked.get_mut(&id) else { return };
        asked.done += received;
        peer.reading = if left > received {
            Reading::Part { id, left: left - received }
        } else {
            Reading::Head { have: 0 }
        };
        if asked.done == asked.length {
            let receive = asked.receive;
            peer.asked.remove(&id);
            self.end_received(receive);
        }
    }

    /// A peer asked for a message.
    fn cleared(&mut self, to: usize, id: u64, ticket: Ticket) {
        // One more may be announced in its place.
        self.admit(to);
        let Some(Operation { kind: Kind::Send(send), .. }) = self.operations.get_mut(&ticket) else { return };
        send.begun = true;
        let length = send.length;
        if length == 0 {
            self.end(ticket, Ok(None));
        } else {
            self.peers[to].transfers.push_back(Transfer { send: ticket, id, done: 0, length });
        }
    }
}

/// The memory for what comes, if it is where it should be.
fn space_of<'a>(
    engine: &'a mut Engine,
    into: Into,
    range: std::ops::Range<usize>,
    mine: &'a mut Mine<'_>,
) -> Result<&'a mut [u8]> {
    match into {
        Into::Receive(receive) => match engine.operations.get_mut(&receive) {
            Some(Operation { kind: Kind::Recv(recv), .. }) => recv.space(receive, range, mine),
            _ => Err(misplaced()),
        },
        Into::Message(number) => match engine.messages.get_mut(&number).map(|message| &mut message.body) {
            Some(Body::Arriving(bytes)) => {
                bytes.resize(range.end, 0);
                bytes.get_mut(range).ok_or_else(misplaced)
            }
            _ => Err(misplaced()),
        },
    }
}

fn garbage(peer: usize, what: &str) -> Error {
    let loss = Loss::Garbage(what.to_owned());
    Error::PeerLost { peer, during: During::Receiving, loss }
}
