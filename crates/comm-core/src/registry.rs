//! The living communicators of a process, which another thread observes.

use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::{FlightRecord, Metrics};

/// A communicator whose calls any thread may observe.
pub trait Observe: Send + Sync {
    /// Returns the last calls.
    fn flight_record(&self) -> FlightRecord;

    /// Returns the counters of all calls.
    fn metrics(&self) -> Metrics;
}

/// A list of communicators that does not keep them alive. Clones share the list.
#[derive(Clone, Default)]
pub struct ObservedComms(Arc<Mutex<Vec<Weak<dyn Observe>>>>);

impl ObservedComms {
    /// Adds a communicator.
    pub fn add(&self, comm: &Arc<dyn Observe>) {
        let mut list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        list.retain(|other| other.strong_count() > 0);
        list.push(Arc::downgrade(comm));
    }

    /// Returns the communicators that are alive, in the order in which they were added.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<dyn Observe>> {
        let list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        list.iter().filter_map(Weak::upgrade).collect()
    }
}

impl std::fmt::Debug for ObservedComms {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ObservedComms").field("alive", &self.all().len()).finish()
    }
}

/// A list in which communicators register themselves, and the owner of the thread that observes
/// them. The owner is dropped with the last clone, hence after the last communicator.
#[derive(Debug, Clone)]
pub struct CommRegistry {
    comms: ObservedComms,
    observer: Arc<dyn Any + Send + Sync>,
}

impl CommRegistry {
    /// Creates a registry with a list and the owner of its observer.
    pub fn new(comms: ObservedComms, observer: impl Any + Send + Sync) -> Self {
        Self { comms, observer: Arc::new(observer) }
    }

    /// Adds a communicator to the list.
    pub fn register(&self, comm: &Arc<dyn Observe>) {
        self.comms.add(comm);
    }
}

/// Two registries are equal if they are clones.
impl PartialEq for CommRegistry {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.observer, &other.observer)
    }
}
