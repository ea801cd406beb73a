//! Receiving a payload into memory, with or without a reduction.

use comm_core::{RecvBuf, Reduction, Result, Transport};

use super::partial_element::PartialElement;
use super::{Job, Stop, check};
use crate::message::Header;

/// The part of a message that has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arrived {
    Nothing,
    Part,
    All,
}

/// Receives a short message directly from the memory of the transport, if all of it has arrived,
/// and otherwise leaves it there.
pub(super) fn recv_eager(
    transport: &mut dyn Transport,
    from: usize,
    job: &Job<'_>,
    payload: &mut [u8],
    addend: Option<&[u8]>,
    reduction: Option<&Reduction>,
    sender_has_window: &mut Option<bool>,
) -> Result<Arrived, Stop> {
    let whole = Header::BYTES + payload.len();
    let filled = transport.fill_buf(from, whole)?;
    if filled.len() < whole {
        return Ok(if filled.is_empty() { Arrived::Nothing } else { Arrived::Part });
    }
    let Some(header) = filled.read() else { return Ok(Arrived::Part) };
    check(&Header::decode(&header), job, payload.len(), from, sender_has_window)?;
    let rest = filled.skip(Header::BYTES);
    match reduction {
        Some(reduction) => reduction.combine(payload, addend, rest),
        None => rest.copy_to(payload),
    };
    transport.consume(from, whole)?;
    Ok(Arrived::All)
}

/// Receives into `rest` until nothing more has arrived. Returns the number of bytes received.
pub(super) fn recv_available(transport: &mut dyn Transport, from: usize, rest: &mut [u8]) -> Result<usize> {
    let mut done = 0;
    while done < rest.len() {
        match transport.try_recv(from, &mut rest[done..])? {
            0 => break,
            received => done += received,
        }
    }
    Ok(done)
}

/// Receives into `rest` until nothing more has arrived, with stores that bypass the caches if the
/// bytes can be copied from where they are. Returns the number of bytes received.
pub(crate) fn recv_bypassing(transport: &mut dyn Transport, from: usize, rest: &mut [u8]) -> Result<usize> {
    let mut done = 0;
    while done < rest.len() && !transport.fill_buf_copies(from) {
        let filled = transport.fill_buf(from, rest.len() - done)?;
        if filled.is_empty() {
            return Ok(done);
        }
        let copied = filled.copy_to_non_temporal(&mut rest[done..]);
        transport.consume(from, copied)?;
        done += copied;
    }
    Ok(done + recv_available(transport, from, &mut rest[done..])?)
}

/// Combines the bytes that have arrived with the addend into `rest`, directly from the memory of
/// the transport. Returns the number of bytes written.
pub(super) fn recv_reduce_available(
    transport: &mut dyn Transport,
    from: usize,
    rest: &mut [u8],
    addend: Option<&[u8]>,
    reduction: &Reduction,
    partial: &mut PartialElement,
) -> Result<usize> {
    let mut done = 0;
    while done < rest.len() {
        let rest = &mut rest[done..];
        let addend = addend.map(|addend| &addend[done..]);
        let mut used = 0;
        if partial.is_empty() {
            let filled = transport.fill_buf(from, rest.len())?;
            if filled.is_empty() {
                break;
            }
            used = reduction.combine(rest, addend, filled);
            transport.consume(from, used)?;
        }
        if used == 0 {
            used = partial.recv_reduce(transport, from, rest, addend, reduction)?;
        }
        if used == 0 {
            break;
        }
        done += used;
    }
    Ok(done)
}

/// Receives into `dst` from the offset `start` up to `end`, and combines each element there with
/// the addend once it is complete. Returns the number of bytes received.
///
/// Saves a copy if the transport would have to copy the bytes to return them in place.
pub(super) fn recv_then_reduce(
    transport: &mut dyn Transport,
    from: usize,
    dst: &mut [u8],
    (start, end): (usize, usize),
    addend: &[u8],
    reduction: &Reduction,
) -> Result<usize> {
    let received = recv_available(transport, from, &mut dst[start..end])?;
    let size = reduction.dtype().size();
    let complete = start / size * size..(start + received) / size * size;
    reduction.combine(&mut dst[complete.clone()], None, RecvBuf::from_slice(&addend[complete]));
    Ok(received)
}

/// Rounds down to whole elements, but to at least one element.
#[inline]
pub(super) fn whole_elements(bytes: usize, reduction: &Reduction) -> usize {
    let size = reduction.dtype().size();
    (bytes / size).max(1) * size
}
