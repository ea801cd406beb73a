//! The agreement of all ranks before data moves: either all can continue, or all learn the first
//! rank that cannot and its error.

use comm_core::{Comm, ReduceOp};

use crate::{Error, Result};

/// The size in bytes of a parameter's name and of an error text that ranks exchange; longer ones
/// are truncated.
const TEXT_MAX: usize = 4096;

/// Returns this rank's result if all ranks can continue. If one cannot, none does: that rank
/// returns its own error, and the others return it as [`Error::Refused`]. This is a collective;
/// without errors it costs one all-reduce of a few bytes.
///
/// Each of `marks` becomes the largest value of any rank. All ranks pass the same number of them.
pub(crate) fn agree_to_continue<T>(comm: &Comm, own: Result<T>, marks: &mut Vec<u8>) -> Result<T> {
    marks.push(u8::from(own.is_err()));
    comm.all_reduce(&mut marks[..], ReduceOp::Max)?;
    if marks.pop() == Some(0) {
        return own;
    }
    let own = own.err();
    let first = first_refusal(comm, own.as_ref())?;
    Err(own.unwrap_or(first))
}

/// Returns the error of the first rank that has one, as other ranks return it.
fn first_refusal(comm: &Comm, own: Option<&Error>) -> Result<Error> {
    let candidate = if own.is_some() { comm.rank() } else { usize::MAX };
    let rank = comm.all_reduce_scalar(candidate, ReduceOp::Min)?;
    let name = broadcast_text(comm, rank, own.and_then(Error::parameter).unwrap_or_default())?;
    let why = broadcast_text(comm, rank, &own.map(ToString::to_string).unwrap_or_default())?;
    Ok(Error::Refused { rank, name, why })
}

/// Returns the text of rank `root`.
fn broadcast_text(comm: &Comm, root: usize, text: &str) -> Result<String> {
    let mut len = [text.floor_char_boundary(TEXT_MAX)];
    comm.broadcast(root, &mut len)?;
    let mut bytes = text.as_bytes().to_vec();
    bytes.resize(len[0].min(TEXT_MAX), 0);
    comm.broadcast(root, &mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
