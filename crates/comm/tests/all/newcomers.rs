//! Tests of programs that users of rsmpi or mpi4py would write first, over TCP.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use crate::common::world;
use comm::{ANY_TAG, AsViewMut, Axis, Comm, Error, Invalid, Neighbor, PROC_NULL, ReduceOp, Result, Source};

const WORLDS: [usize; 5] = [1, 2, 3, 5, 8];

/// Makes two calls with a borrowed slice.
fn sum_twice(comm: &Comm, buffer: &mut [f64]) -> Result<()> {
    comm.all_reduce(buffer, ReduceOp::Sum)?;
    comm.all_reduce(buffer, ReduceOp::Sum)
}

fn sum_of_any(comm: &Comm, buffer: &mut (impl AsViewMut + ?Sized)) -> Result<()> {
    comm.all_reduce(buffer, ReduceOp::Sum)
}

#[test]
fn a_mutable_slice_is_passed_to_several_calls() {
    for ranks in WORLDS {
        world(ranks, |comm| {
            let mut buffer = [1.0, 2.0];
            sum_twice(&comm, &mut buffer).unwrap();
            let squared = (ranks * ranks) as f64;
            assert_eq!(buffer.map(f64::to_bits), [squared, 2.0 * squared].map(f64::to_bits));
        });
    }
}

#[test]
fn elements_boxed_arrays_and_slices_are_buffers() {
    for ranks in WORLDS {
        world(ranks, |comm| {
            let all = ranks as u32;
            let (mut element, mut boxed, mut slice) = (1_u32, Box::new([1_u32; 3]), vec![1_u32; 2]);
            sum_of_any(&comm, &mut element).unwrap();
            sum_of_any(&comm, &mut boxed).unwrap();
            sum_of_any(&comm, &mut slice[1..]).unwrap();
            assert_eq!((element, *boxed, &slice[..]), (all, [all; 3], &[1, all][..]));
        });
    }
}

#[test]
fn single_values_need_no_buffer() {
    for ranks in WORLDS {
        world(ranks, |comm| {
            let total = comm.all_reduce_scalar(comm.rank() as u64 + 1, ReduceOp::Sum).unwrap();
            assert_eq!(total, (1..=ranks as u64).sum::<u64>());
            let all: Vec<u32> = (0..ranks as u32).collect();
            assert_eq!(comm.all_gather_scalar(comm.rank() as u32).unwrap(), all);
        });
    }
}

#[test]
fn the_root_broadcasts_data_that_it_only_borrows() {
    for ranks in WORLDS {
        world(ranks, |comm| {
            for (root, len) in (0..ranks).flat_map(|root| [0, 1, 1000].map(|len| (root, len))) {
                let table: Vec<u16> = (0..len).map(|at| at as u16 ^ root as u16).collect();
                let mut theirs = vec![0_u16; len];
                if comm.rank() == root {
                    comm.broadcast_from_here(&table).unwrap();
                } else {
                    comm.broadcast(root, &mut theirs).unwrap();
                    assert_eq!(theirs, table);
                }
            }
        });
    }
}

#[test]
fn a_message_of_unknown_length_is_received_as_a_vector() {
    for ranks in WORLDS {
        world(ranks, |comm| {
            let message: Vec<i64> = (0..comm.rank() as i64 * 10_000).collect();
            let sent = comm.send_async(0, 3, message).unwrap();
            for _ in (0..ranks).filter(|_| comm.rank() == 0) {
                let (numbers, received) = comm.recv_vec::<i64>(Source::Any, 3).unwrap();
                assert_eq!(numbers, (0..received.source as i64 * 10_000).collect::<Vec<_>>());
            }
            drop(sent.wait().unwrap());
            if comm.rank() == 0 {
                comm.send(0, 4, &[1.5_f32]).unwrap();
                let wrong = comm.recv_vec::<u8>(0, ANY_TAG).unwrap_err();
                assert!(matches!(wrong, Error::Invalid(Invalid::Message { .. })), "{wrong}");
                assert_eq!(comm.recv_vec::<f32>(0, ANY_TAG).unwrap().0, [1.5]);
            }
        });
    }
}

/// Threads that receive messages of different lengths do not get each other's probed messages.
#[test]
fn threads_that_receive_messages_of_unknown_length_get_each_message_once() {
    const MESSAGES: usize = 200;
    world(2, |comm| {
        if comm.rank() == 1 {
            for at in 0..MESSAGES {
                comm.send(0, 1, &vec![at as u32; at % 17]).unwrap();
            }
            return;
        }
        let mut lens: Vec<usize> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| -> Vec<usize> {
                        (0..MESSAGES / 4).map(|_| comm.recv_vec::<u32>(1, 1).unwrap().0.len()).collect()
                    })
                })
                .collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        lens.sort_unstable();
        let mut expected: Vec<usize> = (0..MESSAGES).map(|at| at % 17).collect();
        expected.sort_unstable();
        assert_eq!(lens, expected);
    });
}

#[test]
fn halos_are_exchanged_with_neighbors_on_a_line() {
    for ranks in WORLDS {
        for axis in [Axis::open(ranks), Axis::periodic(ranks)] {
            world(ranks, |comm| {
                let line = comm.cart(&[axis]).unwrap().unwrap();
                let (rank, width) = (line.rank() as i32, 2);
                let mut cells = vec![-1; 2 * width + 6];
                cells[width..width + 6].copy_from_slice(&[0, 1, 2, 3, 4, 5].map(|at| rank * 10 + at));
                line.exchange_halo(0, &mut cells, width).unwrap();
                let shift = line.shift(0, 1).unwrap();
                let ghosts = |from, cells: [i32; 2]| match from {
                    Neighbor::Rank(from) => cells.map(|at| from as i32 * 10 + at),
                    Neighbor::Null => [-1; 2],
                };
                assert_eq!(cells[..width], ghosts(shift.source, [4, 5]), "{axis:?}");
                assert_eq!(cells[width + 6..], ghosts(shift.dest, [0, 1]), "{axis:?}");
            });
        }
    }
}

#[test]
fn ranks_without_a_place_on_the_grid_get_no_group() {
    world(5, |comm| {
        let grid = comm.cart(&[Axis::open(2), Axis::periodic(2)]).unwrap();
        assert_eq!(grid.is_some(), comm.rank() < 4);
        let too_large = comm.cart(&[Axis::open(2), Axis::open(3)]).unwrap_err();
        assert!(matches!(too_large, Error::Invalid(Invalid::Grid { size: 5, .. })), "{too_large}");
        let Some(grid) = grid else { return };
        let coords = grid.coords();
        assert_eq!(coords, [comm.rank() / 2, comm.rank() % 2]);
        let down = grid.shift(0, 1).unwrap();
        let expected = if coords[0] == 0 { Neighbor::Rank(comm.rank() + 2) } else { PROC_NULL };
        assert_eq!(down.dest, expected);
        let mut buffer = [7_u8];
        let received = grid.send_recv(down.dest, &[comm.rank() as u8], down.source, &mut buffer).unwrap();
        match down.source {
            Neighbor::Rank(from) => assert_eq!((buffer, received.unwrap().source), ([from as u8], from)),
            Neighbor::Null => assert!(buffer == [7] && received.is_none()),
        }
        assert!(grid.shift(2, 1).is_err() && grid.rank_at(&[0]).is_err());
    });
}

/// Both are the output of a `main` that returns the error.
#[test]
fn an_error_that_main_returns_reads_as_a_sentence() {
    world(1, |comm| {
        let error = comm.send(3, 0, &1_u8).unwrap_err();
        assert_eq!(format!("{error:?}"), "invalid: rank 3 is out of range for a group of size 1");
    });
}
