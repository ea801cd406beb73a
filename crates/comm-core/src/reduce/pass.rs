//! The loop.

use std::marker::PhantomData;

use bytemuck::Pod;

use super::isa::Kernel;
use super::ops::Combine;
use crate::Lent;

/// One pass over a buffer: each `T` in it is the left operand, and is replaced by the result. It ends with the shorter
/// of the buffer and the right operands.
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

/// The whole `T` that lent bytes hold.
#[inline(always)]
pub(super) fn lent_operands<T: Pod>(lent: Lent<'_>) -> impl Iterator<Item = T> {
    let start = lent.as_ptr().cast::<T>();
    (0..lent.len() / size_of::<T>()).map(move |at| {
        // SAFETY: `at` is below the number of whole `T` in the lent bytes.
        let operand = unsafe { start.add(at) };
        // SAFETY: the bytes stay readable as long as they are lent, any bytes are a `T`, and none needs to be aligned.
        // If another process writes them meanwhile, what is read is some `T` nevertheless.
        unsafe { operand.read_unaligned() }
    })
}
