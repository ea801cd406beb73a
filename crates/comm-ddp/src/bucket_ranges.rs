//! Buckets of consecutive values, for the adapters of frameworks.

use std::ops::Range;

/// Returns the ranges of values that share a bucket, in order: as many as fit, and at least one.
pub fn bucket_ranges(bytes: &[usize], bucket_bytes: usize) -> Vec<Range<usize>> {
    let mut buckets: Vec<Range<usize>> = Vec::new();
    let mut filled = 0_usize;
    for (at, bytes) in bytes.iter().enumerate() {
        filled = filled.saturating_add(*bytes);
        match buckets.last_mut().filter(|_| filled <= bucket_bytes) {
            Some(bucket) => bucket.end = at + 1,
            None => {
                buckets.push(at..at + 1);
                filled = *bytes;
            }
        }
    }
    buckets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_filled_in_order_and_an_oversized_value_gets_its_own() {
        assert_eq!(bucket_ranges(&[3, 4, 1, 9, 0, 2, 8, 0], 8), [0..3, 3..4, 4..6, 6..8]);
        assert_eq!(bucket_ranges(&[5, 5], 0), [0..1, 1..2]);
        assert!(bucket_ranges(&[], 8).is_empty());
    }
}
