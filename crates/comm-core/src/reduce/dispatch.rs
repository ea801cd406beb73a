//! From values to types: which loop serves an operator on an element type.

use bytemuck::Pod;
use half::{bf16, f16};

use super::Reduction;
#[cfg(target_arch = "x86_64")]
use super::f16c::{Block, Blocks, split_blocks};
use super::isa::Isa;
use super::ops::{And, Combine, Divide, Max, Min, Or, Prod, Scale, Sum, Xor};
use super::pass::{Pass, lent_operands};
use crate::{DType, Lent, ReduceOp};

/// An operator on every element type.
trait OnNumbers:
    Copy
    + Combine<i8>
    + Combine<u8>
    + Combine<i16>
    + Combine<u16>
    + Combine<i32>
    + Combine<u32>
    + Combine<i64>
    + Combine<u64>
    + Combine<f16>
    + Combine<bf16>
    + Combine<f32>
    + Combine<f64>
{
}

impl OnNumbers for Sum {}
impl OnNumbers for Prod {}
impl OnNumbers for Min {}
impl OnNumbers for Max {}

/// An operator of a float and a number of the type that it computes in.
trait OnFloats: Copy + Combine<f16, f32> + Combine<bf16, f32> + Combine<f32> + Combine<f64> {}

impl OnFloats for Scale {}
impl OnFloats for Divide {}

pub(super) fn combine(isa: Isa, reduction: Reduction, into: &mut [u8], from: Lent<'_>) -> usize {
    let size = reduction.dtype.size();
    let whole = into.len().min(from.len()) / size * size;
    let (into, from) = (&mut into[..whole], from.first(whole));
    match reduction.op {
        ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PreMulSum(_) => {
            arithmetic(isa, reduction.dtype, Sum, into, from);
        }
        ReduceOp::Prod => arithmetic(isa, reduction.dtype, Prod, into, from),
        ReduceOp::Min => numbers(isa, reduction.dtype, Min, into, from),
        ReduceOp::Max => numbers(isa, reduction.dtype, Max, into, from),
        // Bits know nothing of the elements that they are in.
        ReduceOp::BitAnd => pairs::<u8, _>(isa, And, into, from),
        ReduceOp::BitOr => pairs::<u8, _>(isa, Or, into, from),
        ReduceOp::BitXor => pairs::<u8, _>(isa, Xor, into, from),
        ReduceOp::User(operator) => operator.combine(isa, into, from),
    }
    whole
}

pub(super) fn divide(isa: Isa, dtype: DType, elements: &mut [u8], divisor: f64) {
    floats(isa, dtype, Divide, elements, divisor);
}

pub(super) fn multiply(isa: Isa, dtype: DType, elements: &mut [u8], factor: f64) {
    floats(isa, dtype, Scale, elements, factor);
}

/// Sums and products of `f16` are faster in blocks.
fn arithmetic(isa: Isa, dtype: DType, operator: impl OnNumbers, into: &mut [u8], from: Lent<'_>) {
    #[cfg(target_arch = "x86_64")]
    if dtype == DType::F16
        && let Some(blocks) = Blocks::new(isa, operator)
    {
        let (head, tail) = split_blocks(into);
        pairs::<Block, _>(isa, blocks, head, from);
        pairs::<f16, _>(isa, operator, tail, from.skip(head.len()));
        return;
    }
    numbers(isa, dtype, operator, into, from);
}

fn numbers(isa: Isa, dtype: DType, operator: impl OnNumbers, into: &mut [u8], from: Lent<'_>) {
    match dtype {
        DType::I8 => pairs::<i8, _>(isa, operator, into, from),
        DType::U8 => pairs::<u8, _>(isa, operator, into, from),
        DType::I16 => pairs::<i16, _>(isa, operator, into, from),
        DType::U16 => pairs::<u16, _>(isa, operator, into, from),
        DType::I32 => pairs::<i32, _>(isa, operator, into, from),
        DType::U32 => pairs::<u32, _>(isa, operator, into, from),
        DType::I64 => pairs::<i64, _>(isa, operator, into, from),
        DType::U64 => pairs::<u64, _>(isa, operator, into, from),
        DType::F16 => pairs::<f16, _>(isa, operator, into, from),
        DType::BF16 => pairs::<bf16, _>(isa, operator, into, from),
        DType::F32 => pairs::<f32, _>(isa, operator, into, from),
        DType::F64 => pairs::<f64, _>(isa, operator, into, from),
        // No built-in operator is defined on these.
        DType::F8E4M3 | DType::F8E5M2 | DType::Plain(_) => {}
    }
}

fn floats(isa: Isa, dtype: DType, operator: impl OnFloats, elements: &mut [u8], number: f64) {
    #[cfg(target_arch = "x86_64")]
    if dtype == DType::F16
        && let Some(blocks) = Blocks::new(isa, operator)
    {
        let (head, tail) = split_blocks(elements);
        each::<Block, _, _>(isa, blocks, head, number as f32);
        each::<f16, _, _>(isa, operator, tail, number as f32);
        return;
    }
    match dtype {
        DType::F16 => each::<f16, _, _>(isa, operator, elements, number as f32),
        DType::BF16 => each::<bf16, _, _>(isa, operator, elements, number as f32),
        DType::F32 => each::<f32, _, _>(isa, operator, elements, number as f32),
        DType::F64 => each::<f64, _, _>(isa, operator, elements, number),
        // No operator that comes here is defined on integers.
        _ => {}
    }
}

/// `into[i] = into[i] op from[i]`.
fn pairs<T: Pod, O: Combine<T>>(isa: Isa, operator: O, into: &mut [u8], from: Lent<'_>) {
    isa.run(Pass::<T, _, _>::new(into, operator, lent_operands::<T>(from)));
}

/// `into[i] = into[i] op number`.
fn each<T: Pod, U: Copy, O: Combine<T, U>>(isa: Isa, operator: O, into: &mut [u8], number: U) {
    isa.run(Pass::<T, _, _>::new(into, operator, std::iter::repeat(number)));
}
