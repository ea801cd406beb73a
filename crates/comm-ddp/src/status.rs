//! The status of a step, which ranks exchange in a few elements that are averaged with the
//! gradients.

use std::time::Duration;

use comm_core::{DType, bytemuck};

/// The state of a step on this rank.
#[derive(Debug, Clone)]
pub(crate) struct Status {
    /// The weight of this rank's gradients.
    pub(crate) weight: f64,
    /// Whether this rank has a batch.
    pub(crate) is_active: bool,
    /// Whether this rank asks all to stop after this step.
    pub(crate) stops: bool,
    /// Whether all gradients of this rank are finite, as far as that is checked.
    pub(crate) is_finite: bool,
    /// Whether this rank uses other parameters than expected.
    pub(crate) deviates: bool,
    /// Whether this rank needs the state of the rank before it.
    pub(crate) lacks_replica: bool,
    /// The time from the last status to the end of backward, zero if there was none.
    pub(crate) time: Duration,
    /// A digest of the settings that all ranks must share, if there are any.
    pub(crate) digest: Option<u32>,
    /// Whether this rank has a gradient, by slot. Empty if ranks do not exchange it.
    pub(crate) used: Vec<bool>,
}

/// The state of a step on all ranks together, the same on each.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct GroupStatus {
    /// The mean of the weights of all ranks.
    pub(crate) mean_weight: f64,
    /// The number of ranks that have a batch.
    pub(crate) active: usize,
    /// Whether any rank asks all to stop.
    pub(crate) stops: bool,
    /// Whether the gradients of all ranks are finite, as far as that is checked.
    pub(crate) is_finite: bool,
    /// Whether any rank uses other parameters than expected.
    pub(crate) deviates: bool,
    /// Whether any rank needs the state of the rank before it.
    pub(crate) lacks_replica: bool,
    /// Whether the digests of ranks differ.
    pub(crate) digests_differ: bool,
    /// The time of each rank; `None` without a batch.
    pub(crate) times: Vec<Option<Duration>>,
    /// Whether any rank has a gradient, by slot. Empty as in [`Status`].
    pub(crate) used: Vec<bool>,
}

/// The number of elements before the elements of the ranks.
const HEAD: usize = 6;

/// The number of elements of a status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StatusLayout {
    /// The number of ranks; each has an element.
    pub(crate) ranks: usize,
    /// Whether there is a digest, which has an element per bit: it is zero or one in the average
    /// only if all ranks have the same bit.
    pub(crate) has_digest: bool,
    /// The number of parameters for which ranks exchange whether they use them.
    pub(crate) parameters: usize,
}

impl StatusLayout {
    /// Returns the number of elements.
    pub(crate) const fn len(self) -> usize {
        self.used() + self.parameters
    }

    /// Returns the position of the first element of a parameter.
    const fn used(self) -> usize {
        HEAD + self.ranks + if self.has_digest { u32::BITS as usize } else { 0 }
    }
}

impl Status {
    /// Creates the status of a step that begins.
    pub(crate) const fn new(weight: f64, is_active: bool) -> Self {
        Self {
            weight,
            is_active,
            stops: false,
            is_finite: true,
            deviates: false,
            lacks_replica: false,
            time: Duration::ZERO,
            digest: None,
            used: Vec::new(),
        }
    }

    /// Encodes the status of one of `ranks` ranks as elements of this type, whose averages can be
    /// decoded.
    pub(crate) fn to_bytes(&self, rank: usize, ranks: usize, dtype: DType) -> Vec<u8> {
        let flag = |flag| f64::from(u8::from(flag));
        let head = [self.is_active, self.stops, !self.is_finite, self.deviates, self.lacks_replica].map(flag);
        // Each rank has an element of its own. It is zero without a batch.
        let mut of_ranks = vec![0.0; ranks];
        if self.is_active {
            of_ranks[rank] = 1.0 + self.time.as_secs_f64();
        }
        let digest = self.digest.iter().flat_map(|digest| (0..u32::BITS).map(move |bit| digest >> bit & 1));
        let flags = digest.map(f64::from).chain(self.used.iter().copied().map(flag));
        let elements = std::iter::once(self.weight).chain(head).chain(of_ranks).chain(flags);
        if dtype == DType::F64 {
            elements.flat_map(f64::to_ne_bytes).collect()
        } else {
            elements.flat_map(|element| (element as f32).to_ne_bytes()).collect()
        }
    }
}

impl GroupStatus {
    /// Decodes the average over all ranks of the elements that [`Status::to_bytes`] encodes.
    pub(crate) fn from_bytes(bytes: &[u8], dtype: DType, layout: StatusLayout) -> Self {
        let ranks = layout.ranks;
        let elements: Vec<f64> = if dtype == DType::F64 {
            bytes.chunks_exact(size_of::<f64>()).map(bytemuck::pod_read_unaligned).collect()
        } else {
            let narrow = bytes.chunks_exact(size_of::<f32>()).map(bytemuck::pod_read_unaligned::<f32>);
            narrow.map(f64::from).collect()
        };
        let element = |at: usize| elements.get(at).copied().unwrap_or_default();
        let time = |rank| {
            let own = element(HEAD + rank) * ranks as f64;
            (own > 0.5).then(|| Duration::try_from_secs_f64((own - 1.0).max(0.0)).unwrap_or_default())
        };
        let is_mixed = |at| (0.5..ranks as f64 - 0.5).contains(&(element(at) * ranks as f64));
        Self {
            mean_weight: element(0),
            active: (element(1) * ranks as f64).round() as usize,
            stops: element(2) != 0.0,
            is_finite: element(3) == 0.0,
            deviates: element(4) != 0.0,
            lacks_replica: element(5) != 0.0,
            digests_differ: (HEAD + ranks..layout.used()).any(is_mixed),
            times: (0..ranks).map(time).collect(),
            used: elements.iter().skip(layout.used()).map(|mark| *mark != 0.0).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_averaged_status_is_decoded() {
        let status = |rank: usize| Status {
            weight: rank as f64,
            is_active: rank != 1,
            stops: rank == 2,
            is_finite: rank != 4,
            deviates: rank == 0,
            lacks_replica: rank == 1,
            time: Duration::from_millis(125 * rank as u64),
            digest: Some(if rank == 3 { 0x8000_0005 } else { 5 }),
            used: vec![rank == 3, false, true],
        };
        let layout = StatusLayout { ranks: 5, has_digest: true, parameters: 3 };
        for dtype in [DType::F32, DType::F64] {
            let sum = (0..5).map(|rank| decode(&status(rank).to_bytes(rank, 5, dtype), dtype));
            let sum = sum.reduce(|sum, next| sum.iter().zip(&next).map(|(a, b)| a + b).collect()).unwrap();
            assert_eq!(sum.len(), layout.len());
            let average: Vec<f64> = sum.iter().map(|element| element / 5.0).collect();
            let mut group = GroupStatus::from_bytes(&encode(&average, dtype), dtype, layout);
            let micros = |time: Option<Duration>| time.map(|time| (time.as_secs_f64() * 1e6).round() as u64);
            let times: Vec<Option<u64>> = std::mem::take(&mut group.times).into_iter().map(micros).collect();
            assert_eq!(times, [Some(0), None, Some(250_000), Some(375_000), Some(500_000)]);
            let expected = GroupStatus {
                mean_weight: 2.0,
                active: 4,
                stops: true,
                is_finite: false,
                deviates: true,
                lacks_replica: true,
                digests_differ: true,
                times: Vec::new(),
                used: vec![true, false, true],
            };
            assert_eq!(group, expected);
        }
    }

    #[test]
    fn digests_differ_if_one_bit_of_one_rank_does() {
        for ranks in [1, 2, 3, 49, 1000] {
            let layout = StatusLayout { ranks, has_digest: true, parameters: 0 };
            for bit in [0, 13, 31] {
                for with_it in [0, 1, ranks / 2, ranks - 1, ranks] {
                    let mut average = vec![0.0; layout.len()];
                    average[HEAD + ranks + bit] = with_it as f64 / ranks as f64;
                    let bytes = encode(&average, DType::F32);
                    let differ = GroupStatus::from_bytes(&bytes, DType::F32, layout).digests_differ;
                    assert_eq!(differ, with_it != 0 && with_it != ranks, "{with_it} of {ranks}");
                }
            }
        }
    }

    fn decode(bytes: &[u8], dtype: DType) -> Vec<f64> {
        if dtype == DType::F64 {
            return bytes.chunks_exact(8).map(bytemuck::pod_read_unaligned).collect();
        }
        bytes.chunks_exact(4).map(|element| f64::from(bytemuck::pod_read_unaligned::<f32>(element))).collect()
    }

    fn encode(elements: &[f64], dtype: DType) -> Vec<u8> {
        if dtype == DType::F64 {
            return elements.iter().flat_map(|element| element.to_ne_bytes()).collect();
        }
        elements.iter().flat_map(|element| (*element as f32).to_ne_bytes()).collect()
    }
}
