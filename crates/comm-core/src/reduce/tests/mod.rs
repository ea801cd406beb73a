mod reference;

use super::convert::{Narrow, Widen};
use super::float::Float;
use super::{BLOCK_BYTES, DType, Isa, PassBuffers, RecvBuf, ReduceOp, Reduction, convert, dispatch};
use half::{bf16, f16};

const FLOATS: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];

/// The bytes around the buffers, which must not change.
const GUARD: u8 = 0xa5;

fn every_reduction() -> impl Iterator<Item = Reduction> {
    DType::ALL
        .into_iter()
        .flat_map(|dtype| ReduceOp::ALL.into_iter().filter_map(move |op| Reduction::new(op, dtype).ok()))
}

#[test]
fn floats_of_8_bits_are_refused() {
    for (op, dtype) in ReduceOp::ALL.into_iter().flat_map(|op| [(op, DType::F8E4M3), (op, DType::F8E5M2)]) {
        let refused = Reduction::new(op, dtype).unwrap_err();
        let words = if op.supports(dtype) { "the host does not support" } else { "is not defined on" };
        assert!(!refused.is_fatal() && refused.to_string().contains(words), "{refused}");
    }
}

fn every_isa_and_reduction() -> impl Iterator<Item = (Isa, Reduction)> {
    Isa::all().into_iter().flat_map(|isa| every_reduction().map(move |reduction| (isa, reduction)))
}

/// Random numbers (splitmix64).
struct Random(u64);

impl Iterator for Random {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        Some(mixed ^ mixed >> 31)
    }
}

/// Elements at the edges of their type, then random elements.
fn samples(dtype: DType) -> Vec<u64> {
    let sign = 1 << (8 * dtype.size() - 1);
    let all_ones = sign | (sign - 1);
    let mut samples = vec![0, 1, 2, 3, sign - 2, sign - 1, sign, sign + 1, all_ones - 1, all_ones];
    samples.extend([all_ones / 3, all_ones / 3 * 2]);
    if dtype.is_float() {
        let (infinity, step) = (reference::infinity(dtype), 1 << reference::mantissa_bits(dtype));
        let one = infinity / 2 / step * step;
        for edge in [step, one, one + step, infinity, infinity + step / 2] {
            samples.extend([edge - 1, edge, edge + 1].map(|sample| sample % sign));
            samples.extend([edge - 1, edge, edge + 1].map(|sample| sample | sign));
        }
        // Elements of similar magnitudes, which neither vanish nor overflow.
        samples.extend(Random(1).take(24).map(|random| (one - step + random % (4 * step)) | (random & sign)));
    }
    samples.extend(Random(2).take(48).map(|random| random & all_ones));
    samples
}

fn to_bytes(dtype: DType, elements: impl IntoIterator<Item = u64>) -> Vec<u8> {
    elements.into_iter().flat_map(|element| element.to_le_bytes().into_iter().take(dtype.size())).collect()
}

fn from_bytes(dtype: DType, bytes: &[u8]) -> Vec<u64> {
    let element = |bytes: &[u8]| bytes.iter().rev().fold(0, |element, byte| element << 8 | u64::from(*byte));
    bytes.chunks(dtype.size()).map(element).collect()
}

fn combine(isa: Isa, reduction: Reduction, dst: &mut [u8], left: Option<&[u8]>, right: &[u8]) -> usize {
    dispatch::combine(isa, &reduction, PassBuffers { dst, left, right: RecvBuf::from_slice(right) })
}

/// Combines elements on `isa`, both in place and not, and checks that all were combined and that
/// both results are equal.
fn combined(isa: Isa, reduction: Reduction, left: &[u64], right: &[u64]) -> Vec<u64> {
    let [left, right] = [left, right].map(|elements| to_bytes(reduction.dtype, elements.iter().copied()));
    let (mut in_place, mut apart) = (left.clone(), vec![GUARD; left.len()]);
    assert_eq!(combine(isa, reduction, &mut in_place, None, &right), left.len());
    assert_eq!(combine(isa, reduction, &mut apart, Some(&left), &right), left.len());
    assert!(in_place == apart, "{isa:?}, {reduction:?}");
    from_bytes(reduction.dtype, &apart)
}

#[test]
#[cfg_attr(miri, ignore = "about values, not memory")]
fn every_pair_of_values_gives_the_reference_result() {
    for (isa, reduction) in every_isa_and_reduction() {
        let samples = samples(reduction.dtype);
        for left in &samples {
            let results = combined(isa, reduction, &vec![*left; samples.len()], &samples);
            for (right, result) in samples.iter().zip(results) {
                let expected = reference::combine(reduction.op, reduction.dtype, *left, *right);
                assert_eq!(result, expected, "{isa:?}, {reduction:?} of {left:#x} and {right:#x}");
            }
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "about values, not memory")]
fn results_do_not_depend_on_the_order_of_operands() {
    for (isa, reduction) in every_isa_and_reduction() {
        let samples = samples(reduction.dtype);
        for left in &samples {
            let lefts = vec![*left; samples.len()];
            let one_way = combined(isa, reduction, &lefts, &samples);
            let other_way = combined(isa, reduction, &samples, &lefts);
            assert_eq!(one_way, other_way, "{isa:?}, {reduction:?} of {left:#x}");
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "about values, not memory")]
fn instruction_sets_agree_on_every_bit() {
    for (isa, reduction) in every_isa_and_reduction() {
        let (left, right): (Vec<_>, Vec<_>) = Random(3).zip(Random(4)).take(5000).unzip();
        let expected = combined(Isa::BASELINE, reduction, &left, &right);
        for (at, result) in combined(isa, reduction, &left, &right).into_iter().enumerate() {
            assert_eq!(
                result, expected[at],
                "{isa:?}, {reduction:?} of {:#x} and {:#x}",
                left[at], right[at]
            );
        }
    }
}

#[test]
fn every_length_and_alignment_works_and_no_other_element_is_written() {
    let lens = if cfg!(miri) { vec![0, 1, 9] } else { (0..=70).chain([127, 128, 129, 200, 300]).collect() };
    for (isa, reduction) in every_isa_and_reduction() {
        let size = reduction.dtype.size();
        let misalignments = if cfg!(miri) { size.min(2) } else { size };
        let bytes = |seed| to_bytes(reduction.dtype, Random(seed).take(lens[lens.len() - 1]));
        let (left, right) = (bytes(5), bytes(6));
        let expected = to_bytes(
            reduction.dtype,
            from_bytes(reduction.dtype, &left)
                .into_iter()
                .zip(from_bytes(reduction.dtype, &right))
                .map(|(left, right)| reference::combine(reduction.op, reduction.dtype, left, right)),
        );
        let guarded = |misaligned: usize, bytes: &[u8]| [&vec![GUARD; misaligned], bytes].concat();
        for (into_at, from_at) in
            (0..misalignments).flat_map(|into| (0..misalignments).map(move |from| (into, from)))
        {
            let (from, addend) = (guarded(from_at, &right), guarded(size - 1 - from_at % size, &left));
            let addend = &addend[size - 1 - from_at % size..];
            for (len, in_place) in lens.iter().flat_map(|len| [(len * size, true), (len * size, false)]) {
                let mut buffer = vec![GUARD; into_at + len + 64];
                let into = &mut buffer[into_at..][..len];
                if in_place {
                    into.copy_from_slice(&left[..len]);
                }
                let used = combine(isa, reduction, into, (!in_place).then_some(addend), &from[from_at..]);
                assert_eq!(used, len);
                assert!(
                    into == &expected[..len],
                    "{isa:?}, {reduction:?} of {len} bytes, in place: {in_place}"
                );
                assert!(buffer[..into_at].iter().all(|byte| *byte == GUARD));
                assert!(buffer[into_at + len..].iter().all(|byte| *byte == GUARD));
            }
        }
    }
}

#[test]
fn as_many_whole_elements_are_used_as_all_buffers_hold() {
    for (isa, reduction) in every_isa_and_reduction() {
        let size = reduction.dtype.size();
        let left = to_bytes(reduction.dtype, Random(7).take(20));
        let right = to_bytes(reduction.dtype, Random(8).take(20));
        let mut expected = left.clone();
        combine(isa, reduction, &mut expected, None, &right);
        let lens = || (8 * size..=10 * size).step_by(if cfg!(miri) { size.div_ceil(2) } else { 1 });
        for into_len in lens() {
            for from_len in lens() {
                let mut into = left[..into_len].to_vec();
                let whole = into_len.min(from_len) / size * size;
                let right = &right[..from_len];
                let used = combine(isa, reduction, &mut into, None, right);
                assert_eq!(used, whole, "{isa:?}, {reduction:?} of {into_len} and {from_len} bytes");
                assert_eq!(into[..whole], expected[..whole]);
                assert_eq!(into[whole..], left[whole..into_len]);
                // The addend is the shortest, or one of the shortest.
                let mut dst = vec![GUARD; left.len()];
                assert_eq!(combine(isa, reduction, &mut dst, Some(&left[..into_len]), right), whole);
                assert_eq!(dst[..whole], expected[..whole]);
                assert!(dst[whole..].iter().all(|byte| *byte == GUARD));
            }
        }
    }
}

/// Checks the result for every sample, and that bytes after the last whole element do not change.
fn check_each(dtype: DType, apply: impl Fn(&mut [u8]), expected: impl Fn(u64) -> u64) {
    let samples = samples(dtype);
    for extra in 0..dtype.size() {
        let mut bytes = to_bytes(dtype, samples.iter().copied());
        bytes.extend(std::iter::repeat_n(GUARD, extra));
        apply(&mut bytes);
        let (elements, rest) = bytes.split_at(samples.len() * dtype.size());
        assert!(rest.iter().all(|byte| *byte == GUARD), "{dtype}");
        for (sample, result) in samples.iter().zip(from_bytes(dtype, elements)) {
            assert_eq!(result, expected(*sample), "{dtype} {sample:#x}");
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "about values, not memory")]
fn elements_are_divided_by_a_number() {
    for (isa, dtype) in Isa::all().into_iter().flat_map(|isa| FLOATS.map(|dtype| (isa, dtype))) {
        for divisor in [0.75, 0.625, 1.0, 2.0, 3.0, 7.0, 8.0, 10.0, 1000.0, 70_000.0] {
            let apply = |bytes: &mut [u8]| dispatch::divide(isa, dtype, bytes, divisor);
            check_each(dtype, apply, |sample| reference::divide(dtype, sample, divisor));
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "about values, not memory")]
fn a_contribution_is_multiplied_by_the_factor() {
    for (isa, dtype) in Isa::all().into_iter().flat_map(|isa| FLOATS.map(|dtype| (isa, dtype))) {
        for factor in [1.0, 0.5, -1.0 / 3.0, 0.1, -0.0, 1e-30, 1e30, 1e300, f64::INFINITY, f64::NAN] {
            let apply = |bytes: &mut [u8]| dispatch::multiply(isa, dtype, bytes, factor);
            check_each(dtype, apply, |sample| reference::multiply(dtype, sample, factor));
        }
    }
}

/// Returns the factor of the contributions of `ranks` ranks, and the divisor of their sum.
fn expected_scaling(reduction: Reduction, ranks: usize) -> (Option<f64>, Option<f64>) {
    let half = matches!(reduction.dtype, DType::F16 | DType::BF16);
    match (reduction.op, ranks) {
        (ReduceOp::PreMulSum(factor), _) => (Some(factor), None),
        (ReduceOp::Avg, _) if !half => (None, Some(ranks as f64)),
        (ReduceOp::Avg, 3) => (Some(0.25), Some(0.75)),
        (ReduceOp::Avg, 5) => (Some(0.125), Some(0.625)),
        (ReduceOp::Avg, 8) => (Some(0.125), None),
        (ReduceOp::Avg, 70_000) => (Some(1.0 / 131_072.0), Some(70_000.0 / 131_072.0)),
        _ => (None, None),
    }
}

#[test]
#[cfg_attr(miri, ignore = "about values, not memory")]
fn contributions_are_multiplied_before_and_averages_divided_after() {
    for (reduction, ranks) in every_reduction().flat_map(|r| [1, 3, 5, 8, 70_000].map(|ranks| (r, ranks))) {
        let dtype = reduction.dtype;
        let (factor, divisor) = expected_scaling(reduction, ranks);
        let started = |sample| factor.map_or(sample, |factor| reference::multiply(dtype, sample, factor));
        check_each(dtype, |bytes| reduction.start(bytes, ranks), started);
        let finished = |sample| divisor.map_or(sample, |divisor| reference::divide(dtype, sample, divisor));
        check_each(dtype, |bytes| reduction.finish(bytes, ranks), finished);
        assert_eq!(reduction.has_start(ranks), factor.is_some(), "{reduction:?}, {ranks} ranks");
        assert!(reduction.has_finish() || divisor.is_none(), "{reduction:?}, {ranks} ranks");
    }
}

#[test]
#[cfg_attr(miri, ignore = "about values, not memory")]
fn combining_and_finishing_in_one_pass_is_bit_identical_to_two_passes() {
    for (reduction, ranks) in every_reduction().flat_map(|r| [1, 2, 3, 8, 70_000].map(|ranks| (r, ranks))) {
        let samples = samples(reduction.dtype);
        let from = to_bytes(reduction.dtype, samples.iter().copied());
        for left in &samples {
            let left = to_bytes(reduction.dtype, vec![*left; samples.len()]);
            let mut expected = left.clone();
            reduction.combine(&mut expected, None, RecvBuf::from_slice(&from));
            reduction.finish(&mut expected, ranks);
            let (last, mut in_place, mut apart) = (reduction.completing(ranks), left.clone(), from.clone());
            assert_eq!(last.combine(&mut in_place, None, RecvBuf::from_slice(&from)), from.len());
            last.combine(&mut apart, Some(&left), RecvBuf::from_slice(&from));
            assert!(in_place == expected && apart == expected, "{reduction:?}, {ranks} ranks");
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "about values, not memory")]
fn results_in_shared_memory_are_bit_identical_and_no_other_byte_is_written() {
    let lens =
        [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 2 * BLOCK_BYTES + 8, 3 * BLOCK_BYTES - 7];
    let bytes = |reduction: Reduction, seed| to_bytes(reduction.dtype, Random(seed).take(4 * BLOCK_BYTES));
    for reduction in every_reduction().flat_map(|reduction| [reduction, reduction.completing(3)]) {
        let [left, right] = [11, 12].map(|seed| bytes(reduction, seed));
        for (len, spare) in lens.iter().flat_map(|len| [(*len, 0), (*len, 100)]) {
            let from = RecvBuf::from_slice(&right[..len]);
            let (mut expected, mut in_place) = (left[..len + spare].to_vec(), left[..len + spare].to_vec());
            let mut apart = vec![GUARD; len + spare];
            let used = reduction.combine(&mut expected, None, from);
            let shared = reduction.into_shared(true);
            assert_eq!(shared.combine(&mut in_place, None, from), used, "{reduction:?}, {len} bytes");
            assert_eq!(shared.combine(&mut apart, Some(&left), from), used, "{reduction:?}, {len} bytes");
            assert!(in_place == expected, "{reduction:?}, {len} bytes in place");
            assert!(apart[..used] == expected[..used], "{reduction:?}, {len} bytes");
            assert!(apart[used..].iter().all(|byte| *byte == GUARD), "{reduction:?}, {len} bytes");
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "about values, not memory")]
fn instruction_sets_agree_on_sums_that_are_divided() {
    for (isa, dtype) in Isa::all().into_iter().flat_map(|isa| [(isa, DType::F32), (isa, DType::F64)]) {
        let (left, right): (Vec<_>, Vec<_>) = Random(3).zip(Random(4)).take(2001).unzip();
        let [left, right] = [left, right].map(|elements| to_bytes(dtype, elements));
        let averaged = |isa| {
            let mut dst = left.clone();
            let operands = PassBuffers { dst: &mut dst, left: None, right: RecvBuf::from_slice(&right) };
            dispatch::average(isa, dtype, operands, 3.0);
            dst
        };
        assert!(averaged(isa) == averaged(Isa::BASELINE), "{isa:?}, {dtype}");
    }
}

#[test]
fn a_reduction_combines_on_the_best_instruction_set() {
    for reduction in every_reduction() {
        let (left, right): (Vec<_>, Vec<_>) = Random(9).zip(Random(10)).take(40).unzip();
        let [addend, from] =
            [&left, &right].map(|elements| to_bytes(reduction.dtype, elements.iter().copied()));
        let mut dst = vec![GUARD; addend.len()];
        assert_eq!(reduction.combine(&mut dst, Some(&addend), RecvBuf::from_slice(&from)), dst.len());
        assert_eq!(from_bytes(reduction.dtype, &dst), combined(Isa::best(), reduction, &left, &right));
    }
}

#[test]
#[cfg_attr(miri, ignore = "about values, not memory")]
fn floats_of_16_bits_widen_exactly() {
    for bits in 0..=u16::MAX {
        for (dtype, wide) in
            [(DType::F16, f16::from_bits(bits).widen()), (DType::BF16, bf16::from_bits(bits).widen())]
        {
            let expected = reference::value(dtype, u64::from(bits));
            assert!(wide.is_nan() == expected.is_nan(), "{dtype} {bits:#x}");
            assert!(wide.is_nan() || wide.to_bits() == (expected as f32).to_bits(), "{dtype} {bits:#x}");
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "about values, not memory")]
fn floats_of_16_bits_are_rounded_to_nearest_even() {
    for (isa, dtype) in Isa::all().into_iter().flat_map(|isa| [(isa, DType::F16), (isa, DType::BF16)]) {
        let one = reference::nearest(dtype, 1.0);
        let infinity = reference::infinity(dtype);
        for magnitude in 0..infinity {
            let exact = reference::unbounded(dtype, magnitude);
            let half_way = exact.midpoint(reference::unbounded(dtype, magnitude + 1)) as f32;
            for number in [exact as f32, half_way.next_down(), half_way, half_way.next_up()] {
                for number in [number, -number].map(f64::from) {
                    // A block, and a single element. The product with one is rounded.
                    let mut ones = to_bytes(dtype, [one; 9]);
                    dispatch::multiply(isa, dtype, &mut ones, number);
                    assert_eq!(
                        from_bytes(dtype, &ones),
                        [reference::nearest(dtype, number); 9],
                        "{isa:?} {number:e}"
                    );
                }
            }
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "about values, not memory")]
fn conversions_widen_exactly_and_round_to_nearest() {
    for (isa, half) in Isa::all().into_iter().flat_map(|isa| [(isa, DType::F16), (isa, DType::BF16)]) {
        let halves = to_bytes(half, 0..=u64::from(u16::MAX));
        let mut wides = vec![GUARD; 2 * halves.len()];
        convert::widen(isa, half, &halves, &mut wides, Widen(1.0));
        for (bits, wide) in (0..).zip(from_bytes(DType::F32, &wides)) {
            let (wide, expected) = (reference::value(DType::F32, wide), reference::value(half, bits));
            assert!(
                wide.total_cmp(&expected).is_eq() || wide.is_nan() && expected.is_nan(),
                "{isa:?} {bits:#x}"
            );
        }
        let numbers: Vec<u64> =
            samples(DType::F32).into_iter().chain(from_bytes(DType::F32, &wides)).collect();
        let mut narrow = vec![GUARD; 2 * numbers.len()];
        let bytes = to_bytes(DType::F32, numbers.iter().copied());
        convert::narrow(isa, half, &bytes, &mut narrow, Narrow(1.0));
        for (number, rounded) in numbers.iter().zip(from_bytes(half, &narrow)) {
            assert_eq!(rounded, reference::rounded(half, *number), "{isa:?} {number:#x}");
        }
    }
}

#[test]
fn as_many_elements_are_converted_as_both_hold_at_any_alignment() {
    let (halves, wides) =
        (to_bytes(DType::F16, Random(11).take(40)), to_bytes(DType::F32, Random(12).take(40)));
    for isa in Isa::all() {
        for (given, space) in (0..=20).flat_map(|given| [0, 7, 8, 9, 17].map(|space| (given, space))) {
            let count = given.min(space);
            let mut wide = vec![GUARD; 1 + 4 * space + 4];
            convert::widen(
                isa,
                DType::F16,
                &halves[1..][..2 * given],
                &mut wide[1..][..4 * space],
                Widen(1.0),
            );
            assert!(wide[1 + 4 * count..].iter().all(|byte| *byte == GUARD), "{isa:?} {given} {space}");
            assert!(wide[..1] == [GUARD] && (count == 0 || wide[1..][..4 * count] != vec![GUARD; 4 * count]));
            let mut narrow = vec![GUARD; 1 + 2 * space + 2];
            convert::narrow(
                isa,
                DType::F16,
                &wides[1..][..4 * given],
                &mut narrow[1..][..2 * space],
                Narrow(1.0),
            );
            assert!(narrow[1 + 2 * count..].iter().all(|byte| *byte == GUARD), "{isa:?} {given} {space}");
            assert!(narrow[..1] == [GUARD]);
        }
    }
}
