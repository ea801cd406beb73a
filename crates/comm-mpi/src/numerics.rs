//! The computations of a reduction before and after the call of MPI.

use comm_core::{Accumulate, DType, Error, ReduceOp, Reduction, Result, Signature, Widening};

use crate::raw::{BlockCounts, Datatype, MpiReduction, Routine, count_of};
use crate::session::{CallContext, Session};

/// The conversions of elements before and after the call of MPI.
#[derive(Debug)]
pub(crate) struct Numerics {
    /// The type of the caller's elements.
    dtype: DType,
    /// The conversion of 16-bit floats to `f32`, if partial sums are kept in that.
    widening: Option<Widening>,
    reduction: Option<Reduction>,
    by_mpi: Option<MpiReduction>,
    ranks: usize,
}

impl Numerics {
    /// Returns whether elements have another type in the memory of MPI.
    pub(crate) const fn converts(&self) -> bool {
        self.widening.is_some()
    }

    /// Returns the size of an element of the caller in bytes.
    pub(crate) const fn element_bytes(&self) -> usize {
        self.dtype.size()
    }

    pub(crate) fn of(signature: &Signature, ranks: usize) -> Result<Self> {
        let dtype = signature.dtype.unwrap_or(DType::U8);
        let widening = Widening::of(dtype).filter(|_| signature.accumulate == Accumulate::F32);
        let computed = if widening.is_some() { DType::F32 } else { dtype };
        let reduction = signature.op.map(|op| Reduction::new(op, computed)).transpose()?;
        let by_mpi = reduction.map(MpiReduction::of).transpose()?;
        Ok(Self { dtype, widening, reduction, by_mpi, ranks })
    }

    pub(crate) fn routine(&self, signature: &Signature, [send, recv]: [BlockCounts; 2]) -> Result<Routine> {
        let datatype = match &self.by_mpi {
            Some(reduction) => reduction.datatype,
            None => Datatype::of(self.dtype)?,
        };
        Ok(Routine {
            collective: signature.collective,
            datatype,
            size: self.staged_bytes(self.dtype.size()),
            op: self.by_mpi.map(|reduction| reduction.op),
            root: count_of("the root", signature.root.unwrap_or(0))?,
            send,
            recv,
        })
    }

    pub(crate) const fn staged_bytes(&self, bytes: usize) -> usize {
        if self.widening.is_some() { Widening::wide_bytes(bytes) } else { bytes }
    }

    pub(crate) fn has_start(&self) -> bool {
        self.reduction.is_some_and(|reduction| reduction.has_start(self.ranks))
    }

    /// Copies a contribution to memory for MPI.
    pub(crate) fn stage(&self, input: &[u8], staged: &mut [u8]) {
        let staged = &mut staged[..self.staged_bytes(input.len())];
        match self.widening {
            Some(widening) => widening.widen(input, staged, 1.0),
            None => staged.copy_from_slice(input),
        }
        if let Some(reduction) = self.reduction {
            reduction.start(staged, self.ranks);
        }
    }

    /// Copies a result from the memory of MPI.
    pub(crate) fn unstage(&self, staged: &mut [u8], output: &mut [u8]) {
        let staged = &mut staged[..self.staged_bytes(output.len())];
        self.finish(staged);
        match self.widening {
            Some(widening) => widening.narrow(staged, output, 1.0),
            None => output.copy_from_slice(staged),
        }
    }

    /// Completes results.
    pub(crate) fn finish(&self, results: &mut [u8]) {
        let Some(reduction) = self.reduction else { return };
        if reduction.has_finish() {
            reduction.finish(results, self.ranks);
        } else if reduction.dtype().is_float() && self.by_mpi.is_some_and(|by_mpi| by_mpi.kernel.is_none()) {
            // MPI's own sum of NaNs may have any bits. A multiplication by one gives every NaN the
            // same, and changes nothing else.
            if let Ok(multiply) = Reduction::new(ReduceOp::PreMulSum(1.0), reduction.dtype()) {
                multiply.start(results, self.ranks);
            }
        }
    }

    /// Returns an error on every rank if a user-defined operator has panicked on any.
    pub(crate) fn check(&self, session: &Session, context: &CallContext<'_>) -> Result<()> {
        let Some(kernel) = self.by_mpi.and_then(|by_mpi| by_mpi.kernel) else { return Ok(()) };
        let own = kernel.check();
        if !matches!(context.signature.op, Some(ReduceOp::User(_))) {
            return own;
        }
        let number = if own.is_err() { session.group.rank() as u64 + 1 } else { 0 };
        let failed = session.max_of_words(&[number], context)?.first().copied().unwrap_or(0);
        own?;
        match usize::try_from(failed).unwrap_or(0).checked_sub(1) {
            None => Ok(()),
            Some(by) => Err(Error::Aborted { by, reason: "its operator panicked".into() }),
        }
    }
}
