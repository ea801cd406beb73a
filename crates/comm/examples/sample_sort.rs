//! A sort of numbers that are spread over all ranks: parallel sorting by regular sampling (Shi and
//! Schaeffer, 1992).
//!
//! ```sh
//! commctl run -n 4 -- target/debug/examples/sample_sort
//! ```
#![allow(clippy::print_stdout, reason = "an example prints its result")]

use comm::Comm;

/// The number of elements of rank 0; each further rank has a few more.
const LEN: usize = 20_000;

/// Sorts the elements of all ranks: afterwards no element of a rank is larger than one of the next.
fn sort(comm: &Comm, mut own: Vec<u64>) -> comm::Result<Vec<u64>> {
    let ranks = comm.size();
    own.sort_unstable();

    // Every rank gets one sample per rank of each rank, and selects the same splitters from them.
    let samples: Vec<u64> = (0..ranks).map(|i| own[own.len() * i / ranks]).collect();
    let mut all = vec![0; ranks * ranks];
    comm.all_gather(&samples, &mut all)?;
    all.sort_unstable();
    let splitters: Vec<u64> = (1..ranks).map(|i| all[ranks * i + ranks / 2]).collect();

    // The elements up to the first splitter go to rank 0, and so on.
    let mut ends: Vec<usize> = splitters.iter().map(|&s| own.partition_point(|&x| x <= s)).collect();
    ends.push(own.len());
    let mut start = 0;
    let send_counts: Vec<usize> = ends.iter().map(|&end| end - std::mem::replace(&mut start, end)).collect();

    // The ranks do not know how much they receive, and ask first.
    let mut recv_counts = vec![0; ranks];
    comm.all_to_all(&send_counts, &mut recv_counts)?;
    let mut sorted = vec![0; recv_counts.iter().sum()];
    comm.all_to_all_v(&own, &send_counts, &mut sorted, &recv_counts)?;
    // It consists of one sorted part per rank.
    sorted.sort();
    Ok(sorted)
}

/// Returns the elements of all ranks in their order on rank 0, and nothing on the others.
fn gather(comm: &Comm, own: &[u64]) -> comm::Result<Vec<u64>> {
    let counts = comm.all_gather_scalar(own.len())?;
    let mut all = vec![0; if comm.rank() == 0 { counts.iter().sum() } else { 0 }];
    comm.gather_v(0, own, &mut all, &counts)?;
    Ok(all)
}

pub(crate) fn main() -> comm::Result<()> {
    let comm = comm::init()?;
    let mut random = fastrand::Rng::with_seed(comm.rank() as u64);
    // A tenth of the elements are equal.
    let mut element = || if random.u8(..) < 25 { 1 << 40 } else { random.u64(..1 << 50) };
    let unsorted: Vec<u64> = (0..LEN + 7 * comm.rank()).map(|_| element()).collect();

    let sorted = sort(&comm, unsorted.clone())?;

    // Rank 0 sorts the elements alone. The comparison also finds one that is missing or extra.
    let (mut expected, found) = (gather(&comm, &unsorted)?, gather(&comm, &sorted)?);
    expected.sort_unstable();
    assert!(found == expected, "the elements are not sorted, or some have changed");
    let largest = comm.all_gather_scalar(sorted.len())?.into_iter().max().unwrap_or(0);
    if comm.rank() == 0 {
        let (len, ranks) = (found.len(), comm.size());
        println!("{len} elements are sorted on {ranks} ranks, none with more than {largest}");
    }
    comm.finalize()
}
