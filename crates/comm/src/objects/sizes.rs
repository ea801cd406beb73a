//! The exchange of sizes before objects are sent. All ranks get the same sizes, so either all of
//! them continue or none.

use comm_core::{Comm, Result};

use super::codec::Encoded;
use super::{ObjectError, ObjectFailure};

/// The sizes of all objects of a call, with a failure code in place of the size of an object that
/// cannot be sent.
#[derive(Debug)]
pub(super) struct Sizes {
    words: Vec<u64>,
    /// The rank that passes all objects; `None` if each rank passes one.
    root: Option<usize>,
}

/// Failure codes. They exceed every limit, and so will codes that later versions add.
const FAILED_ENCODE: u64 = u64::MAX;
const FAILED_COUNT: u64 = u64::MAX - 1;

/// Returns the code for an object that cannot be sent.
const fn word(error: &ObjectError) -> u64 {
    match error {
        ObjectError::Count { .. } => FAILED_COUNT,
        _ => FAILED_ENCODE,
    }
}

const fn failure(word: u64) -> Option<ObjectFailure> {
    match word {
        FAILED_ENCODE => Some(ObjectFailure::Encode),
        FAILED_COUNT => Some(ObjectFailure::Count),
        _ => None,
    }
}

impl Sizes {
    /// Exchanges the sizes of one object per rank.
    pub(super) fn of_all(comm: &Comm, own: &Result<Encoded, ObjectError>) -> Result<Self> {
        let own = match own {
            Ok((bytes, _)) => bytes.len() as u64,
            Err(error) => word(error),
        };
        let mut words = vec![0; comm.size()];
        comm.all_gather(&[own], &mut words)?;
        Ok(Self { words, root: None })
    }

    /// Broadcasts the sizes of the root's `count` objects.
    pub(super) fn of_root(
        comm: &Comm,
        root: usize,
        count: usize,
        own: Option<&Result<Encoded, ObjectError>>,
    ) -> Result<Self> {
        let mut words = match own {
            Some(Ok((_, sizes))) => sizes.clone(),
            Some(Err(error)) => vec![word(error); count],
            None => vec![0; count],
        };
        comm.broadcast(root, &mut words)?;
        Ok(Self { words, root: Some(root) })
    }

    /// Returns the sizes if no rank has failed and their sum is within the limit.
    pub(super) fn agreed(&self, limit: u64) -> Result<Vec<usize>, ObjectError> {
        let mut failures = self.words.iter().enumerate().map(|(at, &word)| (self.sender(at), failure(word)));
        if let Some((rank, Some(failure))) = failures.find(|(_, failure)| failure.is_some()) {
            return Err(ObjectError::Peer { rank, failure });
        }
        let bytes = self.words.iter().fold(0_u64, |sum, &size| sum.saturating_add(size));
        let counts: Option<Vec<usize>> = self.words.iter().map(|&size| usize::try_from(size).ok()).collect();
        match counts {
            // The counts must be addressable on this machine.
            Some(counts) if bytes <= limit && isize::try_from(bytes).is_ok() => Ok(counts),
            _ => Err(ObjectError::TooLarge { rank: self.sender(self.largest()), bytes, limit }),
        }
    }

    fn sender(&self, at: usize) -> usize {
        self.root.unwrap_or(at)
    }

    /// Returns the index of the first of the largest objects.
    fn largest(&self) -> usize {
        let sizes = self.words.iter().enumerate();
        sizes.reduce(|most, other| if other.1 > most.1 { other } else { most }).map_or(0, |(at, _)| at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_all(words: &[u64]) -> Sizes {
        Sizes { words: words.to_vec(), root: None }
    }

    #[test]
    fn a_huge_size_is_refused_before_memory_is_allocated() {
        for huge in [101, 1 << 40, u64::MAX - 2] {
            let error = from_all(&[3, huge, 4]).agreed(100).unwrap_err();
            assert!(matches!(error, ObjectError::TooLarge { rank: 1, limit: 100, .. }), "{error}");
        }
        let error = from_all(&[u64::MAX - 2, u64::MAX - 2]).agreed(u64::MAX).unwrap_err();
        assert!(matches!(error, ObjectError::TooLarge { rank: 0, bytes: u64::MAX, .. }), "{error}");
    }

    #[test]
    fn the_limit_is_for_all_objects_together() {
        assert_eq!(from_all(&[50, 0, 50]).agreed(100).unwrap(), [50, 0, 50]);
        let error = from_all(&[50, 0, 51]).agreed(100).unwrap_err();
        assert!(matches!(error, ObjectError::TooLarge { rank: 2, bytes: 101, .. }), "{error}");
    }

    #[test]
    fn a_failure_is_reported_before_the_limit_and_names_the_sender() {
        let words = [200, FAILED_ENCODE, FAILED_COUNT];
        let error = from_all(&words).agreed(100).unwrap_err();
        assert!(matches!(error, ObjectError::Peer { rank: 1, failure: ObjectFailure::Encode }), "{error}");
        let error = Sizes { words: vec![FAILED_COUNT; 3], root: Some(7) }.agreed(100).unwrap_err();
        assert!(matches!(error, ObjectError::Peer { rank: 7, failure: ObjectFailure::Count }), "{error}");
    }
}
