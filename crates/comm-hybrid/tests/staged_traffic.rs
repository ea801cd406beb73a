//! The copies between devices and the host, and their order, as the emulator recorded them.
//! They run in a separate program, because the records cover the whole process.
#![cfg(feature = "nccl")]
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "all/device.rs"]
mod device;

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use comm_core::{Buffers, Call, Communicator, Counts, Fabric, HostViewMut, ReduceOp, Result, Signature};
use comm_hybrid::StagedCommunicator;
use comm_nccl::{CudaView, Device, DeviceBuffer};
use comm_sim::in_process::{InProcessConfig, run};

use device::{Rank, SOON, control, devices, on_host, options, staged};

const PIECE: usize = 64;
/// Elements of four bytes in a piece that is one block.
const WIDTH: usize = PIECE / 4;

/// Waits until no other test runs.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The location of the elements of a buffer.
fn place(buffer: &DeviceBuffer<i32>) -> Range<u64> {
    let view: CudaView<'_> = buffer.view();
    view.pointer()..view.pointer() + 4 * buffer.len() as u64
}

/// The addresses on devices, and the bytes, of recorded copies.
#[derive(Debug, Default)]
struct Copies {
    down: Vec<(u64, usize)>,
    up: Vec<(u64, usize)>,
}

impl Copies {
    /// Adds the traffic since the last time.
    fn look(&mut self) {
        let address = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap();
        for call in control().take_calls() {
            let argument = |name| call.argument(name).unwrap();
            match call.name.as_str() {
                "cuMemcpyDtoHAsync" => {
                    self.down.push((address(argument("from")), argument("bytes").parse().unwrap()));
                }
                "cuMemcpyHtoDAsync" => {
                    self.up.push((address(argument("to")), argument("bytes").parse().unwrap()));
                }
                _ => {}
            }
        }
    }
}

/// The elements that were copied from the device of each rank, and to it, in a call on `send` and
/// `recv` elements.
fn traffic(
    ranks: usize,
    elements: (usize, usize),
    call: impl Fn(&Rank, &DeviceBuffer<i32>, &mut DeviceBuffer<i32>) -> Result<()> + Sync,
) -> Vec<[usize; 2]> {
    let _alone = alone();
    let outcomes = staged(&devices(ranks), PIECE, |rank| {
        let (send, mut recv) = (rank.buffer(&vec![1; elements.0]), rank.buffer(&vec![2; elements.1]));
        let barrier = || rank.host.barrier().unwrap();
        barrier();
        if rank.rank == 0 {
            drop(control().take_calls());
        }
        barrier();
        call(&rank, &send, &mut recv).unwrap();
        rank.communicator.synchronize().unwrap();
        barrier();
        let mut copies = Copies::default();
        if rank.rank == 0 {
            copies.look();
        }
        barrier();
        ([place(&send), place(&recv)], copies)
    });
    let copies = &outcomes[0].1;
    let within = |copies: &[(u64, usize)], places: &[Range<u64>]| {
        let ours = copies.iter().filter(|(at, _)| places.iter().any(|place| place.contains(at)));
        ours.map(|(_, bytes)| bytes / 4).sum()
    };
    outcomes.iter().map(|(places, _)| [within(&copies.down, places), within(&copies.up, places)]).collect()
}

/// Many pieces, and a last one that is shorter.
const LONG: usize = 5 * WIDTH + 3;

#[test]
fn receivers_of_a_broadcast_copy_nothing_down() {
    let copied = traffic(3, (0, LONG), |rank, _, buffer| rank.staged.broadcast(1, buffer));
    assert_eq!(copied, [[0, LONG], [LONG, 0], [0, LONG]]);
}

#[test]
fn only_the_root_of_a_reduction_copies_anything_up() {
    let copied =
        traffic(3, (LONG, LONG), |rank, send, recv| rank.staged.reduce_into(2, send, recv, ReduceOp::Sum));
    assert_eq!(copied, [[LONG, 0], [LONG, 0], [LONG, LONG]]);
    let copied = traffic(3, (0, LONG), |rank, _, buffer| rank.staged.reduce(0, buffer, ReduceOp::Sum));
    assert_eq!(copied, [[LONG, LONG], [LONG, 0], [LONG, 0]]);
}

#[test]
fn a_gather_copies_to_the_device_only_on_the_root_and_only_received_blocks() {
    let copied = traffic(3, (LONG, 3 * LONG), |rank, send, recv| rank.staged.gather(1, send, recv));
    assert_eq!(copied, [[LONG, 0], [LONG, 3 * LONG], [LONG, 0]]);
    let copied = traffic(3, (0, 3 * LONG), |rank, _, recv| {
        let buffers = Buffers::InPlace(if rank.rank == 1 {
            recv.view_mut()
        } else {
            recv.slice_mut(..LONG)?.into_view_mut()
        });
        rank.communicator.run(Call::Gather { root: 1, buffers, counts: Counts::Equal }, &options())
    });
    assert_eq!(copied, [[LONG, 0], [LONG, 2 * LONG], [LONG, 0]]);
}

#[test]
fn a_scatter_copies_to_the_host_only_on_the_root_and_not_its_own_block() {
    let copied = traffic(3, (3 * LONG, LONG), |rank, send, recv| rank.staged.scatter(1, send, recv));
    assert_eq!(copied, [[0, LONG], [3 * LONG, LONG], [0, LONG]]);
    let copied = traffic(3, (3 * LONG, LONG), |rank, send, recv| {
        let buffers =
            if rank.rank == 1 { Buffers::SendOnly(send.view()) } else { Buffers::InPlace(recv.view_mut()) };
        rank.communicator.run(Call::Scatter { root: 1, buffers, counts: Counts::Equal }, &options())
    });
    assert_eq!(copied, [[0, LONG], [2 * LONG, 0], [0, LONG]]);
}

#[test]
fn blocks_are_copied_only_where_they_are_new() {
    let copied = traffic(3, (LONG, 3 * LONG), |rank, send, recv| rank.staged.all_gather(send, recv));
    assert_eq!(copied, [[LONG, 3 * LONG]; 3]);
    let copied = traffic(3, (0, 3 * LONG), |rank, _, buffer| rank.staged.all_gather_in_place(buffer));
    assert_eq!(copied, [[LONG, 2 * LONG]; 3]);
    let copied = traffic(3, (0, 3 * LONG), |rank, _, buffer| {
        rank.staged.reduce_scatter_in_place(buffer, ReduceOp::Sum)
    });
    assert_eq!(copied, [[3 * LONG, LONG]; 3]);
}

/// Waits for this number of copies to the host and to the device, and asserts that no more follow.
fn await_copies(seen: &mut Copies, down: usize, up: usize) {
    let began = Instant::now();
    while (seen.down.len(), seen.up.len()) != (down, up) {
        seen.look();
        assert!(began.elapsed() < SOON, "{seen:?} and not {down} down, {up} up");
        thread::sleep(Duration::from_millis(1));
    }
    thread::sleep(Duration::from_millis(50));
    seen.look();
    assert_eq!((seen.down.len(), seen.up.len()), (down, up));
}

/// Rank 1 makes the calls on the host itself, one by one. The work that rank 0 enqueues in between
/// overlaps with the transfers.
#[test]
fn copies_of_the_next_and_last_pieces_overlap_with_the_wire() {
    const PIECES: usize = 6;
    let _alone = alone();
    let device = devices(1)[0];
    run(2, &InProcessConfig::default(), |fabric| {
        let rank = fabric.group().rank();
        let host = on_host(fabric);
        if rank == 0 {
            let device = Device::open(device).unwrap();
            let staged = StagedCommunicator::new(Arc::clone(&host), &device, PIECE, SOON).unwrap();
            let stream = device.new_stream().unwrap();
            let mut buffer = DeviceBuffer::from_host(&stream, &[1; PIECES * WIDTH]).unwrap();
            drop(control().take_calls());
            host.run(Call::Barrier, &options()).unwrap();
            let view = Buffers::InPlace(buffer.view_mut());
            staged.run(Call::AllReduce { buffers: view, op: ReduceOp::Sum }, &options()).unwrap();
            host.run(Call::Barrier, &options()).unwrap();
            assert_eq!(buffer.to_vec().unwrap(), [8; PIECES * WIDTH]);
            return;
        }
        let mut piece_bytes = [0_u64];
        host.run(Call::Broadcast { root: 0, buffer: HostViewMut::new(&mut piece_bytes) }, &options())
            .unwrap();
        assert_eq!(piece_bytes, [PIECE as u64]);
        let mut call = options();
        call.extra_fingerprint = Signature::fingerprint_of([0, PIECES as u64, (PIECES * WIDTH) as u64]);
        host.run(Call::Barrier, &options()).unwrap();
        let mut seen = Copies::default();
        for piece in 0..PIECES {
            // The piece and the next one are on the host, and all earlier ones are on the device.
            await_copies(&mut seen, (piece + 2).min(PIECES), piece);
            let mut own = [7; WIDTH];
            let buffers = Buffers::InPlace(HostViewMut::new(&mut own));
            host.run(Call::AllReduce { buffers, op: ReduceOp::Sum }, &call).unwrap();
        }
        await_copies(&mut seen, PIECES, PIECES);
        host.run(Call::Barrier, &options()).unwrap();
    });
}

#[test]
fn pinned_memory_is_bounded_and_kept() {
    let _alone = alone();
    let before = control().live().pinned;
    staged(&devices(1), 1 << 20, |rank| {
        for len in [1, 1 << 20, 1 << 16, 3 << 20] {
            rank.staged.all_reduce(&mut rank.buffer(&vec![1_u8; len]), ReduceOp::Sum).unwrap();
            assert!(control().live().pinned <= before + 3);
        }
        drop(control().take_calls());
        rank.staged.all_reduce(&mut rank.buffer(&vec![1_u8; 5 << 20]), ReduceOp::Sum).unwrap();
        let calls = control().take_calls();
        assert!(calls.iter().all(|call| call.name != "cuMemHostAlloc"), "all memory was allocated before");
    });
    assert_eq!(control().live().pinned, before);
}
