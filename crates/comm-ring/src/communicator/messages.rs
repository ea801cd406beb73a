//! Messages between two ranks, which are independent of collectives.

use std::sync::{Arc, Mutex, Weak};

use comm_core::{
    Armed, CallOptions, Error, HostView, HostViewMut, Incoming, Loss, Outgoing, PointToPoint, Received,
    RecvFrom, Result, SendTo, Source, TagMatch, Transport,
};

use super::RingCommunicator;
use super::engine::Engine;
use super::session::Session;

impl<T: Transport + 'static> PointToPoint for RingCommunicator<T> {
    fn send(&self, to: usize, tag: u64, message: HostView<'_>, options: &CallOptions) -> Result<()> {
        self.process.check()?;
        self.messenger.send(to, tag, message, options).map_err(|error| self.cause_of_loss(error))
    }

    fn recv(
        &self,
        from: Source,
        tag: TagMatch,
        buffer: HostViewMut<'_>,
        options: &CallOptions,
    ) -> Result<Received> {
        self.process.check()?;
        self.messenger.recv(from, tag, buffer, options).map_err(|error| self.cause_of_loss(error))
    }

    fn send_recv(
        &self,
        to: SendTo,
        message: HostView<'_>,
        from: RecvFrom,
        buffer: HostViewMut<'_>,
        options: &CallOptions,
    ) -> Result<Received> {
        self.process.check()?;
        let moved = self.messenger.send_recv(to, message, from, buffer, options);
        moved.map_err(|error| self.cause_of_loss(error))
    }

    fn probe(&self, from: Source, tag: TagMatch, options: &CallOptions) -> Result<Received> {
        self.process.check()?;
        self.messenger.probe(from, tag, options).map_err(|error| self.cause_of_loss(error))
    }

    fn try_probe(&self, from: Source, tag: TagMatch) -> Result<Option<Received>> {
        self.process.check()?;
        self.messenger.try_probe(from, tag)
    }

    fn post_send(&self, to: usize, tag: u64, message: Box<dyn Outgoing>, options: &CallOptions) {
        if let Err(error) = self.process.check() {
            return message.complete(Err(error));
        }
        let engine = Arc::downgrade(&self.engine);
        self.messenger.post_send(to, tag, Box::new(Posted { buffer: message, engine }), options);
    }

    fn post_recv(&self, from: Source, tag: TagMatch, buffer: Box<dyn Incoming>, options: &CallOptions) {
        if let Err(error) = self.process.check() {
            return buffer.complete(Err(error));
        }
        let engine = Arc::downgrade(&self.engine);
        self.messenger.post_recv(from, tag, Box::new(Posted { buffer, engine }), options);
    }

    fn drive(&self) {
        if self.process.is_current() {
            self.messenger.drive();
        }
    }

    fn cancel_recvs(&self) {
        if self.process.is_current() {
            self.messenger.cancel_recvs();
        }
    }
}

impl<T: Transport + 'static> RingCommunicator<T> {
    /// Returns the cause for which a peer has ended its messages, if it has aborted. It reports the
    /// cause with its messages too, but not after a frame that is sent in part.
    ///
    /// While another thread makes a call on this communicator, the error stays as it is.
    fn cause_of_loss(&self, error: Error) -> Error {
        cause_of_loss(&self.engine, error)
    }
}

fn cause_of_loss<T: Transport>(engine: &Mutex<Engine<T>>, error: Error) -> Error {
    let Error::PeerLost { peer, ref during, loss: Loss::Closed | Loss::Io(_) } = error else {
        return error;
    };
    let cause = engine.try_lock().ok().and_then(|mut engine| engine.session_mut().abort_of(peer));
    match cause {
        Some(Error::PeerLost { peer, loss, .. }) => Error::PeerLost { peer, during: during.clone(), loss },
        Some(cause) => cause,
        None => error,
    }
}

/// A buffer that was passed with a message in the background, whose errors name the cause too.
struct Posted<T, B: ?Sized> {
    buffer: Box<B>,
    engine: Weak<Mutex<Engine<T>>>,
}

impl<T: Transport, B: ?Sized> Posted<T, B> {
    /// Returns the buffer, and the outcome with the cause of an error.
    fn into_parts<R>(self, outcome: Result<R>) -> (Box<B>, Result<R>) {
        let Self { buffer, engine } = self;
        let with_cause = |error| match engine.upgrade() {
            Some(engine) => cause_of_loss(&engine, error),
            None => error,
        };
        (buffer, outcome.map_err(with_cause))
    }
}

impl<T: Transport> Outgoing for Posted<T, dyn Outgoing> {
    fn view(&self) -> Result<HostView<'_>> {
        self.buffer.view()
    }

    fn complete(self: Box<Self>, outcome: Result<()>) {
        let (buffer, outcome) = self.into_parts(outcome);
        buffer.complete(outcome);
    }
}

impl<T: Transport> Incoming for Posted<T, dyn Incoming> {
    fn view_mut(&mut self) -> Result<HostViewMut<'_>> {
        self.buffer.view_mut()
    }

    fn complete(self: Box<Self>, outcome: Result<Received>) {
        let (buffer, outcome) = self.into_parts(outcome);
        buffer.complete(outcome);
    }
}

impl<T: Transport> Session<T> {
    /// Returns the error for a peer whose messages have ended, if it has aborted, or does so within
    /// a short time. Leaves the events for the next call.
    fn abort_of(&mut self, peer: usize) -> Option<Error> {
        let deadline = self.data.now() + self.config.diagnosis;
        loop {
            self.poll_events();
            if let Some(cause) = self.control.abort_cause(peer) {
                return Some(self.reported(peer, cause.clone()));
            }
            let left = deadline.saturating_duration_since(self.data.now());
            if self.control.has_ended(peer) || left.is_zero() {
                return None;
            }
            if self.control.arm().ok()? == Armed::Sleep {
                self.control.sleep(None, left).ok()?;
            }
        }
    }
}
