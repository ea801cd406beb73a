//! What arrives: put, or combined, where it belongs.

use comm_core::{Lent, Reduction, Result, Transport};

use super::carry::Carry;
use super::{Job, Stop, check};
use crate::message::Header;

/// How much is copied at once to where it is then reduced into: little, so that it is still in the nearest cache.
const PIECE_BYTES: usize = 8 << 10;

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
        Some(reduction) => combine(payload, own, rest, reduction),
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
            used = combine(rest, own, lent, reduction);
            transport.consume(from, used)?;
        }
        if used == 0 {
            let (element, _) = rest.split_at_mut(reduction.dtype().size());
            if let Some(own) = own {
                element.copy_from_slice(&own[..element.len()]);
            }
            used = carry.reduce(transport, from, element, reduction)?;
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

/// Combines what a transport lends with what is there already, or with what is at another place and copied there piece by
/// piece. Returns how much of it was used.
#[inline]
fn combine(into: &mut [u8], own: Option<&[u8]>, lent: Lent<'_>, reduction: Reduction) -> usize {
    let Some(own) = own else { return reduction.combine(into, lent) };
    let (mut used, len) = (0, into.len().min(lent.len()));
    let piece_bytes = whole_elements(PIECE_BYTES, reduction);
    while used < len {
        let piece = used..len.min(used + piece_bytes);
        let into = &mut into[piece.clone()];
        into.copy_from_slice(&own[piece]);
        match reduction.combine(into, lent.skip(used)) {
            0 => break,
            combined => used += combined,
        }
    }
    used
}

#[cfg(test)]
mod tests {
    use comm_core::{DType, ReduceOp};

    use super::*;

    #[test]
    fn what_lies_elsewhere_is_combined_in_pieces_as_far_as_it_arrived() {
        let sum = Reduction::new(ReduceOp::Sum, DType::U16).unwrap();
        let numbers =
            |factor: u16| (0..3 * PIECE_BYTES as u16 / 2).flat_map(move |n| (n * factor).to_ne_bytes());
        let (own, other, both): (Vec<u8>, Vec<u8>, Vec<u8>) =
            (numbers(1).collect(), numbers(2).collect(), numbers(3).collect());
        for arrived in [0, 1, 2, 5, PIECE_BYTES, PIECE_BYTES + 3, 2 * PIECE_BYTES - 1, own.len()] {
            let mut into = vec![0xff; own.len()];
            let used = combine(&mut into, Some(&own), Lent::from_slice(&other[..arrived]), sum);
            assert_eq!(used, arrived / 2 * 2);
            assert!(into[..used] == both[..used], "{arrived}");
        }
    }
}
