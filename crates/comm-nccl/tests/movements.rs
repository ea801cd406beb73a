//! Collectives that move elements as they are, of every type, in worlds of several sizes, with and without disorder.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use comm_core::{Buffers, Call, Communicator, Counts};
use comm_nccl::{Cuda, DeviceBuffer};
use comm_sim::exact::{Small, block, joined};
use comm_sim::for_each_type;

use common::{Rank, in_all_worlds, options};

fn separate<'a, T: Small>(send: &'a DeviceBuffer<T>, recv: &'a mut DeviceBuffer<T>) -> Buffers<'a, Cuda> {
    Buffers::Separate { send: send.view(), recv: recv.view_mut() }
}

fn in_place<T: Small>(buffer: &mut DeviceBuffer<T>) -> Buffers<'_, Cuda> {
    Buffers::InPlace(buffer.view_mut())
}

/// Counts per rank, all equal or not, some of them zero; and how they are told.
fn counts_of(size: usize) -> Vec<(Vec<usize>, bool)> {
    let equal = [0, 1, 6].map(|count| (vec![count; size], true));
    let unequal = (0..size).map(|rank| (rank * 3 + 2) % 5).collect();
    equal.into_iter().chain([(unequal, false)]).collect()
}

fn shares(counts: &[usize], equal: bool) -> Counts<'_> {
    if equal { Counts::Equal } else { Counts::PerRank(counts) }
}

fn broadcast<T: Small>(rank: &Rank) {
    for (root, count) in (0..rank.size).flat_map(|root| [0, 1, 7].map(|count| (root, count))) {
        let mut buffer = rank.buffer(&block::<T>(rank.rank, 0, count));
        rank.comm.run(Call::Broadcast { root, buffer: buffer.view_mut() }, &options()).unwrap();
        assert_eq!(buffer.to_vec().unwrap(), block::<T>(root, 0, count), "{} from {root}", T::DTYPE);
    }
}

#[test]
fn a_broadcast_gives_all_what_the_root_has() {
    in_all_worlds(|rank| for_each_type!(T => broadcast::<T>(&rank)));
}

fn all_gather<T: Small>(rank: &Rank) {
    for (counts, equal) in counts_of(rank.size) {
        let ours: Vec<T> = block(rank.rank, 0, counts[rank.rank]);
        let wanted = joined(&counts, |from, count| block::<T>(from, 0, count));
        let (send, mut recv) = (rank.buffer(&ours), rank.zeros(wanted.len()));
        rank.comm
            .run(
                Call::AllGather { buffers: separate(&send, &mut recv), counts: shares(&counts, equal) },
                &options(),
            )
            .unwrap();
        assert_eq!(
            (send.to_vec().unwrap(), &recv.to_vec().unwrap()),
            (ours.clone(), &wanted),
            "{}",
            T::DTYPE
        );
        let start = counts[..rank.rank].iter().sum::<usize>();
        let mut all = rank.zeros(wanted.len());
        all.slice_mut(start..start + ours.len()).unwrap().copy_from_host(&ours).unwrap();
        rank.comm
            .run(Call::AllGather { buffers: in_place(&mut all), counts: shares(&counts, equal) }, &options())
            .unwrap();
        assert_eq!(all.to_vec().unwrap(), wanted, "{}", T::DTYPE);
    }
}

#[test]
fn an_all_gather_puts_all_blocks_in_rank_order() {
    in_all_worlds(|rank| for_each_type!(T => all_gather::<T>(&rank)));
}

fn gather<T: Small>(rank: &Rank) {
    for (root, (counts, equal)) in
        (0..rank.size).flat_map(|root| counts_of(rank.size).into_iter().map(move |it| (root, it)))
    {
        let ours: Vec<T> = block(rank.rank, root, counts[rank.rank]);
        let wanted = joined(&counts, |from, count| block::<T>(from, root, count));
        let is_root = rank.rank == root;
        let (send, mut recv) = (rank.buffer(&ours), rank.zeros(if is_root { wanted.len() } else { 0 }));
        // Only the root's counts are looked at.
        let told = if is_root { shares(&counts, equal) } else { Counts::Equal };
        rank.comm
            .run(Call::Gather { root, buffers: separate(&send, &mut recv), counts: told }, &options())
            .unwrap();
        assert_eq!(send.to_vec().unwrap(), ours);
        let mut all = if is_root { recv } else { send };
        if is_root {
            assert_eq!(all.to_vec().unwrap(), wanted, "{} at {root}", T::DTYPE);
            let start = counts[..root].iter().sum::<usize>();
            all = rank.zeros(wanted.len());
            all.slice_mut(start..start + ours.len()).unwrap().copy_from_host(&ours).unwrap();
        }
        rank.comm.run(Call::Gather { root, buffers: in_place(&mut all), counts: told }, &options()).unwrap();
        assert_eq!(all.to_vec().unwrap(), if is_root { wanted } else { ours }, "{} at {root}", T::DTYPE);
    }
}

#[test]
fn a_gather_puts_all_blocks_in_rank_order_on_the_root() {
    in_all_worlds(|rank| for_each_type!(T => gather::<T>(&rank)));
}

fn scatter<T: Small>(rank: &Rank) {
    for (root, (counts, equal)) in
        (0..rank.size).flat_map(|root| counts_of(rank.size).into_iter().map(move |it| (root, it)))
    {
        let is_root = rank.rank == root;
        let all = joined(&counts, |to, count| block::<T>(root, to, count));
        let wanted: Vec<T> = block(root, rank.rank, counts[rank.rank]);
        let (send, mut recv) = (rank.buffer(if is_root { &all } else { &[] }), rank.zeros(wanted.len()));
        let told = if is_root { shares(&counts, equal) } else { Counts::Equal };
        rank.comm
            .run(Call::Scatter { root, buffers: separate(&send, &mut recv), counts: told }, &options())
            .unwrap();
        assert_eq!(recv.to_vec().unwrap(), wanted, "{} from {root}", T::DTYPE);
        let mut send = send;
        let mut recv = rank.zeros(wanted.len());
        let buffers = if is_root { in_place(&mut send) } else { in_place(&mut recv) };
        rank.comm.run(Call::Scatter { root, buffers, counts: told }, &options()).unwrap();
        let (kept, got) = (send.to_vec().unwrap(), recv.to_vec().unwrap());
        assert_eq!(if is_root { kept } else { got }, if is_root { all } else { wanted }, "{}", T::DTYPE);
    }
}

#[test]
fn a_scatter_gives_each_rank_its_block() {
    in_all_worlds(|rank| for_each_type!(T => scatter::<T>(&rank)));
}

fn all_to_all<T: Small>(rank: &Rank) {
    for count in [0, 1, 6] {
        let counts = vec![count; rank.size];
        let ours = joined(&counts, |to, count| block::<T>(rank.rank, to, count));
        let wanted = joined(&counts, |from, count| block::<T>(from, rank.rank, count));
        let (send, mut recv) = (rank.buffer(&ours), rank.zeros(ours.len()));
        let equal = Counts::Equal;
        rank.comm
            .run(Call::AllToAll { buffers: separate(&send, &mut recv), send: equal, recv: equal }, &options())
            .unwrap();
        assert_eq!((send.to_vec().unwrap(), &recv.to_vec().unwrap()), (ours, &wanted), "{}", T::DTYPE);
        let mut buffer = send;
        rank.comm
            .run(Call::AllToAll { buffers: in_place(&mut buffer), send: equal, recv: equal }, &options())
            .unwrap();
        assert_eq!(buffer.to_vec().unwrap(), wanted, "{}", T::DTYPE);
    }
}

/// How much rank `from` has for rank `to`.
fn amount(from: usize, to: usize) -> usize {
    (from * 2 + to * 3) % 4
}

fn all_to_all_v<T: Small>(rank: &Rank) {
    let sends: Vec<usize> = (0..rank.size).map(|to| amount(rank.rank, to)).collect();
    let recvs: Vec<usize> = (0..rank.size).map(|from| amount(from, rank.rank)).collect();
    let ours = joined(&sends, |to, count| block::<T>(rank.rank, to, count));
    let wanted = joined(&recvs, |from, count| block::<T>(from, rank.rank, count));
    let (send, mut recv) = (rank.buffer(&ours), rank.zeros(wanted.len()));
    let told = (Counts::PerRank(&sends), Counts::PerRank(&recvs));
    rank.comm
        .run(Call::AllToAll { buffers: separate(&send, &mut recv), send: told.0, recv: told.1 }, &options())
        .unwrap();
    assert_eq!((send.to_vec().unwrap(), recv.to_vec().unwrap()), (ours, wanted), "{}", T::DTYPE);
    // In place, what goes to a rank is as long as what comes from it: |from - to| elements.
    let both: Vec<usize> = (0..rank.size).map(|peer| peer.abs_diff(rank.rank) + 1).collect();
    let ours = joined(&both, |to, count| block::<T>(rank.rank, to, count));
    let wanted = joined(&both, |from, count| block::<T>(from, rank.rank, count));
    let mut buffer = rank.buffer(&ours);
    let told = Counts::PerRank(&both);
    rank.comm
        .run(Call::AllToAll { buffers: in_place(&mut buffer), send: told, recv: told }, &options())
        .unwrap();
    assert_eq!(buffer.to_vec().unwrap(), wanted, "{}", T::DTYPE);
}

#[test]
fn an_all_to_all_turns_the_matrix_of_blocks() {
    in_all_worlds(|rank| for_each_type!(T => all_to_all::<T>(&rank)));
}

#[test]
fn blocks_of_an_all_to_all_may_differ_in_length() {
    in_all_worlds(|rank| for_each_type!(T => all_to_all_v::<T>(&rank)));
}
