//! Small agreements of all ranks: on a condition, on a seed, and on equal replicas.

use comm_core::{AsView, Comm, ReduceOp, wire};

use crate::{Error, Result};

/// Returns on every rank whether `condition` holds on any rank, for example whether one of them has
/// a gradient that is not finite, or no batch left. This is a collective: one all-reduce of a byte.
///
/// # Errors
/// [`Error::Comm`].
pub fn any_rank(comm: &Comm, condition: bool) -> Result<bool> {
    Ok(comm.all_reduce_scalar(u8::from(condition), ReduceOp::Max)? != 0)
}

/// Returns a seed that is different on every rank, and the same in every run with the same `seed`
/// on rank 0. The seeds of the other ranks are ignored. This is a collective: one broadcast.
///
/// The ranks use it for what should differ between them, such as dropout, and the seed of rank 0
/// for what should not.
///
/// # Errors
/// [`Error::Comm`].
pub fn rank_seed(comm: &Comm, seed: u64) -> Result<u64> {
    let mut agreed = [seed];
    comm.broadcast(0, &mut agreed)?;
    Ok(wire::digest([agreed[0], comm.rank() as u64]))
}

/// Returns an error if the ranks have different bits in a buffer. This is a collective: one
/// all-gather of 8 bytes per rank and buffer. Every rank passes the same number of buffers in the
/// same order, with names for errors.
///
/// # Errors
/// [`Error::Diverged`], the same on every rank, with the first buffer that differs;
/// [`Error::Comm`].
pub fn check_replicas<'b, B: AsView + ?Sized + 'b>(
    comm: &Comm,
    buffers: impl IntoIterator<Item = (&'b str, &'b B)>,
) -> Result<()> {
    let mut names = Vec::new();
    let mut digests = Vec::new();
    for (name, buffer) in buffers {
        names.push(name);
        digests.push(digest(buffer.as_view()?.bytes()));
    }
    let mut all = vec![0; digests.len() * comm.size()];
    comm.all_gather(&digests, &mut all)?;
    for (buffer, name) in names.iter().enumerate() {
        let of_ranks: Vec<u64> = all.iter().copied().skip(buffer).step_by(names.len()).collect();
        if let Some((_, ranks)) = minority(&of_ranks) {
            return Err(Error::Diverged { name: (*name).to_owned(), ranks });
        }
    }
    Ok(())
}

/// Returns the lowest rank with the most common word, and the ranks with other words, or `None` if
/// all words are equal.
pub(crate) fn minority(of_ranks: &[u64]) -> Option<(usize, Vec<usize>)> {
    let votes = |rank: &usize| of_ranks.iter().filter(|word| **word == of_ranks[*rank]).count();
    let reference = (0..of_ranks.len()).rev().max_by_key(votes)?;
    let differs = |rank: &usize| of_ranks[*rank] != of_ranks[reference];
    let ranks: Vec<usize> = (0..of_ranks.len()).filter(differs).collect();
    (!ranks.is_empty()).then_some((reference, ranks))
}

/// Returns a digest of bytes: different for different bytes, except with a probability of 2^-64.
pub(crate) fn digest(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let words = words.iter().chain([&last]).map(|word| wire::read_words::<1, 8>(word)[0]);
    wire::digest(words.chain([bytes.len() as u64]))
}
