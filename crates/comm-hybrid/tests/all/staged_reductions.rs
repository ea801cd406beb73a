//! Staged reductions of device buffers with rounded sums, user-defined operators and many buffers.
#![allow(clippy::unwrap_used, clippy::panic)]

use comm_core::{Accumulate, Comm, Error, Operator, Plain, ReduceOp, ReduceOrder, bytemuck};
use comm_nccl::{Device, DeviceBuffer, DeviceComm};
use comm_sim::exact::{Small, elements, f16, number, reduced};
use float8::F8E4M3;

use crate::device::{assert_bits, control, devices, faults_of, in_all_worlds, staged};
use gpu_emu::Setting;

/// The number of one-byte elements in a piece of a buffer that is one block.
const PIECE: usize = 64;

fn contribution<T: Small>(rank: usize, len: usize) -> Vec<T> {
    elements(0..len, |index| number(rank, index))
}

#[test]
fn an_average_of_large_f16_is_finite_and_bit_identical_to_the_host() {
    in_all_worlds(PIECE, |rank| {
        let ordered = (
            rank.host.with_reduce_order(ReduceOrder::Deterministic),
            rank.staged.with_reduce_order(ReduceOrder::Deterministic),
        );
        let own: Vec<f16> = elements(0..100, |index| 20_000 + 32 * number(rank.rank, index));
        let (mut wanted, mut buffer) = (own.clone(), rank.buffer(&own));
        ordered.0.all_reduce(&mut wanted, ReduceOp::Avg).unwrap();
        ordered.1.all_reduce(&mut buffer, ReduceOp::Avg).unwrap();
        assert_bits(&buffer.to_vec().unwrap(), &wanted, "an average");
        assert!(wanted.iter().all(|average| (20_000.0..20_200.0).contains(&average.to_f32())), "{wanted:?}");
    });
}

#[test]
fn sums_in_f32_are_bit_identical_to_the_host() {
    in_all_worlds(PIECE, |rank| {
        let wide = |comm: &Comm| comm.with_accumulate(Accumulate::F32);
        let (host, staged) = (wide(&rank.host), rank.staged.with_accumulate(Accumulate::F32));
        let mut own: Vec<f16> = elements(0..100, |index| number(rank.rank, index));
        own.iter_mut().filter(|_| rank.rank == 0).for_each(|element| *element = f16::from_f32(2048.0));
        let order = ReduceOrder::Deterministic;
        for op in [ReduceOp::Sum, ReduceOp::Avg, ReduceOp::PreMulSum(0.3)] {
            let (mut wanted, mut buffer) = (own.clone(), rank.buffer(&own));
            host.with_reduce_order(order).all_reduce(&mut wanted, op).unwrap();
            staged.with_reduce_order(order).all_reduce(&mut buffer, op).unwrap();
            assert_bits(&buffer.to_vec().unwrap(), &wanted, &format!("{op}"));
            let sum = |index| 2048 + (1..rank.size).map(|rank| number(rank, index)).sum::<i64>();
            let rounded = (0..100).map(|index| f16::from_f64(sum(index) as f64)).collect::<Vec<_>>();
            assert!(op != ReduceOp::Sum || wanted == rounded, "rounded once: {wanted:?}");
        }
    });
}

/// Three bytes, which do not divide the size of a piece.
#[derive(Debug, Clone, Copy, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
#[bytemuck(crate = "comm_core::bytemuck")]
#[repr(C)]
struct Pixel([u8; 3]);

impl Plain for Pixel {}

struct Blend;

impl Operator for Blend {
    type Element = Pixel;
    const NAME: &'static str = "blend";

    fn combine(Pixel([a, b, c]): Pixel, Pixel([x, y, z]): Pixel) -> Pixel {
        Pixel([a.wrapping_add(x), b.max(y), c ^ z])
    }
}

#[test]
fn structs_on_devices_are_combined_by_operators_of_the_program() {
    in_all_worlds(PIECE, |rank| {
        for len in [0, 1, 20, 21, 22, 100] {
            let own: Vec<Pixel> = (0..len)
                .map(|at| Pixel([at as u8, (at * 7 + rank.rank * 31) as u8, rank.rank as u8]))
                .collect();
            let (mut wanted, mut buffer) = (own.clone(), rank.buffer(&own));
            rank.host.all_reduce(&mut wanted, ReduceOp::of::<Blend>()).unwrap();
            rank.staged.all_reduce(&mut buffer, ReduceOp::of::<Blend>()).unwrap();
            assert_bits(&buffer.to_vec().unwrap(), &wanted, "blended");
            rank.staged.broadcast(0, &mut buffer).unwrap();
            assert_bits(&buffer.to_vec().unwrap(), &wanted, "broadcast");
        }
    });
}

#[test]
fn calls_on_many_buffers_have_the_right_results() {
    in_all_worlds(PIECE, |rank| {
        let (mut floats, mut words) = (
            rank.buffer(&contribution::<f32>(rank.rank, 100)),
            rank.buffer(&contribution::<i16>(rank.rank, 7)),
        );
        let views = vec![floats.view_mut(), words.view_mut()];
        rank.staged.all_reduce_coalesced(views, ReduceOp::Sum).unwrap();
        let sum = |index| reduced(ReduceOp::Sum, rank.size, index);
        assert_bits(&floats.to_vec().unwrap(), &elements::<f32>(0..100, sum), "the floats");
        assert_bits(&words.to_vec().unwrap(), &elements::<i16>(0..7, sum), "the words");
        let (root, mut ours) = (rank.size - 1, rank.buffer(&[rank.rank as u8; 200]));
        let views = vec![floats.view_mut(), ours.view_mut()];
        rank.staged.broadcast_coalesced(root, views).unwrap();
        assert_bits(&ours.to_vec().unwrap(), &[root as u8; 200], "the bytes of the root");
    });
}

#[test]
fn if_one_of_many_buffers_is_refused_nothing_is_done_with_any() {
    let devices = devices(3);
    staged(&devices[..2], PIECE, |rank| {
        let elsewhere = Device::open(devices[2]).unwrap().new_stream().unwrap();
        let mut ours = rank.buffer(&[1_u8; 100]);
        let mut theirs = DeviceBuffer::from_host(&elsewhere, &[1_u8; 100]).unwrap();
        let mut floats = rank.buffer(&[1.0_f32; 10]);
        let mut eights = rank.buffer(&[F8E4M3::ONE; 10]);
        let views = vec![ours.view_mut(), eights.view_mut()];
        let on_eight_bits = rank.staged.all_reduce_coalesced(views, ReduceOp::Sum);
        let views = vec![ours.view_mut(), floats.view_mut()];
        let on_bits = rank.staged.all_reduce_coalesced(views, ReduceOp::BitOr);
        let views = vec![ours.view_mut(), theirs.view_mut()];
        let another_device = rank.staged.all_reduce_coalesced(views, ReduceOp::Sum);
        let views = vec![ours.view_mut(), theirs.view_mut()];
        let from_there = rank.staged.broadcast_coalesced(rank.rank, views);
        let no_root = rank.staged.broadcast_coalesced(2, vec![ours.view_mut()]);
        for refused in [on_eight_bits, on_bits, another_device, from_there, no_root] {
            assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
        }
        rank.staged.all_reduce_coalesced(vec![ours.view_mut()], ReduceOp::Sum).unwrap();
        assert_eq!(ours.to_vec().unwrap(), [2; 100]);
    });
}

/// Fractions, whose sum has different bits in a different order.
#[test]
fn a_deterministic_order_hides_where_a_call_is_cut() {
    let devices = devices(5);
    for size in crate::device::WORLDS {
        for piece_bytes in [4, 60, 1 << 20] {
            staged(&devices[..size], piece_bytes, |rank| {
                let own: Vec<f32> =
                    (0..300).map(|index| ((rank.rank * 1000 + index) as f32).sin() * 1e3).collect();
                let mut wanted = own.clone();
                let order = ReduceOrder::Deterministic;
                rank.host.with_reduce_order(order).all_reduce(&mut wanted, ReduceOp::Sum).unwrap();
                let mut buffer = rank.buffer(&own);
                rank.staged.with_reduce_order(order).all_reduce(&mut buffer, ReduceOp::Sum).unwrap();
                assert_bits(&buffer.to_vec().unwrap(), &wanted, "a sum of fractions");
            });
        }
    }
}

#[test]
fn the_last_pieces_of_a_call_do_not_meet_the_first_of_the_next() {
    let devices = devices(3);
    control().set(Setting::JitterMicroseconds, crate::device::JITTERS[1]);
    staged(&devices, PIECE, |rank| {
        let mut buffer = rank.buffer(&vec![1_i64; 50]);
        // The host waits for nothing in between.
        for _ in 0..20 {
            rank.staged.all_reduce(&mut buffer, ReduceOp::Max).unwrap();
            rank.staged.all_reduce(&mut buffer, ReduceOp::Sum).unwrap();
        }
        assert_bits(&buffer.to_vec().unwrap(), &vec![3_i64.pow(20); 50], "twenty sums");
    });
    assert_eq!(faults_of(&devices), Vec::<String>::new());
}
