//! The kernels of host memory.

use std::ops::Range;

use bytemuck::Pod;
use half::{bf16, f16};

use super::squares::sum_of_squares;
use super::{ErasedBuffer, Kernels};
use crate::call::check_len;
use crate::{
    Comm, DType, Host, HostView, HostViewMut, Invalid, RecvBuf, ReduceOp, Reduction, Result, Shape, Widening,
    copy,
};

/// The number of elements that are converted at a time, by way of `f32` on the stack.
const BLOCK: usize = 1024;

impl Kernels for Host {
    type Buffer = ErasedBuffer;

    fn allocate(comm: &Comm, dtype: DType, len: usize) -> Result<ErasedBuffer> {
        ErasedBuffer::zeroed(comm.communicator(), dtype, len)
    }

    fn get(view: Self::View<'_>, range: Range<usize>) -> Option<Self::View<'_>> {
        view.get(range)
    }

    fn get_mut(view: Self::ViewMut<'_>, range: Range<usize>) -> Option<Self::ViewMut<'_>> {
        view.get_mut(range)
    }

    fn write(_: &Comm, into: HostViewMut<'_>, bytes: &[u8]) -> Result<()> {
        let size = into.dtype().size();
        check_len("the slice of bytes", bytes.len(), into.len() * size)?;
        copy(into.into_bytes(), bytes);
        Ok(())
    }

    fn read(_: &Comm, from: HostView<'_>, bytes: &mut [u8]) -> Result<()> {
        check_len("the buffer for bytes", bytes.len(), from.bytes().len())?;
        copy(bytes, from.bytes());
        Ok(())
    }

    fn zero(_: &Comm, into: HostViewMut<'_>) -> Result<()> {
        into.into_bytes().fill(0);
        Ok(())
    }

    fn copy(_: &Comm, into: HostViewMut<'_>, from: HostView<'_>) -> Result<()> {
        check_len("the copied buffer", from.len(), into.len())?;
        if into.dtype() == from.dtype() {
            copy(into.into_bytes(), from.bytes());
            Ok(())
        } else {
            convert(into, from, 1.0)
        }
    }

    fn convert(_: &Comm, into: HostViewMut<'_>, from: HostView<'_>, factor: f32) -> Result<()> {
        check_len("the converted buffer", from.len(), into.len())?;
        convert(into, from, factor)
    }

    fn add(_: &Comm, into: HostViewMut<'_>, from: HostView<'_>) -> Result<()> {
        check_len("the added buffer", from.len(), into.len())?;
        if into.dtype() != from.dtype() {
            return Err(Invalid::DTypes { send: from.dtype(), recv: into.dtype() }.into());
        }
        let sum = Reduction::new(ReduceOp::Sum, into.dtype())?;
        sum.combine(into.into_bytes(), None, RecvBuf::from_slice(from.bytes()));
        Ok(())
    }

    fn scale(_: &Comm, into: HostViewMut<'_>, factor: f64) -> Result<()> {
        let scaling = Reduction::new(ReduceOp::PreMulSum(factor), into.dtype())?;
        scaling.start(into.into_bytes(), 1);
        Ok(())
    }

    fn sum_of_squares(_: &Comm, from: HostView<'_>) -> Result<f64> {
        match from.dtype() {
            DType::F16 => Ok(sum_of_squares::<f16>(from.bytes())),
            DType::BF16 => Ok(sum_of_squares::<bf16>(from.bytes())),
            DType::F32 => Ok(sum_of_squares::<f32>(from.bytes())),
            DType::F64 => Ok(sum_of_squares::<f64>(from.bytes())),
            dtype => Err(Invalid::NotFloat { dtype }.into()),
        }
    }

    fn is_finite(_: &Comm, from: HostView<'_>) -> Result<bool> {
        is_finite(from)
    }
}

fn is_finite(from: HostView<'_>) -> Result<bool> {
    // All bits of the exponent are set only in infinities and NaN.
    match from.dtype() {
        DType::F16 => Ok(lacks::<u16>(from.bytes(), |bits| bits & 0x7c00 == 0x7c00)),
        DType::BF16 => Ok(lacks::<u16>(from.bytes(), |bits| bits & 0x7f80 == 0x7f80)),
        DType::F32 => Ok(lacks::<u32>(from.bytes(), |bits| bits & 0x7f80_0000 == 0x7f80_0000)),
        DType::F64 => Ok(lacks::<u64>(from.bytes(), |bits| bits >> 52 & 0x7ff == 0x7ff)),
        dtype => Err(Invalid::NotFloat { dtype }.into()),
    }
}

/// Returns whether no word satisfies a condition. Checks a block at a time, without early exit, so
/// that the compiler uses vector instructions.
fn lacks<T: Pod>(bytes: &[u8], condition: impl Fn(T) -> bool) -> bool {
    let words: &[T] = bytemuck::cast_slice(bytes);
    words.chunks(BLOCK).all(|block| !block.iter().fold(false, |found, word| found | condition(*word)))
}

/// Converts floats to `f32`, multiplies them, and converts them to another type. Every NaN becomes
/// the positive quiet one without payload.
fn convert(into: HostViewMut<'_>, from: HostView<'_>, factor: f32) -> Result<()> {
    let (to, of) = (into.dtype(), from.dtype());
    for dtype in [to, of] {
        if !dtype.is_float() || dtype.is_float8() {
            return Err(Invalid::NotFloat { dtype }.into());
        }
    }
    match (Widening::of(of), Widening::of(to)) {
        (Some(widening), _) if to == DType::F32 => widening.widen(from.bytes(), into.into_bytes(), factor),
        (_, Some(widening)) if of == DType::F32 => widening.narrow(from.bytes(), into.into_bytes(), factor),
        _ => convert_by_blocks(into, from, factor),
    }
    Ok(())
}

fn convert_by_blocks(into: HostViewMut<'_>, from: HostView<'_>, factor: f32) {
    let (to, of) = (into.dtype(), from.dtype());
    let mut floats = [0_f32; BLOCK];
    let into = into.into_bytes().chunks_mut(BLOCK * to.size());
    for (into, from) in into.zip(from.bytes().chunks(BLOCK * of.size())) {
        let floats = &mut floats[..from.len() / of.size()];
        match Widening::of(of) {
            Some(widening) => widening.widen(from, bytemuck::cast_slice_mut(floats), factor),
            None if of == DType::F64 => {
                let from: &[f64] = bytemuck::cast_slice(from);
                floats
                    .iter_mut()
                    .zip(from)
                    .for_each(|(float, wide)| *float = multiplied(*wide as f32, factor));
            }
            None => {
                let from: &[f32] = bytemuck::cast_slice(from);
                floats.iter_mut().zip(from).for_each(|(float, from)| *float = multiplied(*from, factor));
            }
        }
        match Widening::of(to) {
            Some(widening) => widening.narrow(bytemuck::cast_slice(floats), into, 1.0),
            None if to == DType::F64 => {
                let into: &mut [f64] = bytemuck::cast_slice_mut(into);
                into.iter_mut().zip(floats).for_each(|(wide, float)| *wide = widen(*float));
            }
            None => into.copy_from_slice(bytemuck::cast_slice(floats)),
        }
    }
}

/// Returns the product, with a canonical NaN: the bits of other NaN would depend on the instruction
/// set.
fn multiplied(float: f32, factor: f32) -> f32 {
    let product = float * factor;
    if product.is_nan() { NAN } else { product }
}

/// The NaN of all results. The language does not specify the bits of `f32::NAN`.
const NAN: f32 = f32::from_bits(0x7fc0_0000);

fn widen(float: f32) -> f64 {
    if float.is_nan() { f64::from_bits(0x7ff8_0000_0000_0000) } else { f64::from(float) }
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use super::*;
    use crate::{Element, wire};

    /// Numbers of both signs and many magnitudes.
    fn noise(len: usize) -> Vec<f64> {
        let number = |at: u64| {
            let bits = wire::digest([at]);
            let magnitude = (bits % 24) as i32 - 12;
            ((bits >> 11) as f64 / (1_u64 << 52) as f64 - 1.0) * 2_f64.powi(magnitude)
        };
        (0..len as u64).map(number).collect()
    }

    fn converted<A: Element, B: Element>(from: &[A]) -> Vec<B> {
        let mut into = vec![B::zeroed(); from.len()];
        convert(HostViewMut::new(&mut into), HostView::new(from), 1.0).unwrap();
        into
    }

    #[test]
    fn conversions_round_to_nearest() {
        for len in [0, 1, 7, BLOCK, BLOCK + 1, 3 * BLOCK + 5] {
            let wide = noise(len);
            let single: Vec<f32> = wide.iter().map(|x| *x as f32).collect();
            assert_eq!(converted::<f64, f32>(&wide), single);
            assert_eq!(
                converted::<f32, f64>(&single),
                single.iter().map(|x| f64::from(*x)).collect::<Vec<_>>()
            );
            let halves: Vec<f16> = single.iter().map(|x| f16::from_f32(*x)).collect();
            let brains: Vec<bf16> = single.iter().map(|x| bf16::from_f32(*x)).collect();
            assert_eq!(converted::<f32, f16>(&single), halves);
            assert_eq!(converted::<f64, bf16>(&wide), brains);
            assert_eq!(converted::<f16, f64>(&halves), halves.iter().map(|x| x.to_f64()).collect::<Vec<_>>());
            assert_eq!(
                converted::<bf16, f16>(&brains),
                brains.iter().map(|x| f16::from_f32(x.to_f32())).collect::<Vec<_>>()
            );
        }
        assert!(convert(HostViewMut::new(&mut [0_i32; 2]), HostView::new(&[0.0_f32; 2]), 1.0).is_err());
    }

    #[test]
    fn converted_floats_are_multiplied_in_f32() {
        let wide = noise(2 * BLOCK + 9);
        let single: Vec<f32> = wide.iter().map(|x| *x as f32).collect();
        for factor in [0.25, 1.0 / 3.0, f32::MIN_POSITIVE] {
            let products: Vec<f32> = single.iter().map(|x| x * factor).collect();
            let mut halves = vec![f16::ZERO; wide.len()];
            convert(HostViewMut::new(&mut halves), HostView::new(&single), factor).unwrap();
            assert_eq!(halves, products.iter().map(|x| f16::from_f32(*x)).collect::<Vec<_>>());
            let mut brains = vec![bf16::ZERO; wide.len()];
            convert(HostViewMut::new(&mut brains), HostView::new(&wide), factor).unwrap();
            assert_eq!(brains, products.iter().map(|x| bf16::from_f32(*x)).collect::<Vec<_>>());
            let mut doubles = vec![0.0_f64; wide.len()];
            convert(HostViewMut::new(&mut doubles), HostView::new(&wide), factor).unwrap();
            assert_eq!(doubles, products.iter().map(|x| f64::from(*x)).collect::<Vec<_>>());
            let mut back = vec![0.0_f32; wide.len()];
            convert(HostViewMut::new(&mut back), HostView::new(&halves), factor).unwrap();
            assert_eq!(back, halves.iter().map(|x| x.to_f32() * factor).collect::<Vec<_>>());
        }
    }

    #[test]
    fn every_nan_is_converted_to_the_same() {
        // Quiet and signalling NaN of both signs, in all parts of a block.
        let nan = [0x7fc0_0001, 0xffc0_0000, 0x7f80_0001, 0xff80_0400].map(f32::from_bits).repeat(9);
        let doubles: Vec<f64> = nan
            .iter()
            .map(|nan| f64::from_bits(u64::from(nan.to_bits() & 0x8040_0001) << 32 | 0x7ff0_1000_0000_0000))
            .collect();
        let halves: Vec<f16> =
            nan.iter().map(|nan| f16::from_bits((nan.to_bits() >> 16) as u16 & 0x8200 | 0x7c01)).collect();
        let brains: Vec<bf16> =
            nan.iter().map(|nan| bf16::from_bits((nan.to_bits() >> 16) as u16 | 0x7f81)).collect();
        let bits = |floats: Vec<f32>| floats.into_iter().map(f32::to_bits).collect::<Vec<_>>();
        for converted in [converted::<f64, f32>(&doubles), converted(&halves), converted(&brains)] {
            assert_eq!(bits(converted), [0x7fc0_0000; 36]);
        }
        for converted in [converted::<f32, f64>(&nan), converted(&halves), converted(&brains)] {
            assert!(converted.iter().all(|nan: &f64| nan.to_bits() == 0x7ff8 << 48));
        }
        assert!(converted::<f64, f16>(&doubles).iter().all(|nan| nan.to_bits() == 0x7e00));
        assert!(converted::<f32, bf16>(&nan).iter().all(|nan| nan.to_bits() == 0x7fc0));
    }

    #[test]
    fn squares_are_added_in_f64() {
        fn check<T: Element + Into<f64>>(numbers: &[T]) {
            let expected: f64 = numbers.iter().map(|number| (*number).into().powi(2)).sum();
            let got = sum_of_squares::<T>(bytemuck::cast_slice(numbers));
            assert!((got - expected).abs() <= 1e-12 * expected, "{}: {got} {expected}", T::DTYPE);
        }
        for len in [0, 1, 15, 16, 1000] {
            let wide = noise(len);
            check(&wide);
            check(&converted::<f64, f32>(&wide));
            check(&converted::<f64, f16>(&wide));
            check(&converted::<f64, bf16>(&wide));
        }
    }

    #[test]
    fn one_number_that_is_not_finite_is_found_anywhere() {
        fn check<T: Element + Debug>(infinite: [T; 3], largest: T) {
            let len = 2 * BLOCK + 3;
            let is_finite = |numbers: &[T]| is_finite(HostView::new(numbers)).unwrap();
            let mut numbers = vec![largest; len];
            assert!(is_finite(&numbers));
            for at in [0, 1, BLOCK - 1, BLOCK, len - 1] {
                for number in infinite {
                    numbers[at] = number;
                    assert!(!is_finite(&numbers), "{} {number:?} at {at}", T::DTYPE);
                    numbers[at] = largest;
                }
            }
        }
        check([f16::NAN, f16::INFINITY, f16::NEG_INFINITY], f16::MAX);
        check([bf16::NAN, bf16::INFINITY, bf16::NEG_INFINITY], bf16::MIN);
        check([f32::NAN, f32::INFINITY, f32::NEG_INFINITY], f32::MAX);
        check([-f64::NAN, f64::INFINITY, f64::NEG_INFINITY], f64::MIN);
    }
}
