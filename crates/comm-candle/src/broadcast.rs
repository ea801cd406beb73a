//! The broadcast of rank 0's variables in host memory, packed into buckets so that small ones do
//! not cost a call each.

use std::ops::Range;

use comm_core::Comm;

use crate::Result;
use crate::memory::write;
use crate::variables::Variable;

/// Broadcasts the values of rank 0. Packing copies at most the bytes of one bucket; larger
/// variables are sent in place. Bytes are not computed with, so types share buckets.
pub(crate) fn in_buckets(comm: &Comm, variables: &[Variable], bucket_bytes: usize) -> Result<()> {
    let bytes: Vec<usize> = variables.iter().map(bytes).collect();
    let mut bucket = Vec::new();
    for members in buckets(&bytes, bucket_bytes) {
        match &variables[members] {
            [alone] => write(&alone.var, |mut value| comm.broadcast(0, &mut value))??,
            several => packed(comm, several, &mut bucket)?,
        }
    }
    Ok(())
}

fn bytes(variable: &Variable) -> usize {
    variable.var.elem_count() * variable.dtype.size()
}

/// Returns the ranges of variables that share a bucket, in order: as many as fit, and at least one.
fn buckets(bytes: &[usize], bucket_bytes: usize) -> Vec<Range<usize>> {
    let mut buckets: Vec<Range<usize>> = Vec::new();
    let mut filled = 0_usize;
    for (at, bytes) in bytes.iter().enumerate() {
        filled = filled.saturating_add(*bytes);
        match buckets.last_mut().filter(|_| filled <= bucket_bytes) {
            Some(bucket) => bucket.end = at + 1,
            None => {
                buckets.push(at..at + 1);
                filled = *bytes;
            }
        }
    }
    buckets
}

fn packed(comm: &Comm, variables: &[Variable], bucket: &mut Vec<u8>) -> Result<()> {
    bucket.resize(variables.iter().map(bytes).sum(), 0);
    if comm.rank() == 0 {
        with_parts(variables, bucket, |part, value| part.copy_from_slice(value))?;
    }
    comm.broadcast(0, &mut bucket[..])?;
    if comm.rank() != 0 {
        with_parts(variables, bucket, |part, value| value.copy_from_slice(part))?;
    }
    Ok(())
}

/// Calls `copy` with each variable's part of a bucket and its value.
fn with_parts(variables: &[Variable], bucket: &mut [u8], copy: impl Fn(&mut [u8], &mut [u8])) -> Result<()> {
    let mut rest = bucket;
    for variable in variables {
        let (part, behind) = rest.split_at_mut(bytes(variable));
        write(&variable.var, |value| copy(part, value.into_bytes()))?;
        rest = behind;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_filled_in_order_and_what_is_larger_goes_alone() {
        assert_eq!(buckets(&[3, 4, 1, 9, 0, 2, 8, 0], 8), [0..3, 3..4, 4..6, 6..8]);
        assert_eq!(buckets(&[5, 5], 0), [0..1, 1..2]);
        assert!(buckets(&[], 8).is_empty());
    }
}
