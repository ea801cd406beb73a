//! Meets the other ranks on behalf of a transport.

use std::sync::Arc;

use comm_core::{Result, Store};

use crate::member::Member;
use crate::rendezvous::Rendezvous;
use crate::watch::Watch;

/// A rank of a transport that the other ranks can reach, before it has met them.
pub trait Endpoint: Sized {
    /// The channels between ranks that have met.
    type Fabric;

    /// Returns what the other ranks must know of this one, as a line of text.
    fn record(&self) -> String;

    /// Returns the channels between ranks that have these records, in the order of ranks. While channels are opened, `watch` tells
    /// of ranks that have failed.
    ///
    /// # Errors
    /// [`Error::Malformed`](comm_core::Error::Malformed) for text that is no record, and as the transport says.
    fn connect(self, records: &[String], watch: Option<Arc<Watch>>) -> Result<Self::Fabric>;
}

/// Meets the other ranks through a store, and connects with them. A rank that has an error in place of an endpoint returns
/// it, and the others learn of it.
///
/// # Errors
/// As [`Rendezvous::join`] and [`Endpoint::connect`].
pub fn meet<E: Endpoint>(
    store: &dyn Store,
    member: Member,
    endpoint: Result<E>,
) -> Result<(Rendezvous<'_>, E::Fabric)> {
    let record = endpoint.as_ref().map(E::record).map_err(Clone::clone);
    let (rendezvous, records) = Rendezvous::join(store, member, record)?;
    match endpoint.and_then(|endpoint| endpoint.connect(&records, rendezvous.watch())) {
        Ok(fabric) => Ok((rendezvous, fabric)),
        Err(error) => Err(rendezvous.fail(error)),
    }
}
