//! Every partition covers its array exactly once and in order.

use comm_core::{Blocks, Partition};
use proptest::prelude::*;

/// Checks that the bytes of all blocks, in order, cover `0..end` without gaps.
fn covers(partition: &Partition, end: usize) -> Result<(), TestCaseError> {
    let mut position = 0;
    for block in 0..partition.blocks() {
        let bytes = partition.bytes(Blocks::one(block));
        let bytes = bytes.ok_or_else(|| TestCaseError::fail(format!("block {block} is not there")))?;
        prop_assert_eq!(bytes.start, position);
        prop_assert!(bytes.len() <= partition.block_bytes_max());
        prop_assert_eq!(partition.size(Blocks::one(block)), Some(bytes.len()));
        position = bytes.end;
    }
    prop_assert_eq!(position, end);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn even_chunks_cover_the_array(
        elements in 0..5000_usize, chunks in 1..40_usize, segments in 1..9_usize, size in 1..9_usize,
    ) {
        let partition = Partition::even(elements, chunks).segments(segments).element_bytes(size);
        prop_assert_eq!(partition.blocks(), chunks * segments);
        covers(&partition, elements * size)?;
    }

    #[test]
    fn given_chunks_cover_the_array(
        counts in proptest::collection::vec(0..200_usize, 1..20), segments in 1..9_usize, size in 1..9_usize,
    ) {
        let partition = Partition::given(&counts).segments(segments).element_bytes(size);
        covers(&partition, counts.iter().sum::<usize>() * size)?;
    }

    #[test]
    fn a_range_of_blocks_is_the_bytes_of_its_blocks(
        counts in proptest::collection::vec(0..200_usize, 1..20), segments in 1..5_usize,
        from in any::<prop::sample::Index>(), to in any::<prop::sample::Index>(),
    ) {
        let partition = Partition::given(&counts).segments(segments).element_bytes(4);
        let blocks = partition.blocks();
        let (a, b) = (from.index(blocks), to.index(blocks));
        let (first, last) = (a.min(b), a.max(b));
        let range = partition.bytes(Blocks { first, count: last - first + 1 });
        let start = partition.bytes(Blocks::one(first)).map(|bytes| bytes.start);
        let end = partition.bytes(Blocks::one(last)).map(|bytes| bytes.end);
        prop_assert_eq!(range.clone().map(|bytes| bytes.start), start);
        prop_assert_eq!(range.map(|bytes| bytes.end), end);
    }
}
