//! Reports failures to a rank that is waiting for something other than the store.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use comm_core::{Error, Presence, Result};

use crate::attempt::parse;
use crate::local::LocalRank;
use crate::outcome::Outcome;

/// Reports failures of other ranks to a rank that is opening connections.
///
/// It reports nothing after its [`Rendezvous`](crate::Rendezvous) has ended.
#[derive(Debug)]
pub struct Watch {
    local: Arc<LocalRank>,
    presence: RwLock<Option<Box<dyn Presence>>>,
    /// Whether nothing more will be reported.
    has_ended: AtomicBool,
}

impl Watch {
    pub(crate) fn new(local: Arc<LocalRank>, presence: Box<dyn Presence>) -> Self {
        Self { local, presence: RwLock::new(Some(presence)), has_ended: AtomicBool::new(false) }
    }

    /// Keeps the watch open until the returned value is dropped.
    #[must_use]
    pub fn hold(&self) -> WatchGuard<'_> {
        let presence = self.presence.read().unwrap_or_else(PoisonError::into_inner);
        WatchGuard { watch: self, presence }
    }

    /// Returns whether the connection to the store is broken, so that the last will is gone.
    pub(crate) fn is_broken(&self) -> bool {
        let presence = self.presence.read().unwrap_or_else(PoisonError::into_inner);
        presence.as_ref().is_some_and(|presence| matches!(presence.poll(), Err(Error::Io { .. })))
    }

    /// Closes the connection to the store once no [`WatchGuard`] is left.
    pub(crate) fn close(&self) {
        *self.presence.write().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// A watch that is in use.
#[derive(Debug)]
pub struct WatchGuard<'a> {
    watch: &'a Watch,
    presence: RwLockReadGuard<'a, Option<Box<dyn Presence>>>,
}

impl WatchGuard<'_> {
    /// Returns a descriptor that becomes readable when [`WatchGuard::check`] may fail; `None` if
    /// nothing more will be reported.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        if self.watch.has_ended.load(Ordering::Relaxed) {
            return None;
        }
        self.presence.as_ref().map(|presence| presence.descriptor())
    }

    /// Returns an error if the rendezvous has failed.
    ///
    /// # Errors
    /// As [`Rendezvous::join`](crate::Rendezvous::join).
    pub fn check(&self) -> Result<()> {
        let Some(presence) = self.presence.as_ref().filter(|_| self.descriptor().is_some()) else {
            return Ok(());
        };
        let reported = match presence.poll() {
            Ok(None) => return Ok(()),
            Ok(Some(text)) => parse("opened", &text),
            Err(error) => Err(self.watch.local.store_error(error)),
        };
        self.watch.has_ended.store(true, Ordering::Relaxed);
        match reported {
            Ok(Outcome::Failed(failure)) => Err(self.watch.local.error(failure)),
            Err(error @ Error::PeerLost { .. }) => Err(error),
            // Opening connections does not need the store, so its failure matters only if a rank
            // served it.
            Ok(Outcome::Complete(_)) | Err(_) => Ok(()),
        }
    }
}
