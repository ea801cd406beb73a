//! The rendezvous of a transport: exchanges addresses, then connects.

use std::sync::Arc;

use comm_core::{Error, Result, Store};

use crate::member::Member;
use crate::rendezvous::Rendezvous;
use crate::watch::Watch;

/// The local endpoint of a transport, which accepts connections from the other ranks before it
/// knows their addresses.
pub trait Endpoint: Sized {
    /// The channels between the ranks after the rendezvous.
    type Fabric;

    /// Returns the endpoint's addresses as a line of text.
    fn record(&self) -> String;

    /// Connects to the ranks with these records, in rank order. `watch` reports ranks that fail in
    /// the meantime.
    ///
    /// # Errors
    /// [`Error::Malformed`] for an invalid record, and errors of
    /// the transport.
    fn connect(self, records: &[String], watch: Option<Arc<Watch>>) -> Result<Self::Fabric>;
}

/// Finds the other ranks through a store, and connects to them. A rank that passes an error instead
/// of an endpoint gets that error back, and it is reported to the others.
///
/// # Errors
/// As [`Rendezvous::join`] and [`Endpoint::connect`].
pub fn connect<E: Endpoint>(
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

/// Parses the records of the ranks, in rank order.
///
/// # Errors
/// [`Error::Malformed`] for a record that `parse` rejects.
pub fn parse_records<R>(records: &[String], parse: impl Fn(&str) -> Option<R>) -> Result<Vec<R>> {
    let malformed = |text| Error::malformed("the record of a rank in the store", format_args!("{text:?}"));
    records.iter().map(|text| parse(text).ok_or_else(|| malformed(text))).collect()
}
