//! Arithmetic on `f16` with the conversion instructions of x86, eight elements at a time.

use std::arch::x86_64::{_MM_FROUND_TO_NEAREST_INT, _mm256_cvtph_ps, _mm256_cvtps_ph};

use half::f16;

use super::convert::{Narrow, Widen};
use super::float::Float;
use super::isa::Isa;
use super::ops::Combine;

/// Eight elements.
pub(super) type Block = [f16; 8];

/// The same elements as `f32`.
pub(super) type WideBlock = [f32; 8];

/// Returns the size of the whole blocks among this many bytes.
pub(super) const fn whole_blocks(bytes: usize) -> usize {
    bytes - bytes % size_of::<Block>()
}

/// An operator on `f32`, applied to blocks of `f16`. It can be created only if the machine has AVX2
/// and F16C.
pub(super) struct BlockOp<O>(O);

impl<O> BlockOp<O> {
    pub(super) fn new(isa: Isa, operator: O) -> Option<Self> {
        isa.has_f16c().then_some(Self(operator))
    }
}

impl<O: Combine<f32>> Combine<Block> for BlockOp<O> {
    #[inline(always)]
    fn combine(&self, left: Block, right: Block) -> Block {
        // SAFETY: `self` exists, so the machine has AVX2 and F16C.
        let left = unsafe { widen(left) };
        // SAFETY: `self` exists, so the machine has AVX2 and F16C.
        let right = unsafe { widen(right) };
        let result = std::array::from_fn(|at| self.0.combine(left[at], right[at]));
        // SAFETY: `self` exists, so the machine has AVX2 and F16C.
        unsafe { narrow(result) }
    }
}

impl<O: Combine<f32>> Combine<Block, f32> for BlockOp<O> {
    #[inline(always)]
    fn combine(&self, left: Block, right: f32) -> Block {
        // SAFETY: `self` exists, so the machine has AVX2 and F16C.
        let left = unsafe { widen(left) };
        let result = left.map(|left| self.0.combine(left, right));
        // SAFETY: `self` exists, so the machine has AVX2 and F16C.
        unsafe { narrow(result) }
    }
}

/// Conversion to `f32`.
impl Combine<WideBlock, Block> for BlockOp<Widen> {
    #[inline(always)]
    fn combine(&self, _: WideBlock, right: Block) -> WideBlock {
        // SAFETY: `self` exists, so the machine has AVX2 and F16C.
        let wide = unsafe { widen(right) };
        wide.map(|wide| Float::narrow(wide * self.0.0))
    }
}

/// Conversion from `f32`. Every NaN is replaced by the canonical one first.
impl Combine<Block, WideBlock> for BlockOp<Narrow> {
    #[inline(always)]
    fn combine(&self, _: Block, right: WideBlock) -> Block {
        // SAFETY: `self` exists, so the machine has AVX2 and F16C.
        unsafe { narrow(right.map(|wide| <f32 as Float>::narrow(wide * self.0.0))) }
    }
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn widen(block: Block) -> WideBlock {
    bytemuck::cast(_mm256_cvtph_ps(bytemuck::cast(block)))
}

/// Rounds as [`Float::narrow`](super::float::Float::narrow) does. The NaN of `f32` operators
/// becomes that of `f16`.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn narrow(wide: WideBlock) -> Block {
    bytemuck::cast(_mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(bytemuck::cast(wide)))
}
