//! Hears of a failure while a rank waits for something else than the store.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use comm_core::{Error, Presence, Result};

use crate::meeting::parse;
use crate::outcome::Outcome;
use crate::own::Own;

/// Tells a rank that opens connections that another rank has failed meanwhile.
///
/// It ends with the [`Rendezvous`](crate::Rendezvous) that it belongs to, and then tells nothing.
#[derive(Debug)]
pub struct Watch {
    own: Arc<Own>,
    presence: RwLock<Option<Box<dyn Presence>>>,
    /// There is nothing more to hear.
    has_ended: AtomicBool,
}

impl Watch {
    pub(crate) fn new(own: Arc<Own>, presence: Box<dyn Presence>) -> Self {
        Self { own, presence: RwLock::new(Some(presence)), has_ended: AtomicBool::new(false) }
    }

    /// Keeps the watch open until the returned value is dropped.
    #[must_use]
    pub fn hold(&self) -> WatchGuard<'_> {
        let presence = self.presence.read().unwrap_or_else(PoisonError::into_inner);
        WatchGuard { watch: self, presence }
    }

    /// Closes the connection, once nobody holds it.
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
    /// Becomes readable when [`WatchGuard::check`] may fail, if it can.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        if self.watch.has_ended.load(Ordering::Relaxed) {
            return None;
        }
        self.presence.as_ref().map(|presence| presence.descriptor())
    }

    /// Fails if the rendezvous has failed.
    ///
    /// # Errors
    /// As [`Rendezvous::join`](crate::Rendezvous::join).
    pub fn check(&self) -> Result<()> {
        let Some(presence) = self.presence.as_ref().filter(|_| self.descriptor().is_some()) else {
            return Ok(());
        };
        let told = match presence.poll() {
            Ok(None) => return Ok(()),
            Ok(Some(text)) => parse("opened", &text),
            Err(error) => Err(self.watch.own.store_error(error)),
        };
        self.watch.has_ended.store(true, Ordering::Relaxed);
        match told {
            Ok(Outcome::Failed(failure)) => Err(self.watch.own.error(failure)),
            Err(error @ Error::PeerLost { .. }) => Err(error),
            // A store that no rank serves is not needed while connections are opened.
            Ok(Outcome::Complete(_)) | Err(_) => Ok(()),
        }
    }
}
