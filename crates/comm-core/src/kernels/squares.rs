//! The sum of squares, in an order that suits vector instructions and devices.
//!
//! Element `i` is in lane `i % 16` and row `i / 16`. In each lane, 64 rows are added in order, then
//! 64 of these sums, and so on; finally the lanes are added. A device adds each lane of 64 rows in
//! a separate thread, and gets the same bits.

use bytemuck::Pod;

/// The number of elements in a row. Their sums are independent of each other.
const LANES: usize = 16;
/// The number of rows, or of sums of rows, that are added in order.
const ROWS: usize = 64;
/// The number of levels, which suffices for a buffer of `usize::MAX` bytes.
const LEVELS: usize = 10;

type Lanes = [f64; LANES];

/// Sums of at most [`ROWS`] terms, one per lane.
#[derive(Debug, Clone, Copy, Default)]
struct LaneSums {
    lanes: Lanes,
    terms: usize,
}

impl LaneSums {
    fn add(&mut self, terms: &[f64]) {
        self.lanes.iter_mut().zip(terms).for_each(|(sum, term)| *sum += term);
        self.terms += 1;
    }
}

/// Returns the sum of the squares of floats. A NaN result is the positive quiet NaN without
/// payload.
pub(super) fn sum_of_squares<T: Pod + Into<f64>>(bytes: &[u8]) -> f64 {
    let floats: &[T] = bytemuck::cast_slice(bytes);
    let mut levels = [LaneSums::default(); LEVELS];
    for group in floats.chunks(LANES * ROWS) {
        let mut sums = add_rows(group);
        for level in &mut levels {
            level.add(&sums);
            if level.terms < ROWS {
                break;
            }
            sums = std::mem::take(level).lanes;
        }
    }
    let mut rest = Lanes::default();
    for level in &mut levels {
        level.add(&rest);
        rest = level.lanes;
    }
    let sum: f64 = rest.into_iter().sum();
    if sum.is_nan() { f64::from_bits(0x7ff8_0000_0000_0000) } else { sum }
}

/// Adds the squares of at most [`ROWS`] rows in each lane.
fn add_rows<T: Pod + Into<f64>>(group: &[T]) -> Lanes {
    let (rows, rest) = group.as_chunks::<LANES>();
    let mut sums = Lanes::default();
    for row in rows {
        for (sum, float) in sums.iter_mut().zip(row) {
            let float: f64 = (*float).into();
            *sum += float * float;
        }
    }
    for (sum, float) in sums.iter_mut().zip(rest) {
        let float: f64 = (*float).into();
        *sum += float * float;
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds groups of rows of all lanes, level by level.
    fn by_levels(mut terms: Vec<f64>) -> f64 {
        loop {
            let sums = terms.chunks(LANES * ROWS).flat_map(|group| {
                (0..LANES)
                    .map(|lane| group.iter().skip(lane).step_by(LANES).fold(0.0, |sum, term| sum + term))
            });
            terms = sums.collect();
            if terms.len() <= LANES {
                return terms.iter().fold(0.0, |sum, term| sum + term);
            }
        }
    }

    #[test]
    fn the_order_is_that_of_the_levels() {
        for len in [0, 1, 15, 16, 17, 1023, 1024, 1025, 65_536, 65_537, 200_003] {
            let number = |at: u64| (crate::wire::digest([at]) >> 11) as f64 * 0.001;
            let numbers: Vec<f64> = (0..len as u64).map(number).collect();
            let expected = by_levels(numbers.iter().map(|number| number * number).collect());
            assert_eq!(
                sum_of_squares::<f64>(bytemuck::cast_slice(&numbers)).to_bits(),
                expected.to_bits(),
                "{len}"
            );
        }
    }

    #[test]
    fn a_sum_that_is_not_a_number_has_one_representation() {
        let negative = f32::from_bits(0xffc0_0001);
        assert_eq!(sum_of_squares::<f32>(bytemuck::cast_slice(&[1.0, negative])).to_bits(), 0x7ff8 << 48);
        assert_eq!(
            sum_of_squares::<f32>(bytemuck::cast_slice(&[f32::MAX, f32::NEG_INFINITY])),
            f64::INFINITY
        );
    }
}
