//! Conversions of 16-bit floats to `f32` and back.

use half::{bf16, f16};

#[cfg(target_arch = "x86_64")]
use super::f16c::{Block, BlockOp, WideBlock};
use super::float::Float;
use super::isa::Isa;
use super::ops::Combine;
use super::pass::{Pass, received_operands};
use crate::{DType, RecvBuf};

/// Replaces the left operand with the right one, converted to `f32` and multiplied by a factor.
#[derive(Clone, Copy)]
pub(super) struct Widen(pub(super) f32);

impl<T: Float<Wide = f32>> Combine<f32, T> for Widen {
    #[inline(always)]
    fn combine(&self, _: f32, right: T) -> f32 {
        <f32 as Float>::narrow(right.widen() * self.0)
    }
}

/// Replaces the left operand with the right one, multiplied by a factor and rounded.
#[derive(Clone, Copy)]
pub(super) struct Narrow(pub(super) f32);

impl<T: Float<Wide = f32>> Combine<T, f32> for Narrow {
    #[inline(always)]
    fn combine(&self, _: T, right: f32) -> T {
        T::narrow(right * self.0)
    }
}

/// Conversion between one of the 16-bit float types and `f32`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Widening {
    half: DType,
}

impl Widening {
    /// Returns the conversion of elements of this type. `None` if the type is not a 16-bit float.
    #[must_use]
    pub const fn of(dtype: DType) -> Option<Self> {
        if dtype.is_float16() { Some(Self { half: dtype }) } else { None }
    }

    /// Returns the size in bytes that this many bytes of 16-bit floats have after conversion to
    /// `f32`.
    #[must_use]
    pub const fn wide_bytes(half_bytes: usize) -> usize {
        half_bytes * 2
    }

    /// Writes 16-bit floats as `f32`, multiplied by a factor. Every NaN becomes the positive quiet
    /// NaN. Converts as many whole elements as both hold; neither needs alignment.
    pub fn widen(self, halves: &[u8], wides: &mut [u8], factor: f32) {
        widen(Isa::best(), self.half, halves, wides, Widen(factor));
    }

    /// Multiplies `f32` elements by a factor and rounds them to 16-bit floats: to nearest, ties to
    /// even. Every NaN becomes the positive quiet NaN. Converts as many whole elements as both
    /// hold; neither needs alignment.
    pub fn narrow(self, wides: &[u8], halves: &mut [u8], factor: f32) {
        narrow(Isa::best(), self.half, wides, halves, Narrow(factor));
    }
}

pub(super) fn widen(isa: Isa, half: DType, halves: &[u8], wides: &mut [u8], operator: Widen) {
    let halves = RecvBuf::from_slice(halves);
    match half {
        DType::F16 => {
            #[cfg(target_arch = "x86_64")]
            if let Some(blocks) = BlockOp::new(isa, operator) {
                let whole = (halves.len() / size_of::<Block>()).min(wides.len() / size_of::<WideBlock>());
                let (head, tail) = wides.split_at_mut(whole * size_of::<WideBlock>());
                isa.run(Pass::<WideBlock, _, _>::new(head, blocks, received_operands::<Block>(halves)));
                let rest = received_operands::<f16>(halves.skip(whole * size_of::<Block>()));
                isa.run(Pass::<f32, _, _>::new(tail, operator, rest));
                return;
            }
            isa.run(Pass::<f32, _, _>::new(wides, operator, received_operands::<f16>(halves)));
        }
        _ => isa.run(Pass::<f32, _, _>::new(wides, operator, received_operands::<bf16>(halves))),
    }
}

pub(super) fn narrow(isa: Isa, half: DType, wides: &[u8], halves: &mut [u8], operator: Narrow) {
    let wides = RecvBuf::from_slice(wides);
    match half {
        DType::F16 => {
            #[cfg(target_arch = "x86_64")]
            if let Some(blocks) = BlockOp::new(isa, operator) {
                let whole = (halves.len() / size_of::<Block>()).min(wides.len() / size_of::<WideBlock>());
                let (head, tail) = halves.split_at_mut(whole * size_of::<Block>());
                isa.run(Pass::<Block, _, _>::new(head, blocks, received_operands::<WideBlock>(wides)));
                let rest = received_operands::<f32>(wides.skip(whole * size_of::<WideBlock>()));
                isa.run(Pass::<f16, _, _>::new(tail, operator, rest));
                return;
            }
            isa.run(Pass::<f16, _, _>::new(halves, operator, received_operands::<f32>(wides)));
        }
        _ => isa.run(Pass::<bf16, _, _>::new(halves, operator, received_operands::<f32>(wides))),
    }
}
