//! Messages between two ranks, which are independent of collectives.

use std::io::ErrorKind;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use comm_core::{
    Armed, CallOptions, Error, HostView, HostViewMut, Incoming, Loss, PointToPoint, Progress, Received,
    RecvFrom, Result, SendTo, Source, StartedSend, TagMatch, Unsent,
};

use super::RingCommunicator;
use super::engine::Engine;
use super::patience::Patience;
use super::session::Session;

/// The time in which a transport finds that a rank does not accept connections any more.
const CONTACT_MAX: Duration = Duration::from_secs(1);

impl PointToPoint for RingCommunicator {
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

    fn start_send(
        &self,
        to: usize,
        tag: u64,
        message: &mut dyn Unsent,
        options: &CallOptions,
    ) -> StartedSend {
        match self.process.check() {
            Ok(()) => self.messenger.start_send(to, tag, message, options),
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
        if let Err(error) = self.process.check() {
            buffer.complete(Err(error));
            return false;
        }
        self.messenger.post_recv(from, tag, buffer, options)
    }

    fn progress(&self) -> Option<Weak<dyn Progress>> {
        let messenger = Arc::downgrade(&self.messenger);
        self.scheduler.is_none().then_some(messenger as Weak<dyn Progress>)
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

impl RingCommunicator {
    /// Returns the cause for which a peer has ended its messages, if the control channel shows it.
    ///
    /// While another thread makes a call on this communicator, the error stays as it is.
    fn cause_of_loss(&self, error: Error) -> Error {
        cause_of_loss(&self.engine, error)
    }
}

/// Returns the cause of an error that names a lost peer.
///
/// A stream of messages also ends when its peer has failed or left, or ended all messages after one
/// that timed out. The peer reports that with its messages too, but not after a frame that is sent
/// in part. The others then see only the end of the stream, and may report it in turn. So the
/// control channel decides whether the peer has aborted, and whether it is alive.
pub(super) fn cause_of_loss(engine: &Mutex<Engine>, error: Error) -> Error {
    let Error::PeerLost { peer, ref during, ref loss } = error else { return error };
    let reporter = match loss {
        Loss::Closed | Loss::Io(_) | Loss::Finished => None,
        Loss::Reported { by, .. } => Some(*by),
        _ => return error,
    };
    let Ok(mut engine) = engine.try_lock() else { return error };
    match engine.session_mut().end_of(peer, reporter) {
        PeerEnd::Aborted(Error::PeerLost { peer, loss, .. }) => {
            Error::PeerLost { peer, during: during.clone(), loss }
        }
        PeerEnd::Aborted(cause) => cause,
        PeerEnd::Lost => error,
        PeerEnd::Left { after } if matches!(loss, Loss::Closed) => left_messages(peer, after),
        PeerEnd::Left { .. } | PeerEnd::Alive => match loss {
            Loss::Closed => messages_ended(peer, loss),
            Loss::Io(io) if io.kind() == ErrorKind::ConnectionAborted => messages_ended(peer, loss),
            Loss::Reported { by, detail } => {
                Error::Aborted { by: *by, reason: format!("it lost messages of rank {peer}: {detail}") }
            }
            _ => error,
        },
    }
}

/// The error for a peer that has ended its messages and takes part in collectives.
fn messages_ended(by: usize, loss: &Loss) -> Error {
    Error::Aborted { by, reason: format!("it has ended its messages in the middle of one: {loss}") }
}

/// The error for a peer that has ended its messages, and then left in order. In a large group, it
/// tells that only the ranks with which it had exchanged messages.
fn left_messages(by: usize, after: u64) -> Error {
    Error::Aborted { by, reason: format!("it has ended its messages, and {}", Loss::Left { after }) }
}

/// The state of a peer whose messages have ended, according to the control channel.
enum PeerEnd {
    /// It aborted with this error, or the rank that reported its loss did.
    Aborted(Error),
    /// It has left in order after this call.
    Left { after: u64 },
    /// It was lost.
    Lost,
    /// Its control stream is open.
    Alive,
}

impl Session {
    /// Waits a short time for the reason why the messages of a peer have ended, which `reporter`
    /// may have reported. Leaves the events for the next call.
    fn end_of(&mut self, peer: usize, reporter: Option<usize>) -> PeerEnd {
        let contact_within = if self.control.is_open(peer) { Duration::ZERO } else { CONTACT_MAX };
        let mut patience = Patience::new(self.config.diagnosis + contact_within, self.data.now());
        loop {
            self.control.contact(peer);
            self.poll_events();
            for rank in [Some(peer), reporter].into_iter().flatten() {
                if let Some(cause) = self.control.abort_cause(rank) {
                    return PeerEnd::Aborted(self.reported(rank, cause.clone()));
                }
            }
            if let Some(after) = self.control.left_after(peer) {
                return PeerEnd::Left { after };
            }
            // Others may still pass on the goodbye of a peer that this rank does not watch.
            let is_lost = self.control.is_disconnected(peer);
            let is_over = patience.left(self.data.now()).is_zero();
            if is_lost && (is_over || self.control.is_complete() || self.group.watches(peer)) {
                return PeerEnd::Lost;
            }
            if is_over {
                return PeerEnd::Alive;
            }
            let slept = self.control.arm().and_then(|armed| match armed {
                Armed::Ready => Ok(()),
                Armed::Sleep => self.control.sleep(None, patience.turn()),
            });
            if slept.is_err() {
                // Nothing more can be learnt.
                return PeerEnd::Lost;
            }
        }
    }
}
