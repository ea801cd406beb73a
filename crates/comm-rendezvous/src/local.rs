//! The local rank during a rendezvous, and the errors that it returns.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use comm_core::{During, Error, Loss, Refusal};

use crate::member::Member;
use crate::outcome::{Failure, Report};
use crate::settings::escape;

/// The name of the setting that has its own variant of [`Refusal`].
pub(crate) const WORLD_SIZE: &str = "world_size";

/// The local rank, with its deadline.
#[derive(Debug)]
pub(crate) struct LocalRank {
    pub(crate) member: Member,
    pub(crate) began: Instant,
    pub(crate) deadline: Instant,
    /// A random number that identifies this process.
    pub(crate) process: u64,
}

impl LocalRank {
    pub(crate) fn left(&self) -> Duration {
        self.deadline.saturating_duration_since((self.member.clock)())
    }

    /// Converts a failure that holds for all ranks to this rank's error.
    pub(crate) fn error(&self, failure: Failure) -> Error {
        let during = During::Rendezvous;
        match failure {
            Failure::Superseded { rank } | Failure::Lost { rank, report: None } => {
                Error::PeerLost { peer: rank, during, loss: Loss::Closed }
            }
            Failure::Lost { rank, report: Some(Report { by, detail }) } => {
                Error::PeerLost { peer: rank, during, loss: Loss::Reported { by, detail } }
            }
            Failure::Missing { ranks } => self.timeout(ranks),
            Failure::Setting { name, sides } => self.mismatch(&name, sides),
            Failure::Aborted { rank, reason } => Error::Aborted { by: rank, reason },
        }
    }

    pub(crate) fn timeout(&self, waiting_for: Vec<usize>) -> Error {
        let after = (self.member.clock)().saturating_duration_since(self.began);
        Error::Timeout { waiting_for, after, during: During::Rendezvous }
    }

    /// Returns the error for a setting in which two ranks differ. This rank may be one of them.
    fn mismatch(&self, name: &str, sides: [(usize, String); 2]) -> Error {
        let [first, second] = sides;
        let own = self.member.settings.value_of(name).to_owned();
        let (rank, theirs) = if first.1 == own { second } else { first };
        let with = format!("rank {rank}");
        let refusal = match (name, own.parse(), theirs.parse()) {
            (WORLD_SIZE, Ok(ours), Ok(theirs)) => Refusal::WorldSize { ours, theirs },
            _ => Refusal::Setting { name: escape(name), ours: own, theirs, rank },
        };
        Error::Handshake { with, refusal }
    }

    /// Converts an error of the store to one that names the rank serving it, which was lost or has
    /// not arrived.
    pub(crate) fn store_error(&self, error: Error) -> Error {
        let Some(rank) = self.member.store_rank.filter(|rank| *rank != self.member.rank) else {
            return error;
        };
        match error {
            Error::Io { source, .. } if is_broken(source.kind()) => {
                Error::PeerLost { peer: rank, during: During::Rendezvous, loss: Loss::Store(source) }
            }
            Error::Timeout { during: During::Store { .. }, .. } => self.timeout(vec![rank]),
            other => other,
        }
    }
}

/// Returns whether the error means that a connection was lost or could not be reopened.
const fn is_broken(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::ConnectionAborted
            | ErrorKind::ConnectionReset
            | ErrorKind::ConnectionRefused
            | ErrorKind::BrokenPipe
            | ErrorKind::NotConnected
            | ErrorKind::UnexpectedEof
            // The server's host does not answer. Deadlines are another error.
            | ErrorKind::TimedOut
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
    )
}
