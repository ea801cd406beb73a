//! Finds the first difference between the models of several ranks, without communication.

use std::collections::BTreeMap;

use comm_core::DType;
use comm_core::wire::{self, Reader, Writer};

use crate::{Difference, Mismatch, Parameter};

/// Encodes sorted parameters. Encodings are equal exactly if the parameters are equal.
pub(crate) fn encode(parameters: &[Parameter]) -> Vec<u8> {
    let mut to = Writer::new();
    for parameter in parameters {
        to.bytes::<u64>(parameter.name().as_bytes()).put(parameter.dtype().code());
        to.put(u8::from(parameter.is_frozen()));
        to.list::<u64, _>(parameter.shape(), |to, length| _ = to.size::<u64>(*length));
    }
    to.into_vec()
}

/// Decodes the parameters of another process.
pub(crate) fn decode(bytes: &[u8]) -> wire::Result<Vec<Parameter>> {
    wire::decode(bytes, |r| {
        r.list_to_end(usize::MAX, |r| {
            let name = r.text::<u64>(usize::MAX)?.to_owned();
            let dtype = r.code("element type", DType::from_code)?;
            let is_frozen = r.flag("whether a parameter is frozen")?;
            let shape = r.list::<u64, _>(usize::MAX, Reader::size::<u64>)?;
            let parameter = Parameter::with_dtype(name, shape, dtype);
            Ok(if is_frozen { parameter.frozen() } else { parameter })
        })
    })
}

/// Returns the 64-bit FNV-1a hash, which is equal on every machine. It detects accidental
/// differences, not attacks.
pub(crate) fn fingerprint(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Compares the parameters of all ranks, in rank order, and names the first that differs.
pub(crate) fn find(models: &[Vec<Parameter>]) -> Option<Mismatch> {
    let reference = most_common(models)?;
    let by_name: Vec<BTreeMap<&str, &Parameter>> = models
        .iter()
        .map(|model| model.iter().map(|parameter| (parameter.name(), parameter)).collect())
        .collect();
    let mut names: Vec<&str> = by_name.iter().flat_map(BTreeMap::keys).copied().collect();
    names.sort_unstable();
    names.dedup();
    names.into_iter().find_map(|name| {
        let differences: Vec<Option<Difference>> =
            by_name.iter().map(|model| difference(by_name[reference].get(name), model.get(name))).collect();
        let first = differences.iter().flatten().next()?.clone();
        // Ranks can differ in several ways; the error names those that differ in the same way as
        // the first.
        let alike = differences.iter().enumerate().filter(|(_, other)| other.as_ref() == Some(&first));
        let ranks = alike.map(|(rank, _)| rank).collect();
        Some(Mismatch { name: name.to_owned(), difference: first, ranks, reference })
    })
}

/// Returns the lowest rank with the most common model.
fn most_common(models: &[Vec<Parameter>]) -> Option<usize> {
    let occurrences = |rank: &usize| models.iter().filter(|model| **model == models[*rank]).count();
    (0..models.len()).rev().max_by_key(occurrences)
}

fn difference(expected: Option<&&Parameter>, found: Option<&&Parameter>) -> Option<Difference> {
    match (expected, found) {
        (None, None) => None,
        (Some(_), None) => Some(Difference::Missing),
        (None, Some(_)) => Some(Difference::Extra),
        (Some(expected), Some(found)) if expected.shape() != found.shape() => {
            Some(Difference::Shape { expected: expected.shape().to_vec(), found: found.shape().to_vec() })
        }
        (Some(expected), Some(found)) if expected.dtype() != found.dtype() => {
            Some(Difference::DType { expected: expected.dtype(), found: found.dtype() })
        }
        (Some(expected), Some(found)) => (expected.is_frozen() != found.is_frozen())
            .then_some(if found.is_frozen() { Difference::Frozen } else { Difference::Trained }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> Vec<Parameter> {
        vec![
            Parameter::new::<f32>("bias", [10]),
            Parameter::new::<f32>("scale", []),
            Parameter::new::<f32>("weight", [4, 10]),
        ]
    }

    /// Compares four ranks; some of them have `other`.
    fn found(other: &[Parameter], ranks: &[usize]) -> Mismatch {
        let pick = |rank| if ranks.contains(&rank) { other.to_vec() } else { model() };
        find(&(0..4).map(pick).collect::<Vec<_>>()).expect("the models differ")
    }

    #[test]
    fn equal_models_do_not_differ() {
        assert_eq!(find(&[model(), model()]), None);
        assert_eq!(find(&[]), None);
    }

    #[test]
    fn the_first_difference_is_named_with_its_ranks() {
        let mut other = model();
        other[2] = Parameter::new::<f32>("weight", [4, 12]);
        let expected = Difference::Shape { expected: vec![4, 10], found: vec![4, 12] };
        let mismatch = found(&other, &[2]);
        assert_eq!((mismatch.name.as_str(), &mismatch.difference), ("weight", &expected));
        assert_eq!((mismatch.ranks, mismatch.reference), (vec![2], 0));

        other[0] = Parameter::new::<f64>("bias", [10]);
        let expected = Difference::DType { expected: DType::F32, found: DType::F64 };
        let mismatch = found(&other, &[3]);
        assert_eq!((mismatch.name.as_str(), mismatch.difference), ("bias", expected));

        other[0] = model()[0].clone().frozen();
        assert_eq!(found(&other, &[3]).difference, Difference::Frozen);
        assert_eq!(found(&other, &[0, 1, 3]).difference, Difference::Trained);
    }

    #[test]
    fn parameters_that_only_some_ranks_have_are_missing_or_extra() {
        let other = &model()[1..];
        let mismatch = found(other, &[1]);
        assert_eq!((mismatch.name.as_str(), mismatch.difference), ("bias", Difference::Missing));
        let mut other = model();
        other.insert(0, Parameter::new::<f32>("adapter", [1]));
        let mismatch = found(&other, &[3]);
        assert_eq!((mismatch.name.as_str(), mismatch.difference), ("adapter", Difference::Extra));
    }

    #[test]
    fn the_majority_is_right_even_without_rank_0() {
        let mismatch = found(&model()[..2], &[0]);
        assert_eq!((mismatch.ranks, mismatch.reference), (vec![0], 1));
        let mismatch = found(&model()[..2], &[1, 3]);
        assert_eq!((mismatch.ranks, mismatch.reference), (vec![1, 3], 0));
    }

    comm_sim::hostile_bytes!(parameters_are_read_as_they_were_written: [model(), vec![Parameter::new::<i8>("table", [2]).frozen()], Vec::new()],
        |model| encode(model), |bytes| decode(bytes).ok());

    #[test]
    fn fingerprints_differ_where_models_do() {
        let mut swapped = model();
        swapped[2] = Parameter::new::<f32>("weight", [10, 4]);
        let models = [model(), swapped, model()[1..].to_vec(), Vec::new()];
        let fingerprints: Vec<u64> = models.iter().map(|model| fingerprint(&encode(model))).collect();
        for (at, one) in fingerprints.iter().enumerate() {
            assert!(!fingerprints[at + 1..].contains(one));
        }
    }
}
