//! The outer gradient of a fragment, and its average over all ranks.

use comm_core::{Comm, DType, ReduceOp, bytemuck};

use crate::{BlockCodec, EncodedAllReduce, Error, Scalar};

/// The outer gradient of a fragment, averaged if an outer step is due.
#[derive(Debug)]
pub(super) struct OuterGradient<T> {
    pub(super) values: Vec<T>,
    encoded: Option<EncodedAllReduce>,
    /// The values in the type that codecs encode, if they have another type.
    converted: Vec<f32>,
}

impl<T: Scalar> OuterGradient<T> {
    /// Creates a gradient of zeros.
    pub(super) fn new(len: usize, codec: Option<BlockCodec>) -> Self {
        let encode = |codec| EncodedAllReduce::new(codec).error_feedback(has_error_feedback(Some(codec)));
        let encoded = codec.map(encode);
        Self { values: vec![T::zeroed(); len], encoded, converted: Vec::new() }
    }

    /// Replaces the gradient by the average over all ranks, the same bits on every rank.
    ///
    /// # Errors
    /// The error of a call. The gradient is then unspecified.
    pub(super) fn average(&mut self, comm: &Comm) -> comm_core::Result<()> {
        let Self { values, encoded, converted } = self;
        let Some(encoded) = encoded else { return comm.all_reduce(values, ReduceOp::Avg) };
        if T::DTYPE == DType::F32 {
            return average_encoded(encoded, comm, bytemuck::cast_slice_mut(values));
        }
        converted.clear();
        converted.extend(values.iter().map(|&value| <T as Into<f64>>::into(value) as f32));
        average_encoded(encoded, comm, converted)?;
        values
            .iter_mut()
            .zip(converted)
            .for_each(|(value, average)| *value = T::from_f64(f64::from(*average)));
        Ok(())
    }

    /// Returns the bytes that each rank sends for the average. Without a codec, this is the minimum
    /// for an all-reduce.
    pub(super) const fn bytes_sent(codec: Option<BlockCodec>, len: usize, ranks: usize) -> u64 {
        // A rank's block has whole blocks of the codec.
        let block = match codec {
            None => len.div_ceil(ranks) * size_of::<T>(),
            Some(codec) => {
                let blocks = len.div_ceil(BlockCodec::BLOCK_LEN).div_ceil(ranks);
                codec.encoded_len(blocks * BlockCodec::BLOCK_LEN)
            }
        };
        // One block to each other rank to be reduced, and then the result to each.
        2 * block as u64 * (ranks as u64 - 1)
    }

    /// Returns the rounding errors of this rank that its next gradient will contain; empty if there
    /// are none.
    pub(super) fn residual(&self) -> &[f32] {
        self.encoded.as_ref().map_or(&[], EncodedAllReduce::residual)
    }

    /// Replaces the rounding errors of this rank: one per element, or none.
    pub(super) fn set_residual(&mut self, residual: Vec<f32>) {
        if let Some(encoded) = &mut self.encoded {
            encoded.set_residual(residual);
        }
    }
}

/// Returns whether rounding errors of a codec are added to the next gradient. Those of 8 bits are
/// small enough to be ignored.
pub(super) const fn has_error_feedback(codec: Option<BlockCodec>) -> bool {
    matches!(codec, Some(BlockCodec::Int4))
}

fn average_encoded(
    encoded: &mut EncodedAllReduce,
    comm: &Comm,
    gradient: &mut [f32],
) -> comm_core::Result<()> {
    encoded.all_reduce(comm, gradient, ReduceOp::Avg).map_err(|error| match error {
        Error::Comm(error) => error,
        other => comm_core::Error::Internal(other.to_string()),
    })
}
