//! The division of a state among the ranks that save it.

use std::collections::BTreeMap;
use std::ops::Range;

use safetensors::Dtype;
use serde::{Deserialize, Serialize};

use crate::error::Coverage;
use crate::state::State;
use crate::{Error, Result, dtype};

/// The description of a rank's state, which all ranks exchange.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Offer {
    tensors: BTreeMap<String, Offered>,
    /// The values of rank 0; empty on other ranks.
    pub(crate) values: BTreeMap<String, serde_json::Value>,
    /// Whether the rank's folder has a complete checkpoint of the step.
    pub(crate) exists: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Offered {
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    is_sharded: bool,
    pub(crate) elements: Range<usize>,
    bytes: u64,
}

/// A tensor and the ranks that write it, each with its elements, sorted by element.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Assigned {
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    pub(crate) writers: Vec<(usize, Range<usize>)>,
}

impl Offer {
    pub(crate) fn new(state: &State<'_>, rank: usize, exists: bool) -> Self {
        let describe = |(name, tensor): (&String, &crate::state::Tensor<'_>)| {
            let start = tensor.start.unwrap_or(0);
            let elements = start..start + tensor.bytes.len() / tensor.dtype.size();
            // The type was checked when the tensor was added.
            let offered = dtype::to_safetensors(tensor.dtype).map(|dtype| Offered {
                dtype,
                shape: tensor.shape.clone(),
                is_sharded: tensor.start.is_some(),
                elements,
                bytes: tensor.bytes.len() as u64,
            });
            offered.map(|offered| (name.clone(), offered))
        };
        let values = if rank == 0 { state.values.clone() } else { BTreeMap::new() };
        Self { tensors: state.tensors.iter().filter_map(describe).collect(), values, exists }
    }
}

impl Offered {
    /// Describes the tensor in errors.
    fn text(&self) -> String {
        let kind = if self.is_sharded { "a shard" } else { "a replica" };
        format!("{kind} of {:?} {:?}", self.dtype, self.shape)
    }

    fn fits(&self, other: &Self) -> bool {
        (self.dtype, &self.shape, self.is_sharded) == (other.dtype, &other.shape, other.is_sharded)
    }
}

/// Assigns every tensor to the ranks that write it. Replicated tensors, largest first, are assigned
/// to the rank that so far writes the fewest bytes. All ranks get the same result from the same
/// offers.
///
/// # Errors
/// [`Error::Mismatch`] and [`Error::Coverage`].
pub(crate) fn assign(offers: &[Offer]) -> Result<BTreeMap<String, Assigned>> {
    let mut by_name: BTreeMap<&String, Vec<(usize, &Offered)>> = BTreeMap::new();
    for (rank, offer) in offers.iter().enumerate() {
        for (name, offered) in &offer.tensors {
            by_name.entry(name).or_default().push((rank, offered));
        }
    }
    let mut load = vec![0; offers.len()];
    let mut assigned = BTreeMap::new();
    let mut replicated = Vec::new();
    for (name, holders) in by_name {
        let (reference, first) = holders[0];
        if let Some((rank, other)) = holders.iter().find(|(_, other)| !other.fits(first)) {
            let (theirs, ours) = (other.text(), first.text());
            return Err(Error::Mismatch { name: name.clone(), rank: *rank, theirs, reference, ours });
        }
        if first.is_sharded {
            holders.iter().for_each(|(rank, shard)| load[*rank] += shard.bytes);
            let writers = cover(name, first.shape.iter().product(), &holders)?;
            let Offered { dtype, shape, .. } = (*first).clone();
            assigned.insert(name.clone(), Assigned { dtype, shape, writers });
        } else {
            replicated.push((name, holders));
        }
    }
    replicated.sort_by(|(a, of_a), (b, of_b)| of_b[0].1.bytes.cmp(&of_a[0].1.bytes).then(a.cmp(b)));
    for (name, holders) in replicated {
        let Some((rank, offered)) = holders.into_iter().min_by_key(|(rank, _)| load[*rank]) else { continue };
        load[rank] += offered.bytes;
        let Offered { dtype, shape, elements, .. } = offered.clone();
        assigned.insert(name.clone(), Assigned { dtype, shape, writers: vec![(rank, elements)] });
    }
    Ok(assigned)
}

/// Sorts shards by their elements. Returns an error if they do not cover the tensor exactly once.
fn cover(name: &str, total: usize, holders: &[(usize, &Offered)]) -> Result<Vec<(usize, Range<usize>)>> {
    let mut writers: Vec<(usize, Range<usize>)> = holders
        .iter()
        .map(|(rank, shard)| (*rank, shard.elements.clone()))
        .filter(|(_, elements)| !elements.is_empty())
        .collect();
    writers.sort_by_key(|(_, elements)| elements.start);
    let end = std::iter::once(total..total);
    let mut covered = 0;
    for elements in writers.iter().map(|(_, elements)| elements.clone()).chain(end) {
        let fault = |fault, elements| Err(Error::Coverage { name: name.to_owned(), elements, fault });
        if elements.start > covered {
            return fault(Coverage::Missing, covered..elements.start);
        }
        if elements.start < covered {
            return fault(Coverage::Duplicate, elements.start..covered.min(elements.end));
        }
        covered = elements.end;
    }
    Ok(writers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offers(states: &[State<'_>]) -> Vec<Offer> {
        let offer = |(rank, state)| Offer::new(state, rank, false);
        states.iter().enumerate().map(offer).collect()
    }

    #[test]
    fn replicated_tensors_are_divided_by_bytes_and_shards_stay_with_their_ranks() {
        let (large, small, shard) = ([0_f32; 100], [0_f32; 10], [0_f64; 7]);
        let states = [0, 1].map(|rank| {
            let mut state = State::new();
            state.tensor("large", &[100], &large).unwrap();
            state.tensor("a", &[2, 5], &small).unwrap().tensor("b", &[10], &small).unwrap();
            state.shard("moments", &[14], 7 * rank, &shard).unwrap();
            state
        });
        let assigned = assign(&offers(&states)).unwrap();
        let writers = |name: &str| assigned[name].writers.clone();
        assert_eq!(writers("large"), [(0, 0..100)]);
        assert_eq!((writers("a"), writers("b")), (vec![(1, 0..10)], vec![(1, 0..10)]));
        assert_eq!(writers("moments"), [(0, 0..7), (1, 7..14)]);
    }

    #[test]
    fn shards_must_cover_a_tensor_exactly_once() {
        let data = [0_u8; 9];
        let outcome = |parts: &[(usize, usize)]| {
            let state = |&(start, length): &(usize, usize)| {
                let mut state = State::new();
                state.shard("s", &[9], start, &data[..length]).unwrap();
                state
            };
            assign(&offers(&parts.iter().map(state).collect::<Vec<_>>()))
        };
        for whole in [&[(0, 9)][..], &[(4, 5), (0, 4)], &[(0, 0), (0, 9), (9, 0)]] {
            assert!(outcome(whole).is_ok(), "{whole:?}");
        }
        for (parts, expected, of) in [
            (&[(0, 4), (5, 4)][..], 4..5, Coverage::Missing),
            (&[(0, 8)], 8..9, Coverage::Missing),
            (&[(0, 0)], 0..9, Coverage::Missing),
            (&[(0, 5), (4, 5)], 4..5, Coverage::Duplicate),
            (&[(0, 9), (3, 2)], 3..5, Coverage::Duplicate),
        ] {
            match outcome(parts).unwrap_err() {
                Error::Coverage { elements, fault, .. } => assert_eq!((elements, fault), (expected, of)),
                other => panic!("{other}"),
            }
        }
    }

    #[test]
    fn ranks_that_describe_a_tensor_differently_are_named() {
        let data = [0_f32; 6];
        let state = |shape: &[usize]| {
            let mut state = State::new();
            state.tensor("w", shape, &data).unwrap();
            state
        };
        let error = assign(&offers(&[State::new(), state(&[2, 3]), state(&[3, 2])])).unwrap_err();
        assert!(matches!(error, Error::Mismatch { rank: 2, reference: 1, .. }), "{error}");
    }
}
