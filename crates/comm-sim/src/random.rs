//! A small seeded generator, so that every failure can be reproduced from its seed.

/// The splitmix64 generator: good enough to randomize tests, and the same on every machine.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    /// Creates a generator from a seed and the number of a stream, so that several users can share
    /// one seed.
    pub(crate) const fn new(seed: u64, stream: u64) -> Self {
        Self(seed ^ mix(stream.wrapping_add(0x9e37_79b9_7f4a_7c15)))
    }

    /// Returns a random number.
    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Returns a number below `end`, or zero if `end` is zero.
    pub(crate) const fn below(&mut self, end: usize) -> usize {
        if end == 0 { 0 } else { (self.next() % end as u64) as usize }
    }

    /// Returns true about once in `of` calls.
    pub(crate) const fn one_in(&mut self, of: usize) -> bool {
        self.below(of) == 0
    }

    /// Returns the number of bytes to move in one call, at most `most`: often few, sometimes none,
    /// sometimes all.
    pub(crate) fn short(&mut self, most: usize) -> usize {
        if self.one_in(4) {
            return 0;
        }
        let bits = self.below(18);
        (1 + self.below(1 << bits)).min(most)
    }
}

/// Returns the finalizer of splitmix64: every bit of `z` changes about half the bits of the result.
pub(crate) const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
