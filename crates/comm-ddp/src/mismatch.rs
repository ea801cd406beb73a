//! Finding the first difference between the models of several ranks. No communication.

use std::collections::BTreeMap;

use comm_core::DType;

use crate::{Difference, Mismatch, Parameter};

/// Describes sorted parameters as bytes, equal if and only if the parameters are.
pub(crate) fn encode(parameters: &[Parameter]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let push = |number: usize, bytes: &mut Vec<u8>| bytes.extend_from_slice(&(number as u64).to_le_bytes());
    for parameter in parameters {
        push(parameter.name().len(), &mut bytes);
        bytes.extend_from_slice(parameter.name().as_bytes());
        bytes.push(parameter.dtype().code());
        push(parameter.shape().len(), &mut bytes);
        parameter.shape().iter().for_each(|&length| push(length, &mut bytes));
    }
    bytes
}

/// Reads a description. `None` if it is not one: it came from another process.
pub(crate) fn decode(mut bytes: &[u8]) -> Option<Vec<Parameter>> {
    let mut parameters = Vec::new();
    while !bytes.is_empty() {
        let name_len = take_number(&mut bytes)?;
        let (name, rest) = bytes.split_at_checked(name_len)?;
        let (&dtype, rest) = rest.split_first()?;
        bytes = rest;
        let dimensions = take_number(&mut bytes)?;
        // A dimension takes eight bytes: a larger claim is refused before anything is allocated.
        let lengths = (dimensions <= bytes.len() / 8).then_some(0..dimensions)?;
        let shape: Vec<usize> = lengths.map(|_| take_number(&mut bytes)).collect::<Option<_>>()?;
        let name = String::from_utf8(name.to_vec()).ok()?;
        parameters.push(Parameter::with_dtype(name, shape, DType::from_code(dtype)?));
    }
    Some(parameters)
}

fn take_number(bytes: &mut &[u8]) -> Option<usize> {
    let (number, rest) = bytes.split_first_chunk::<8>()?;
    *bytes = rest;
    usize::try_from(u64::from_le_bytes(*number)).ok()
}

/// 64-bit FNV-1a: the same on every machine. It meets accidents, not attacks, and bytes decide once it differs.
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
        // Ranks can differ each in their own way; the sentence is about those that differ as the first does.
        let alike = differences.iter().enumerate().filter(|(_, other)| other.as_ref() == Some(&first));
        let ranks = alike.map(|(rank, _)| rank).collect();
        Some(Mismatch { name: name.to_owned(), difference: first, ranks, reference })
    })
}

/// The lowest rank among those whose model occurs most often.
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
        (Some(expected), Some(found)) => (expected.dtype() != found.dtype())
            .then(|| Difference::DType { expected: expected.dtype(), found: found.dtype() }),
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

    /// Four ranks, of which some hold `other`.
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

    #[test]
    fn descriptions_round_trip_and_hostile_ones_are_refused() {
        let bytes = encode(&model());
        assert_eq!(decode(&bytes), Some(model()));
        let boundaries = [0, encode(&model()[..1]).len(), encode(&model()[..2]).len()];
        for end in (0..bytes.len()).filter(|end| !boundaries.contains(end)) {
            assert_eq!(decode(&bytes[..end]), None, "cut at {end}");
        }
        assert_eq!(decode(&[0xff; 64]), None);
    }

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
