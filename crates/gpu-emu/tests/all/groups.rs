//! Groups of calls, messages between two ranks, and communicators created from others.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::time::Duration;

use nccl_sys::{NCCL_SHRINK_ABORT, NCCL_SHRINK_DEFAULT, NCCL_SPLIT_NOCOLOR, ncclComm_t, ncclResult_t};

use crate::common::ranks::{Args, OK, Rank, group_end, group_start, last_error, nccl, unique_id, world};
use crate::common::{control, devices};

#[test]
fn messages_are_exchanged_in_a_group() {
    let devices = devices(5);
    world(&devices, |member| {
        let (rank, size) = (member.rank, member.world);
        let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
        let (mine, theirs) = (member.floats(&[rank as f32; 3]), member.floats(&[0.0; 3]));
        let args = member.args(member.at(&mine), member.at(&theirs), 3);
        group_start();
        assert_eq!(member.call("Send", Args { root: next as i32, ..args }), OK);
        assert_eq!(member.call("Recv", Args { root: before as i32, ..args }), OK);
        assert_eq!(group_end(), OK);
        assert_eq!(member.stream.clone_dtoh(&theirs).unwrap(), [before as f32; 3]);
    });
}

#[test]
fn messages_to_one_rank_arrive_in_their_order() {
    let devices = devices(2);
    world(&devices, |member| {
        let values = member.floats(&[1.0, 2.0, 3.0]);
        let other = 1 - member.rank as i32;
        for index in 0..3 {
            let at = member.at(&values) + 4 * index;
            let place = if member.rank == 0 { at } else { member.at(&values) + 8 - 4 * index };
            let name = if member.rank == 0 { "Send" } else { "Recv" };
            assert_eq!(member.call(name, Args { root: other, ..member.args(place, place, 1) }), OK);
        }
        let wanted = if member.rank == 0 { [1.0, 2.0, 3.0] } else { [3.0, 2.0, 1.0] };
        assert_eq!(member.stream.clone_dtoh(&values).unwrap(), wanted);
    });
}

#[test]
fn nothing_of_a_group_happens_before_its_end() {
    let devices = devices(2);
    world(&devices, |member| {
        let buffer = member.floats(&[1.0]);
        let args = member.args(member.at(&buffer), member.at(&buffer), 1);
        group_start();
        group_start();
        assert_eq!(member.call("AllReduce", args), OK);
        assert_eq!(group_end(), OK);
        // The stream has nothing to wait for yet.
        assert_eq!(member.stream.clone_dtoh(&buffer).unwrap(), [1.0]);
        assert_eq!(group_end(), OK);
        assert_eq!(member.stream.clone_dtoh(&buffer).unwrap(), [2.0]);
    });
}

#[test]
fn a_call_that_is_refused_takes_its_group_with_it() {
    let devices = devices(1);
    world(&devices, |member| {
        let buffer = member.floats(&[5.0, 6.0]);
        let (from, to) = (member.at(&buffer), member.at(&buffer) + 4);
        group_start();
        assert_eq!(member.call("AllReduce", member.args(from, to, 1)), OK);
        let refused = member.call("Broadcast", Args { root: 7, ..member.args(from, to, 1) });
        assert_eq!(refused, ncclResult_t::ncclInvalidArgument);
        assert_eq!(group_end(), ncclResult_t::ncclInvalidArgument);
        assert_eq!(member.stream.clone_dtoh(&buffer).unwrap(), [5.0, 6.0]);
        assert_eq!(group_end(), ncclResult_t::ncclInvalidUsage);
        assert_eq!(last_error(), "ncclGroupEnd: not in a group call.");
    });
}

#[test]
fn two_ranks_that_send_first_wait_for_each_other_until_they_abort() {
    let devices = devices(2);
    world(&devices, |member| {
        let buffer = member.floats(&[1.0, 2.0]);
        let (from, to) = (member.at(&buffer), member.at(&buffer) + 4);
        let args = Args { root: 1 - member.rank as i32, ..member.args(from, to, 1) };
        assert_eq!(member.call("Send", args), OK);
        assert_eq!(member.call("Recv", args), OK);
        let event = member.stream.record_event(None).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        assert!(!event.is_complete());
        assert!(control().waiting().iter().any(|line| line.contains("Receipt")));
        assert_eq!(member.abort(), OK);
        let after = member.stream.clone_dtoh(&buffer).unwrap();
        assert!(after[0] == 1.0 && after[1].is_nan(), "{after:?}");
    });
}

#[test]
fn one_thread_makes_all_ranks_in_a_group() {
    let devices = devices(3);
    let id = unique_id();
    let mut ranks: Vec<Rank> =
        devices.iter().enumerate().map(|(rank, device)| Rank::on(*device, rank, 3)).collect();
    group_start();
    for rank in &mut ranks {
        assert_eq!(rank.init(id, None), OK);
    }
    assert_eq!(group_end(), OK, "{}", last_error());
    let buffers: Vec<_> = ranks.iter().map(|rank| rank.floats(&[2.0])).collect();
    group_start();
    for (rank, buffer) in ranks.iter().zip(&buffers) {
        assert_eq!(rank.call("AllReduce", rank.args(rank.at(buffer), rank.at(buffer), 1)), OK);
    }
    assert_eq!(group_end(), OK);
    for (rank, buffer) in ranks.iter().zip(&buffers) {
        assert_eq!(rank.stream.clone_dtoh(buffer).unwrap(), [6.0]);
    }
    assert!(ranks.iter_mut().all(|rank| rank.destroy() == OK));
}

#[test]
fn init_all_makes_one_communicator_per_device() {
    let devices = devices(2);
    let list: Vec<i32> = devices.iter().map(|device| *device as i32).collect();
    let ranks: Vec<Rank> =
        devices.iter().enumerate().map(|(rank, device)| Rank::on(*device, rank, 2)).collect();
    let mut comms = [ncclComm_t::NULL; 2];
    // SAFETY: the array has a handle for each listed device.
    let made = unsafe { nccl().ncclCommInitAll(comms.as_mut_ptr(), 2, list.as_ptr()) };
    assert_eq!(made.unwrap(), OK, "{}", last_error());
    let mut ranks: Vec<Rank> = ranks.iter().zip(comms).map(|(rank, comm)| rank.fork(comm)).collect();
    let (first, second) = ranks.split_at_mut(1);
    std::thread::scope(|scope| {
        for rank in [&mut first[0], &mut second[0]] {
            scope.spawn(move || {
                assert_eq!(rank.all_reduce(&[3.0]), [6.0]);
                assert_eq!(rank.destroy(), OK);
            });
        }
    });
}

fn query(comm: ncclComm_t) -> (i32, i32) {
    let (mut count, mut rank) = (0, 0);
    // SAFETY: the answers are written to numbers that live here.
    assert_eq!(unsafe { nccl().ncclCommCount(comm, &raw mut count) }.unwrap(), OK);
    // SAFETY: as above.
    assert_eq!(unsafe { nccl().ncclCommUserRank(comm, &raw mut rank) }.unwrap(), OK);
    (count, rank)
}

#[test]
fn a_communicator_is_split_by_color_and_ordered_by_key() {
    let devices = devices(5);
    world(&devices, |member| {
        let rank = member.rank as i32;
        let color = if rank == 4 { NCCL_SPLIT_NOCOLOR } else { rank % 2 };
        let mut comm = ncclComm_t::NULL;
        // SAFETY: the handle is written to a value that lives here.
        let made =
            unsafe { nccl().ncclCommSplit(member.comm, color, -rank, &raw mut comm, std::ptr::null_mut()) };
        assert_eq!(made.unwrap(), OK, "{}", last_error());
        assert_eq!(comm.is_null(), rank == 4);
        if rank != 4 {
            assert_eq!(query(comm), (2, i32::from(rank < 2)));
            let mut part = member.fork(comm);
            assert_eq!(part.all_reduce(&[rank as f32]), [[2.0], [4.0]][member.rank % 2]);
            assert_eq!(part.destroy(), OK);
        }
        assert_eq!(member.all_reduce(&[1.0]), [5.0]);
    });
}

#[test]
fn a_communicator_is_shrunk_without_some_ranks() {
    let devices = devices(3);
    world(&devices, |member| {
        if member.rank != 1 {
            go_on_without_rank_1(member, NCCL_SHRINK_DEFAULT);
        }
    });
}

#[test]
fn a_communicator_that_hangs_is_shrunk_without_the_missing_rank() {
    let devices = devices(3);
    world(&devices, |member| {
        if member.rank != 1 {
            let buffer = member.floats(&[1.0]);
            let at = member.at(&buffer);
            assert_eq!(member.call("AllReduce", member.args(at, at, 1)), OK);
            go_on_without_rank_1(member, NCCL_SHRINK_ABORT);
            assert!(member.stream.clone_dtoh(&buffer).unwrap()[0].is_nan());
        }
    });
}

fn go_on_without_rank_1(member: &Rank, flags: i32) {
    let (mut comm, mut excluded) = (ncclComm_t::NULL, [1]);
    // SAFETY: the handle is written to a value that lives here, and the list has one entry.
    let made = unsafe {
        let (list, config) = (excluded.as_mut_ptr(), std::ptr::null_mut());
        nccl().ncclCommShrink(member.comm, list, 1, &raw mut comm, config, flags)
    };
    assert_eq!(made.unwrap(), OK, "{}", last_error());
    assert_eq!(query(comm), (2, member.rank as i32 / 2));
    let mut rest = member.fork(comm);
    assert_eq!(rest.all_reduce(&[member.rank as f32]), [2.0]);
    assert_eq!(rest.destroy(), OK);
}
