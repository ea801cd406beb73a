//! The broadcast of rank 0's variables in host memory, packed into buckets so that small ones do
//! not cost a call each.

use comm_core::Comm;
use comm_ddp::__private::bucket_ranges;

use crate::Result;
use crate::memory::write;
use crate::variables::Variable;

/// Broadcasts the values of rank 0. Packing takes memory for at most one bucket; larger variables
/// are sent in place. Only bytes are sent, so different types share buckets.
pub(crate) fn in_buckets(comm: &Comm, variables: &[Variable], bucket_bytes: usize) -> Result<()> {
    let bytes: Vec<usize> = variables.iter().map(bytes).collect();
    let mut bucket = Vec::new();
    for members in bucket_ranges(&bytes, bucket_bytes) {
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
        let (part, after) = rest.split_at_mut(bytes(variable));
        write(&variable.var, |value| copy(part, value.into_bytes()))?;
        rest = after;
    }
    Ok(())
}
