//! The status of a step, which ranks exchange in a few elements that are averaged with the
//! gradients.

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
    /// Whether this rank has a gradient, by slot. Empty if ranks do not exchange that.
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
    /// Whether any rank has a gradient, by slot. Empty as in [`Status`].
    pub(crate) used: Vec<bool>,
}

/// The elements before those of [`Status::used`].
const HEAD: usize = 4;

impl Status {
    /// Creates the status of a step that begins.
    pub(crate) const fn new(weight: f64, is_active: bool) -> Self {
        Self { weight, is_active, stops: false, is_finite: true, used: Vec::new() }
    }

    /// Returns the number of elements for a model with this many parameters.
    pub(crate) const fn len(parameters: usize) -> usize {
        HEAD + parameters
    }

    /// Returns whether elements of this type can carry a status: 16 bits are too few for a weight.
    pub(crate) const fn fits(dtype: DType) -> bool {
        matches!(dtype, DType::F32 | DType::F64)
    }

    /// Encodes the status as elements of this type, of which averages can be decoded.
    pub(crate) fn to_bytes(&self, dtype: DType) -> Vec<u8> {
        let flags =
            [self.is_active, self.stops, !self.is_finite].into_iter().chain(self.used.iter().copied());
        let elements = std::iter::once(self.weight).chain(flags.map(|flag| f64::from(u8::from(flag))));
        if dtype == DType::F64 {
            elements.flat_map(f64::to_ne_bytes).collect()
        } else {
            elements.flat_map(|element| (element as f32).to_ne_bytes()).collect()
        }
    }
}

impl GroupStatus {
    /// Decodes the average over `size` ranks of what [`Status::to_bytes`] encodes.
    pub(crate) fn from_bytes(bytes: &[u8], dtype: DType, size: usize) -> Self {
        let elements: Vec<f64> = if dtype == DType::F64 {
            bytes.chunks_exact(size_of::<f64>()).map(bytemuck::pod_read_unaligned).collect()
        } else {
            let narrow = bytes.chunks_exact(size_of::<f32>()).map(bytemuck::pod_read_unaligned::<f32>);
            narrow.map(f64::from).collect()
        };
        let element = |at: usize| elements.get(at).copied().unwrap_or_default();
        Self {
            mean_weight: element(0),
            active: (element(1) * size as f64).round() as usize,
            stops: element(2) != 0.0,
            is_finite: element(3) == 0.0,
            used: elements.iter().skip(HEAD).map(|mark| *mark != 0.0).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_average_of_what_ranks_say_is_decoded() {
        let status = |rank: usize| Status {
            weight: rank as f64,
            is_active: rank != 1,
            stops: rank == 2,
            is_finite: rank != 4,
            used: vec![rank == 3, false, true],
        };
        for dtype in [DType::F32, DType::F64] {
            let sum = (0..5).map(|rank| status(rank).to_bytes(dtype)).map(|bytes| decode(&bytes, dtype));
            let sum = sum.reduce(|sum, next| sum.iter().zip(&next).map(|(a, b)| a + b).collect()).unwrap();
            assert_eq!(sum.len(), Status::len(3));
            let average: Vec<f64> = sum.iter().map(|element| element / 5.0).collect();
            let group = GroupStatus::from_bytes(&encode(&average, dtype), dtype, 5);
            let used = vec![true, false, true];
            let expected = GroupStatus { mean_weight: 2.0, active: 4, stops: true, is_finite: false, used };
            assert_eq!(group, expected);
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
