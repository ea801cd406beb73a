//! Messages between two ranks.
//!
//! A message has a header, in a message of MPI with one tag, because tags of MPI are smaller than
//! those of comm, and have no types. Every rank receives headers as they arrive, and matches them
//! with its receives. A short body follows the header; a long one is a message of MPI with a tag
//! that the header names, which MPI moves once a receive takes it. Bodies are copied, so that a
//! call that passes its deadline can give its buffer back.

mod engine;
mod frame;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use comm_core::{
    CallOptions, Error, HostView, HostViewMut, Incoming, Invalid, PointToPoint, Received, RecvFrom, Result,
    SendTo, Shape, Source, StartedSend, TagMatch, Unsent,
};

use crate::communicator::MpiCommunicator;
use crate::notice::Scope;
use crate::pause::{Deadline, Pause};
use crate::session::{Session, Tag};
use engine::{Body, Ended, Engine, NewSend, Owner, PendingRecv};

/// The messages of a communicator.
#[derive(Debug, Default)]
pub(crate) struct Messages {
    engine: Mutex<Engine>,
}

impl Messages {
    fn lock(&self) -> MutexGuard<'_, Engine> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Receives the messages that have arrived, before this rank leaves the group.
    pub(crate) fn receive(&self, session: &Session) -> Result<()> {
        let mut ended = Vec::new();
        let moved = self.lock().progress(session, None, &mut ended);
        ended.into_iter().for_each(Ended::tell_owner);
        if moved.is_err() {
            // After a failure of messages, nobody waits for them.
            while session.recv_short(Tag::MESSAGE)?.is_some() {}
        }
        Ok(())
    }

    /// Ends all operations, when the communicator is dropped.
    pub(crate) fn close(&self, session: &Session) {
        let mut ended = Vec::new();
        let mut engine = self.lock();
        // Sends that a receiver has taken meanwhile are not abandoned.
        drop(engine.progress(session, None, &mut ended));
        engine.end_all(session, &Error::Cancelled, &mut ended);
        drop(engine);
        ended.into_iter().for_each(Ended::tell_owner);
    }
}

impl Ended {
    /// Tells the owner of an operation that it has ended.
    fn tell_owner(self) {
        match self {
            Self::Send(message, outcome) => message.complete(outcome),
            Self::Recv(mut buffer, outcome) => {
                let received = outcome.and_then(|body| body.copy_to(buffer.view_mut()?));
                buffer.complete(received);
            }
        }
    }
}

impl Body {
    /// Copies the body to a buffer that is long enough.
    fn copy_to(self, buffer: HostViewMut<'_>) -> Result<Received> {
        let mut rest = buffer.into_bytes();
        for piece in self.pieces {
            let (part, after) = rest
                .split_at_mut_checked(piece.len())
                .ok_or_else(|| Error::Internal("a message is longer than its buffer".into()))?;
            part.copy_from_slice(&piece);
            rest = after;
        }
        Ok(self.envelope)
    }
}

impl MpiCommunicator {
    /// Checks that messages can be sent and received, and that a rank is a member.
    fn check_messages(&self, rank: Option<usize>) -> Result<()> {
        let session = self.session();
        session.process.check()?;
        let size = session.group.size();
        if let Some(rank) = rank.filter(|rank| *rank >= size) {
            return Err(Invalid::Rank { rank, size }.into());
        }
        session.check_finalized()?;
        session.messages.usable()
    }

    /// Makes progress until `enough` returns a result.
    fn progress_until<T>(&self, mut enough: impl FnMut(&mut Engine) -> Option<Result<T>>) -> Result<T> {
        let session = self.session();
        let (mut pause, mut now) = (Pause::new(), None);
        loop {
            if now.is_some() {
                session.poll_notices()?;
            }
            let mut ended = Vec::new();
            let outcome = {
                let mut engine = self.messages().lock();
                let moved = engine.progress(session, now, &mut ended);
                if let Err(error) = moved {
                    let error = session.fail(error, Scope::MESSAGES, 0);
                    engine.end_all(session, &error, &mut ended);
                    Some(enough(&mut engine).unwrap_or(Err(error)))
                } else {
                    enough(&mut engine)
                }
            };
            ended.into_iter().for_each(Ended::tell_owner);
            if let Some(outcome) = outcome {
                return outcome;
            }
            now = pause.after_poll();
        }
    }

    fn begin_send(&self, to: SendTo, message: HostView<'_>, options: &CallOptions) -> Result<u64> {
        let mut engine = self.messages().lock();
        let started = engine.start_send(self.session(), &new_send(to, &message, options))?;
        Ok(engine.add_send(started, Owner::Caller))
    }

    fn begin_recv(&self, from: RecvFrom, buffer: &HostViewMut<'_>, options: &CallOptions) -> u64 {
        let mut engine = self.messages().lock();
        let number = engine.next();
        engine.recv(PendingRecv {
            number,
            key: from,
            capacity: buffer.len(),
            dtype: buffer.dtype(),
            deadline: Deadline::after(options.timeout),
            owner: Owner::Caller,
        });
        number
    }
}

fn new_send<'a>(to: SendTo, message: &HostView<'a>, options: &CallOptions) -> NewSend<'a> {
    let (dtype, bytes) = (message.dtype(), message.bytes());
    NewSend { to: to.rank, tag: to.tag, dtype, bytes, deadline: Deadline::after(options.timeout) }
}

/// Returns the rank of a source.
const fn rank_of(source: Source) -> Option<usize> {
    match source {
        Source::Rank(rank) => Some(rank),
        Source::Any => None,
    }
}

impl PointToPoint for MpiCommunicator {
    fn send(&self, to: usize, tag: u64, message: HostView<'_>, options: &CallOptions) -> Result<()> {
        self.check_messages(Some(to))?;
        let number = self.begin_send(SendTo { rank: to, tag }, message, options)?;
        self.progress_until(|engine| engine.take_sent(number))
    }

    fn recv(
        &self,
        from: Source,
        tag: TagMatch,
        buffer: HostViewMut<'_>,
        options: &CallOptions,
    ) -> Result<Received> {
        self.check_messages(rank_of(from))?;
        let number = self.begin_recv(RecvFrom { source: from, tag }, &buffer, options);
        self.progress_until(|engine| engine.take_received(number))?.copy_to(buffer)
    }

    fn send_recv(
        &self,
        to: SendTo,
        message: HostView<'_>,
        from: RecvFrom,
        buffer: HostViewMut<'_>,
        options: &CallOptions,
    ) -> Result<Received> {
        self.check_messages(Some(to.rank))?;
        self.check_messages(rank_of(from.source))?;
        let send = self.begin_send(to, message, options)?;
        let recv = self.begin_recv(from, &buffer, options);
        let (mut sent, mut received) = (None, None);
        let (sent, received) = self.progress_until(|engine| {
            sent = sent.take().or_else(|| engine.take_sent(send));
            received = received.take().or_else(|| engine.take_received(recv));
            match (sent.take(), received.take()) {
                (Some(sent), Some(received)) => Some(Ok((sent, received))),
                (one, other) => {
                    (sent, received) = (one, other);
                    None
                }
            }
        })?;
        sent.and(received)?.copy_to(buffer)
    }

    fn probe(&self, from: Source, tag: TagMatch, options: &CallOptions) -> Result<Received> {
        self.check_messages(rank_of(from))?;
        let key = RecvFrom { source: from, tag };
        let deadline = Deadline::after(options.timeout);
        let session = self.session();
        self.progress_until(|engine| match engine.find(key) {
            Some(found) => Some(Ok(found)),
            None => {
                let left = session.ranks_that_left();
                engine::reason_to_give_up(session, &left, (key, deadline), Instant::now()).map(Err)
            }
        })
    }

    fn try_probe(&self, from: Source, tag: TagMatch) -> Result<Option<Received>> {
        self.check_messages(rank_of(from))?;
        self.progress_until(|engine| Some(Ok(engine.find(RecvFrom { source: from, tag }))))
    }

    fn start_send(
        &self,
        to: usize,
        tag: u64,
        message: &mut dyn Unsent,
        options: &CallOptions,
    ) -> StartedSend {
        let started = self.check_messages(Some(to)).and_then(|()| {
            let new = new_send(SendTo { rank: to, tag }, &message.view()?, options);
            self.messages().lock().start_send(self.session(), &new)
        });
        let posted = started.and_then(|started| {
            let owner = Owner::Background(message.post()?);
            Ok(self.messages().lock().add_send(started, owner))
        });
        match posted {
            Ok(_) => StartedSend::Pending { needs_drive: true },
            Err(error) => StartedSend::Ended(Err(error)),
        }
    }

    fn post_recv(
        &self,
        from: Source,
        tag: TagMatch,
        buffer: Box<dyn Incoming>,
        options: &CallOptions,
    ) -> bool {
        let mut buffer = buffer;
        let shape = self.check_messages(rank_of(from)).and_then(|()| {
            let view = buffer.view_mut()?;
            Ok((view.dtype(), view.len()))
        });
        let (dtype, capacity) = match shape {
            Ok(shape) => shape,
            Err(error) => {
                buffer.complete(Err(error));
                return false;
            }
        };
        let mut engine = self.messages().lock();
        let number = engine.next();
        let (key, deadline) = (RecvFrom { source: from, tag }, Deadline::after(options.timeout));
        engine.recv(PendingRecv { number, key, capacity, dtype, deadline, owner: Owner::Background(buffer) });
        true
    }

    fn drive(&self) {
        if self.session().process.check().is_ok() {
            // A failure has ended all operations with its error.
            let _ = self.progress_until(|engine| (!engine.has_background()).then_some(Ok(())));
        }
    }

    fn cancel_recvs(&self) {
        let mut ended = Vec::new();
        self.messages().lock().cancel_recvs(&mut ended);
        ended.into_iter().for_each(Ended::tell_owner);
    }
}
