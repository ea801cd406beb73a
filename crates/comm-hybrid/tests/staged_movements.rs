//! Elements that are staged through the host arrive unchanged, where they belong, and nothing else
//! is written.
#![cfg(feature = "nccl")]
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "common/device.rs"]
mod common;

use std::fmt::Debug;

use comm_sim::exact::{Small, elements};
use comm_sim::for_each_type;

use common::{Rank, assert_bits, in_all_worlds};

const PIECE: usize = 64;

/// Returns the number of elements of each rank, by length; some have none.
fn lopsided(size: usize, len: usize) -> Vec<usize> {
    (0..size).map(|of| if of % 3 == 1 { 0 } else { len + of }).collect()
}

/// Numbers that no other rank and place have, as far as the type goes.
fn own<T: Small>(rank: usize, len: usize) -> Vec<T> {
    elements(0..len, |index| (rank * 41 + index) as i64 % 120)
}

fn total(counts: &[usize]) -> usize {
    counts.iter().sum()
}

/// The contributions of all ranks, in their order.
fn gathered<T: Small>(counts: &[usize]) -> Vec<T> {
    counts.iter().enumerate().flat_map(|(rank, count)| own(rank, *count)).collect()
}

fn start(counts: &[usize], rank: usize) -> usize {
    total(&counts[..rank])
}

fn all<T: Small + Debug>(rank: &Rank) {
    for len in [0, 1, rank.size - 1, rank.size, rank.size + 1, PIECE / T::DTYPE.size(), 70] {
        broadcast::<T>(rank, len);
        for counts in [vec![len; rank.size], lopsided(rank.size, len)] {
            all_gather::<T>(rank, &counts);
            for root in [0, rank.size - 1] {
                gather::<T>(rank, root, &counts);
                scatter::<T>(rank, root, &counts);
            }
        }
        all_to_all::<T>(rank, len);
        all_to_all_v::<T>(rank, len);
    }
}

fn broadcast<T: Small + Debug>(rank: &Rank, len: usize) {
    for root in 0..rank.size {
        let mut buffer = rank.buffer::<T>(&own(rank.rank, len));
        rank.staged.broadcast(root, &mut buffer).unwrap();
        assert_bits(&buffer.to_vec().unwrap(), &own::<T>(root, len), "broadcast");
    }
}

fn all_gather<T: Small + Debug>(rank: &Rank, counts: &[usize]) {
    let (mine, wanted) = (own::<T>(rank.rank, counts[rank.rank]), gathered::<T>(counts));
    let (send, mut recv) = (rank.buffer(&mine), rank.buffer(&vec![T::of(9); total(counts)]));
    rank.staged.all_gather_v(&send, &mut recv, counts).unwrap();
    assert_bits(&recv.to_vec().unwrap(), &wanted, "all_gather_v");
    if counts.iter().all(|count| *count == counts[0]) {
        let mut recv = rank.buffer(&vec![T::of(9); total(counts)]);
        rank.staged.all_gather(&send, &mut recv).unwrap();
        assert_bits(&recv.to_vec().unwrap(), &wanted, "all_gather");
        let mut held = vec![T::of(9); total(counts)];
        let at = start(counts, rank.rank);
        held[at..at + mine.len()].copy_from_slice(&mine);
        let mut in_place = rank.buffer(&held);
        rank.staged.all_gather_in_place(&mut in_place).unwrap();
        assert_bits(&in_place.to_vec().unwrap(), &wanted, "all_gather in place");
    }
}

fn gather<T: Small + Debug>(rank: &Rank, root: usize, counts: &[usize]) {
    let (mine, wanted) = (own::<T>(rank.rank, counts[rank.rank]), gathered::<T>(counts));
    let is_root = rank.rank == root;
    let room = vec![T::of(9); if is_root { total(counts) } else { 3 }];
    let known: &[usize] = if is_root { counts } else { &[] };
    let (send, mut recv) = (rank.buffer(&mine), rank.buffer(&room));
    rank.staged.gather_v(root, &send, &mut recv, known).unwrap();
    assert_bits(&recv.to_vec().unwrap(), if is_root { &wanted } else { &room }, "gather_v");
    if counts.iter().all(|count| *count == counts[0]) {
        let mut recv = rank.buffer(&room);
        rank.staged.gather(root, &send, &mut recv).unwrap();
        assert_bits(&recv.to_vec().unwrap(), if is_root { &wanted } else { &room }, "gather");
    }
    assert_bits(&send.to_vec().unwrap(), &mine, "what is sent stays");
}

fn scatter<T: Small + Debug>(rank: &Rank, root: usize, counts: &[usize]) {
    let all = gathered::<T>(counts);
    let is_root = rank.rank == root;
    let known: &[usize] = if is_root { counts } else { &[] };
    let send = rank.buffer(if is_root { &all } else { &[] });
    let mut recv = rank.buffer(&vec![T::of(9); counts[rank.rank]]);
    let wanted = own::<T>(rank.rank, counts[rank.rank]);
    rank.staged.scatter_v(root, &send, &mut recv, known).unwrap();
    assert_bits(&recv.to_vec().unwrap(), &wanted, "scatter_v");
    if counts.iter().all(|count| *count == counts[0]) {
        let mut recv = rank.buffer(&vec![T::of(9); counts[0]]);
        rank.staged.scatter(root, &send, &mut recv).unwrap();
        assert_bits(&recv.to_vec().unwrap(), &wanted, "scatter");
    }
}

/// Element `index` of the block from one rank to another.
fn between<T: Small>(from: usize, to: usize, len: usize) -> Vec<T> {
    elements(0..len, |index| (from * 23 + to * 5 + index) as i64 % 120)
}

fn all_to_all<T: Small + Debug>(rank: &Rank, len: usize) {
    let blocks = |block: &dyn Fn(usize) -> Vec<T>| (0..rank.size).flat_map(block).collect::<Vec<T>>();
    let send = blocks(&|peer| between(rank.rank, peer, len));
    let wanted = blocks(&|peer| between(peer, rank.rank, len));
    let (from, mut to) = (rank.buffer(&send), rank.buffer(&vec![T::of(9); send.len()]));
    rank.staged.all_to_all(&from, &mut to).unwrap();
    assert_bits(&to.to_vec().unwrap(), &wanted, "all_to_all");
    let mut in_place = rank.buffer(&send);
    rank.staged.all_to_all_in_place(&mut in_place).unwrap();
    assert_bits(&in_place.to_vec().unwrap(), &wanted, "all_to_all in place");
}

fn all_to_all_v<T: Small + Debug>(rank: &Rank, len: usize) {
    let count = |from: usize, to: usize| if (from + to) % 3 == 1 { 0 } else { len + from + 2 * to };
    let (me, ranks) = (rank.rank, 0..rank.size);
    let sends: Vec<usize> = ranks.clone().map(|peer| count(me, peer)).collect();
    let recvs: Vec<usize> = ranks.clone().map(|peer| count(peer, me)).collect();
    let send: Vec<T> = ranks.clone().flat_map(|peer| between(me, peer, sends[peer])).collect();
    let wanted: Vec<T> = ranks.flat_map(|peer| between(peer, me, recvs[peer])).collect();
    let (from, mut to) = (rank.buffer(&send), rank.buffer(&vec![T::of(9); wanted.len()]));
    rank.staged.all_to_all_v(&from, &sends, &mut to, &recvs).unwrap();
    assert_bits(&to.to_vec().unwrap(), &wanted, "all_to_all_v");
}

#[test]
fn bytes_arrive_as_they_were() {
    in_all_worlds(PIECE, |rank| all::<u8>(&rank));
}

#[test]
fn words_of_two_bytes_arrive_as_they_were() {
    in_all_worlds(PIECE, |rank| all::<i16>(&rank));
}

#[test]
fn every_type_is_moved() {
    fn few<T: Small + Debug>(rank: &Rank) {
        broadcast::<T>(rank, 30);
        all_gather::<T>(rank, &lopsided(rank.size, 10));
    }
    in_all_worlds(PIECE, |rank| for_each_type!(T => few::<T>(&rank)));
}
