//! What arrives: put, or combined, where it belongs.

use comm_core::{Reduction, Result, Transport};

use super::carry::Carry;
use super::{Job, Stop, check};
use crate::message::Header;

/// Receives the start of a short message, all of it as a rule, from where the transport holds it. Returns how many bytes
/// were used: none if not even the header is there whole, `None` if nothing is.
pub(super) fn at_once(
    transport: &mut dyn Transport,
    from: usize,
    job: &Job,
    payload: &mut [u8],
    own: Option<&[u8]>,
    reduction: Option<Reduction>,
) -> Result<Option<usize>, Stop> {
    let lent = transport.lend(from, Header::BYTES + payload.len())?;
    let Some(header) = lent.read() else {
        return Ok((!lent.is_empty()).then_some(0));
    };
    check(&Header::decode(&header), job, payload.len(), from)?;
    let rest = lent.skip(Header::BYTES);
    let used = match reduction {
        Some(reduction) => reduction.combine(payload, own, rest),
        None => rest.copy_to(payload),
    };
    transport.consume(from, Header::BYTES + used)?;
    Ok(Some(Header::BYTES + used))
}

/// Receives into `rest` until nothing more has arrived. Returns how much.
pub(super) fn fill(transport: &mut dyn Transport, from: usize, rest: &mut [u8]) -> Result<usize> {
    let mut done = 0;
    while done < rest.len() {
        match transport.try_recv(from, &mut rest[done..])? {
            0 => break,
            received => done += received,
        }
    }
    Ok(done)
}

/// Combines what arrives into `rest`, straight from where the transport holds it. Returns how much.
pub(super) fn reduce(
    transport: &mut dyn Transport,
    from: usize,
    rest: &mut [u8],
    own: Option<&[u8]>,
    reduction: Reduction,
    carry: &mut Carry,
) -> Result<usize> {
    let mut done = 0;
    while done < rest.len() {
        let rest = &mut rest[done..];
        let own = own.map(|own| &own[done..]);
        let mut used = 0;
        if carry.is_empty() {
            let lent = transport.lend(from, rest.len())?;
            if lent.is_empty() {
                break;
            }
            used = reduction.combine(rest, own, lent);
            transport.consume(from, used)?;
        }
        if used == 0 {
            used = carry.reduce(transport, from, rest, own, reduction)?;
        }
        if used == 0 {
            break;
        }
        done += used;
    }
    Ok(done)
}

/// About so many bytes: as many as whole elements have, and at least one element.
#[inline]
pub(super) fn whole_elements(bytes: usize, reduction: Reduction) -> usize {
    let size = reduction.dtype().size();
    (bytes / size).max(1) * size
}
