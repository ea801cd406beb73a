//! Selection of the loop for an operator and an element type.

use bytemuck::Pod;
use half::{bf16, f16};

use super::Reduction;
#[cfg(target_arch = "x86_64")]
use super::f16c::{Block, BlockOp, whole_blocks};
use super::isa::Isa;
use super::ops::{And, Average, Combine, Divide, Max, Min, Or, Prod, Scale, Sum, Xor};
use super::pass::{Pass, PassBuffers};
use crate::{DType, ReduceOp};

/// An operator that is defined on every element type.
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

/// An operator on a float and a number of the type in which such floats are computed.
trait OnFloats: Copy + Combine<f16, f32> + Combine<bf16, f32> + Combine<f32> + Combine<f64> {}

impl OnFloats for Scale {}
impl OnFloats for Divide {}

/// Combines as many whole elements as all operands hold. Returns their size in bytes.
pub(super) fn combine(isa: Isa, reduction: &Reduction, operands: PassBuffers<'_>) -> usize {
    let (op, dtype) = (reduction.op, reduction.dtype);
    let whole = operands.len() / dtype.size() * dtype.size();
    let (operands, _) = operands.split_at(whole);
    match op {
        ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PreMulSum(_) => arithmetic(isa, dtype, Sum, operands),
        ReduceOp::Prod => arithmetic(isa, dtype, Prod, operands),
        ReduceOp::Min => numbers(isa, dtype, Min, operands),
        ReduceOp::Max => numbers(isa, dtype, Max, operands),
        // Bitwise operators give the same result on the bytes of an element.
        ReduceOp::BitAnd => operands.combine::<u8, _>(isa, And),
        ReduceOp::BitOr => operands.combine::<u8, _>(isa, Or),
        ReduceOp::BitXor => operands.combine::<u8, _>(isa, Xor),
        ReduceOp::User(operator) => operator.combine(isa, operands),
    }
    whole
}

/// Combines sums of `f32` or `f64` and divides the results. Returns the size of whole elements.
pub(super) fn average(isa: Isa, dtype: DType, operands: PassBuffers<'_>, divisor: f64) -> usize {
    let whole = operands.len() / dtype.size() * dtype.size();
    let (operands, _) = operands.split_at(whole);
    if dtype == DType::F64 {
        operands.combine::<f64, _>(isa, Average(divisor));
    } else {
        operands.combine::<f32, _>(isa, Average(divisor as f32));
    }
    whole
}

pub(super) fn divide(isa: Isa, dtype: DType, elements: &mut [u8], divisor: f64) {
    floats(isa, dtype, Divide, elements, divisor);
}

pub(super) fn multiply(isa: Isa, dtype: DType, elements: &mut [u8], factor: f64) {
    floats(isa, dtype, Scale, elements, factor);
}

/// Computes sums or products, in blocks for `f16`, which is faster.
fn arithmetic(isa: Isa, dtype: DType, operator: impl OnNumbers, operands: PassBuffers<'_>) {
    #[cfg(target_arch = "x86_64")]
    if dtype == DType::F16
        && let Some(blocks) = BlockOp::new(isa, operator)
    {
        let in_blocks = whole_blocks(operands.len());
        let (head, tail) = operands.split_at(in_blocks);
        head.combine::<Block, _>(isa, blocks);
        tail.combine::<f16, _>(isa, operator);
        return;
    }
    numbers(isa, dtype, operator, operands);
}

fn numbers(isa: Isa, dtype: DType, operator: impl OnNumbers, operands: PassBuffers<'_>) {
    match dtype {
        DType::I8 => operands.combine::<i8, _>(isa, operator),
        DType::U8 => operands.combine::<u8, _>(isa, operator),
        DType::I16 => operands.combine::<i16, _>(isa, operator),
        DType::U16 => operands.combine::<u16, _>(isa, operator),
        DType::I32 => operands.combine::<i32, _>(isa, operator),
        DType::U32 => operands.combine::<u32, _>(isa, operator),
        DType::I64 => operands.combine::<i64, _>(isa, operator),
        DType::U64 => operands.combine::<u64, _>(isa, operator),
        DType::F16 => operands.combine::<f16, _>(isa, operator),
        DType::BF16 => operands.combine::<bf16, _>(isa, operator),
        DType::F32 => operands.combine::<f32, _>(isa, operator),
        DType::F64 => operands.combine::<f64, _>(isa, operator),
        // No built-in operator is defined on these types.
        DType::F8E4M3 | DType::F8E5M2 | DType::Plain(_) => {}
    }
}

fn floats(isa: Isa, dtype: DType, operator: impl OnFloats, elements: &mut [u8], number: f64) {
    #[cfg(target_arch = "x86_64")]
    if dtype == DType::F16
        && let Some(blocks) = BlockOp::new(isa, operator)
    {
        let (head, tail) = elements.split_at_mut(whole_blocks(elements.len()));
        each::<Block, _, _>(isa, blocks, head, number as f32);
        each::<f16, _, _>(isa, operator, tail, number as f32);
        return;
    }
    match dtype {
        DType::F16 => each::<f16, _, _>(isa, operator, elements, number as f32),
        DType::BF16 => each::<bf16, _, _>(isa, operator, elements, number as f32),
        DType::F32 => each::<f32, _, _>(isa, operator, elements, number as f32),
        DType::F64 => each::<f64, _, _>(isa, operator, elements, number),
        // These operators are not defined on integers.
        _ => {}
    }
}

/// Computes `into[i] = into[i] op number`.
fn each<T: Pod, U: Copy, O: Combine<T, U>>(isa: Isa, operator: O, into: &mut [u8], number: U) {
    isa.run(Pass::<T, _, _>::new(into, operator, std::iter::repeat(number)));
}
