//! The loop that applies an operator to buffers.

use std::marker::PhantomData;

use bytemuck::Pod;

use super::isa::{Isa, Kernel};
use super::ops::Combine;
use crate::RecvBuf;

/// The buffers of a reduction of pairs: `dst[i] = left[i] op right[i]`.
pub(super) struct PassBuffers<'a> {
    pub(super) dst: &'a mut [u8],
    /// `None` if `dst` is also the left operand.
    pub(super) left: Option<&'a [u8]>,
    pub(super) right: RecvBuf<'a>,
}

impl<'a> PassBuffers<'a> {
    /// Returns the length of the shortest buffer.
    #[inline]
    pub(super) fn len(&self) -> usize {
        let len = self.dst.len().min(self.right.len());
        self.left.map_or(len, |left| len.min(left.len()))
    }

    /// Splits all buffers at a byte. Panics if one is shorter.
    #[inline]
    pub(super) fn split_at(self, at: usize) -> (Self, Self) {
        let (dst, dst_tail) = self.dst.split_at_mut(at);
        let (left, left_tail) = self.left.map(|left| left.split_at(at)).unzip();
        let (right, right_tail) = (self.right.first(at), self.right.skip(at));
        (Self { dst, left, right }, Self { dst: dst_tail, left: left_tail, right: right_tail })
    }

    /// Combines as many elements as the shortest buffer holds.
    pub(super) fn combine<T: Pod, O: Combine<T>>(self, isa: Isa, operator: O) {
        let right = received_operands::<T>(self.right);
        match self.left {
            None => isa.run(Pass::<T, _, _>::new(self.dst, operator, right)),
            Some(left) => {
                let pairs = received_operands::<T>(RecvBuf::from_slice(left)).zip(right);
                isa.run(Pass::<T, _, _>::new(self.dst, OfPair(operator), pairs));
            }
        }
    }
}

/// Replaces the left operand of a pass with the result of an operator on a pair.
struct OfPair<O>(O);

impl<T, O: Combine<T>> Combine<T, (T, T)> for OfPair<O> {
    #[inline(always)]
    fn combine(&self, _: T, (left, right): (T, T)) -> T {
        self.0.combine(left, right)
    }
}

/// A pass over a buffer in which each `T` is the left operand and is replaced by the result. It
/// ends with the shorter of the buffer and the right operands.
pub(super) struct Pass<'a, T, O, I> {
    buffer: &'a mut [u8],
    operator: O,
    operands: I,
    left: PhantomData<T>,
}

impl<'a, T, O, I> Pass<'a, T, O, I> {
    pub(super) fn new(buffer: &'a mut [u8], operator: O, operands: I) -> Self {
        Self { buffer, operator, operands, left: PhantomData }
    }
}

impl<T: Pod, O: Combine<T, I::Item>, I: Iterator> Kernel for Pass<'_, T, O, I> {
    #[inline(always)]
    fn run(self) {
        for (place, operand) in self.buffer.chunks_exact_mut(size_of::<T>()).zip(self.operands) {
            let result = self.operator.combine(bytemuck::pod_read_unaligned(place), operand);
            place.copy_from_slice(bytemuck::bytes_of(&result));
        }
    }
}

/// Returns the complete `T`s in received bytes.
#[inline(always)]
pub(super) fn received_operands<T: Pod>(received: RecvBuf<'_>) -> impl Iterator<Item = T> {
    let start = received.as_ptr().cast::<T>();
    (0..received.len() / size_of::<T>()).map(move |at| {
        // SAFETY: `at` is below the number of whole `T` in the buffer.
        let operand = unsafe { start.add(at) };
        // SAFETY: the bytes stay readable for the life of the buffer, every bit pattern is a valid
        // `T`, and the read needs no alignment. If another process writes to them concurrently, the
        // value read is still some `T`.
        unsafe { operand.read_unaligned() }
    })
}
