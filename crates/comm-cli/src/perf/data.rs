//! Data whose reductions are exact in every element type and order, so results compare bit for bit.

use comm::ReduceOp;

/// The largest integer up to which all are exact in every type: `bf16` has 8 bits of precision.
const EXACT: u64 = 256;

/// Contributions, which are integers from 0 to 256, and their reductions.
///
/// Sums and averages are exact in 16 bits for up to 256 ranks, all others for any number of ranks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Data {
    ranks: u64,
    /// `None` if the collective does not reduce.
    op: Option<ReduceOp>,
}

impl Data {
    pub(crate) const fn new(ranks: usize, op: Option<ReduceOp>) -> Self {
        Self { ranks: ranks as u64, op }
    }

    /// Element `index` of the contribution of `rank`.
    pub(crate) fn contribution(&self, rank: usize, index: usize) -> u64 {
        let (rank, index) = (rank as u64, index as u64);
        match self.op {
            Some(ReduceOp::Sum | ReduceOp::Min | ReduceOp::Max) => self.summand(rank, index),
            // The factor is 1/2.
            Some(ReduceOp::PreMulSum(_)) => 2 * self.summand(rank, index),
            Some(ReduceOp::Prod) => 1 << self.exponent(rank, index),
            Some(ReduceOp::Avg) => self.averaged(rank, index),
            _ => mix(rank, index) % EXACT,
        }
    }

    /// Element `index` of the reduction of all contributions.
    pub(crate) fn reduced(&self, index: usize) -> u64 {
        self.reduced_below(self.ranks as usize, index)
    }

    /// Element `index` of the reduction of ranks 0 to `ranks` - 1.
    pub(crate) fn reduced_below(&self, ranks: usize, index: usize) -> u64 {
        let all = (0..ranks as u64).map(|rank| self.contribution(rank as usize, index));
        match self.op {
            Some(ReduceOp::Prod) => all.product(),
            Some(ReduceOp::Min) => all.min().unwrap_or_default(),
            Some(ReduceOp::Max) => all.max().unwrap_or_default(),
            Some(ReduceOp::Avg) => all.sum::<u64>() / self.ranks,
            Some(ReduceOp::PreMulSum(_)) => all.sum::<u64>() / 2,
            Some(ReduceOp::BitAnd) => all.fold(u64::MAX, |a, b| a & b),
            Some(ReduceOp::BitOr) => all.fold(0, |a, b| a | b),
            Some(ReduceOp::BitXor) => all.fold(0, |a, b| a ^ b),
            _ => all.sum(),
        }
    }

    /// A number so small that the sum over all ranks is exact, and its double too.
    fn summand(&self, rank: u64, index: u64) -> u64 {
        let values = (EXACT / self.ranks).clamp(2, EXACT / 2);
        if self.takes_part(rank, index, EXACT / 2) { mix(rank, index) % values } else { 0 }
    }

    /// A power of 2 above 0 for at most 8 ranks, so that the product of all is exact.
    fn exponent(&self, rank: u64, index: u64) -> u64 {
        if self.takes_part(rank, index, 8) { mix(rank, index) % 2 } else { 0 }
    }

    /// Whether `rank` is one of the `chosen` ranks of this element.
    fn takes_part(&self, rank: u64, index: u64, chosen: u64) -> bool {
        (rank + index) % self.ranks < chosen
    }

    /// A number whose average over the ranks is an integer. It differs between ranks if the sum
    /// stays exact.
    fn averaged(&self, rank: u64, index: u64) -> u64 {
        let share = EXACT / self.ranks;
        let (own, common) = match (share + 1).checked_sub(self.ranks) {
            // The average of the first term over the ranks is ranks - 1.
            Some(rest) => (2 * ((rank + index) % self.ranks), rest),
            None => (0, share),
        };
        own + mix(0, index) % (common + 1)
    }
}

/// Hashes rank and index, so that a misplaced block differs from the expected one.
fn mix(rank: u64, index: u64) -> u64 {
    let seed = index.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (rank + 1).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (seed ^ seed >> 29).wrapping_mul(0x94d0_49bb_1331_11eb) >> 40
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORLDS: [usize; 10] = [1, 2, 3, 5, 8, 13, 16, 17, 100, 256];

    #[test]
    fn every_partial_result_is_exact_in_sixteen_bits() {
        for ranks in WORLDS {
            for op in ReduceOp::ALL {
                let data = Data::new(ranks, Some(op));
                for index in 0..300 {
                    let all = (0..ranks).map(|rank| data.contribution(rank, index));
                    let most: u64 = match op {
                        ReduceOp::Prod => all.product(),
                        ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PreMulSum(_) => all.sum(),
                        _ => all.max().unwrap(),
                    };
                    let limit = if matches!(op, ReduceOp::PreMulSum(_)) { 2 * EXACT } else { EXACT };
                    assert!(most <= limit, "{op} of {ranks}: {most}");
                }
            }
        }
    }

    #[test]
    fn averages_and_halves_are_whole() {
        for ranks in WORLDS {
            for (op, by) in [(ReduceOp::Avg, ranks as u64), (ReduceOp::PreMulSum(0.5), 2)] {
                let data = Data::new(ranks, Some(op));
                for index in 0..100 {
                    let sum: u64 = (0..ranks).map(|rank| data.contribution(rank, index)).sum();
                    assert_eq!(data.reduced(index) * by, sum);
                }
            }
        }
    }

    #[test]
    fn ranks_and_elements_differ() {
        for op in [None, Some(ReduceOp::Sum), Some(ReduceOp::Avg), Some(ReduceOp::BitXor)] {
            let data = Data::new(4, op);
            let vector = |rank| (0..64).map(|index| data.contribution(rank, index)).collect::<Vec<_>>();
            assert!(vector(0) != vector(1) && vector(1) != vector(2), "{op:?}");
            assert!(vector(0)[..32] != vector(0)[32..], "{op:?}");
        }
    }
}
