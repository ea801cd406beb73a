//! Meets the other ranks on behalf of a transport.

use std::sync::Arc;

use comm_core::{Error, Result, Store};

use crate::member::Member;
use crate::rendezvous::Rendezvous;
use crate::watch::Watch;

/// The local endpoint of a transport, which accepts connections of ranks that it has yet to meet.
pub trait Endpoint: Sized {
    /// The channels between ranks that have met.
    type Fabric;

    /// Returns the endpoint's addresses as a line of text.
    fn record(&self) -> String;

    /// Connects to the ranks with these records, in the order of ranks. `watch` reports ranks that
    /// fail meanwhile.
    ///
    /// # Errors
    /// [`Error::Malformed`] for an invalid record, and errors of
    /// the transport.
    fn connect(self, records: &[String], watch: Option<Arc<Watch>>) -> Result<Self::Fabric>;
}

/// Meets the other ranks through a store, and connects to them. A rank that passes an error instead
/// of an endpoint gets this error back, and the others learn of it.
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

/// Reads the records of the ranks, in their order.
///
/// # Errors
/// [`Error::Malformed`] for a text that `parse` does not accept.
pub fn parse_records<R>(records: &[String], parse: impl Fn(&str) -> Option<R>) -> Result<Vec<R>> {
    let malformed = |text| Error::malformed("the record of a rank in the store", format_args!("{text:?}"));
    records.iter().map(|text| parse(text).ok_or_else(|| malformed(text))).collect()
}
