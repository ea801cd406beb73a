//! Agreement of all ranks on data that serde can convert to JSON.

use comm_core::Comm;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{Error, Result};

/// Gathers a value of each rank on all ranks, in rank order.
pub(crate) fn all_gather<T: Serialize + DeserializeOwned>(comm: &Comm, value: &T) -> Result<Vec<T>> {
    let bytes = serde_json::to_vec(value).map_err(|error| comm_core::Error::Internal(error.to_string()))?;
    let counts = comm.all_gather_scalar(bytes.len() as u64)?;
    let counts: Vec<usize> =
        counts.into_iter().map(|count| usize::try_from(count).unwrap_or(usize::MAX)).collect();
    let total = counts.iter().fold(0_usize, |sum, count| sum.saturating_add(*count));
    let mut all = vec![0; total];
    comm.all_gather_v(&bytes, &mut all, &counts)?;
    let mut rest = &all[..];
    let decode = |(rank, count): (usize, &usize)| {
        let (own, after) = rest.split_at(*count);
        rest = after;
        let malformed =
            |error| comm_core::Error::malformed(format!("the state of rank {rank}"), error).into();
        serde_json::from_slice(own).map_err(malformed)
    };
    counts.iter().enumerate().map(decode).collect()
}

/// Gathers the results of all ranks. If any failed, all ranks return an error: ranks that failed
/// return their own, and the others [`Error::Peer`].
pub(crate) fn agree<T: Serialize + DeserializeOwned>(comm: &Comm, result: Result<T>) -> Result<Vec<T>> {
    let (own, error) = match result {
        // A communicator that has failed cannot report the error.
        Err(error @ Error::Comm(_)) => return Err(error),
        Err(error) => (Err(error.chain()), Some(error)),
        Ok(value) => (Ok(value), None),
    };
    let all: Vec<Result<T, String>> = all_gather(comm, &own)?;
    if let Some(error) = error {
        return Err(error);
    }
    let peer =
        |(rank, result): (usize, Result<T, String>)| result.map_err(|reason| Error::Peer { rank, reason });
    all.into_iter().enumerate().map(peer).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_gets_the_failure_of_the_lowest_rank() {
        let run = |failing: &'static [usize]| {
            comm::threads::run(4, move |comm| {
                let rank = comm.rank();
                let failed = || Error::Missing { name: format!("of {rank}") };
                agree(&comm, if failing.contains(&rank) { Err(failed()) } else { Ok(10 * rank) })
            })
            .unwrap()
        };
        assert!(run(&[]).into_iter().all(|all| all.unwrap() == [0, 10, 20, 30]));
        for (rank, result) in run(&[1, 3]).into_iter().enumerate() {
            match result.unwrap_err() {
                Error::Missing { name } => assert!([1, 3].contains(&rank) && name == format!("of {rank}")),
                Error::Peer { rank: 1, reason } => assert!(reason.contains("of 1") && rank % 2 == 0),
                other => panic!("{other}"),
            }
        }
    }
}
