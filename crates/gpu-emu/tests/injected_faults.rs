//! Failures, including injected ones, and their records.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod common;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use gpu_emu::Setting;
use nccl_sys::{NCCL_CONFIG_INITIALIZER, ncclComm_t, ncclConfig_t, ncclResult_t};

use common::ranks::{Args, OK, Rank, last_error, nccl, unique_id, words, world};
use common::{control, devices, faults, faults_of};

/// Settings apply to the process, so tests run one at a time. Restores the previous settings when
/// dropped.
fn with(settings: &[(Setting, u64, u64)]) -> impl Drop + use<> {
    struct PutBack(Vec<(Setting, u64)>, #[allow(dead_code)] MutexGuard<'static, ()>);
    impl Drop for PutBack {
        fn drop(&mut self) {
            self.0.iter().for_each(|(setting, value)| control().set(*setting, *value));
        }
    }
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    settings.iter().for_each(|(setting, value, _)| control().set(*setting, *value));
    PutBack(settings.iter().map(|(setting, _, before)| (*setting, *before)).collect(), alone)
}

fn non_blocking() -> ncclConfig_t {
    ncclConfig_t { blocking: 0, ..NCCL_CONFIG_INITIALIZER }
}

/// Calls `run` on each of two ranks that are connected by a non-blocking initialization.
fn two_non_blocking(run: impl Fn(Rank) + Sync) {
    let (devices, id) = (devices(2), unique_id());
    thread::scope(|scope| {
        for (rank, device) in devices.iter().enumerate() {
            let run = &run;
            scope.spawn(move || {
                let mut member = Rank::on(*device, rank, 2);
                assert_eq!(member.init(id, Some(non_blocking())), ncclResult_t::ncclInProgress);
                assert_eq!(member.async_error(), ncclResult_t::ncclInProgress);
                assert_eq!(member.settled(), OK, "{}", last_error());
                run(member);
            });
        }
    });
}

#[test]
fn calls_of_a_non_blocking_communicator_are_in_progress_first() {
    let _alone = with(&[(Setting::InitMilliseconds, 50, 0), (Setting::CallMilliseconds, 50, 0)]);
    two_non_blocking(|mut member| {
        let buffer = member.floats(&[1.5]);
        let args = member.args(member.at(&buffer), member.at(&buffer), 1);
        assert_eq!(member.call("AllReduce", args), ncclResult_t::ncclInProgress);
        assert_eq!(member.call("AllReduce", args), ncclResult_t::ncclInvalidArgument);
        assert!(last_error().contains("before the previous operation"));
        assert_eq!(member.settled(), OK);
        assert_eq!(member.stream.clone_dtoh(&buffer).unwrap(), [3.0]);
        // SAFETY: the communicator exists.
        let finalized = unsafe { nccl().ncclCommFinalize(member.comm) }.unwrap();
        assert_eq!(finalized, ncclResult_t::ncclInProgress);
        assert_eq!(member.settled(), OK);
        assert_eq!(member.call("AllReduce", args), ncclResult_t::ncclInvalidUsage);
        assert_eq!(member.destroy(), OK);
    });
}

#[test]
fn a_split_of_a_non_blocking_communicator_succeeds_before_its_handle_exists() {
    let _alone = with(&[(Setting::InitMilliseconds, 50, 0)]);
    two_non_blocking(|mut member| {
        let (mut config, mut comm) = (non_blocking(), ncclComm_t::NULL);
        // SAFETY: both live until the call has completed.
        let made = unsafe { nccl().ncclCommSplit(member.comm, 0, 0, &raw mut comm, &raw mut config) };
        assert_eq!(made.unwrap(), OK, "{}", last_error());
        assert!(comm.is_null());
        assert_eq!(member.async_error(), ncclResult_t::ncclInProgress);
        assert_eq!(member.settled(), OK, "{}", last_error());
        let mut part = member.fork(comm);
        assert_eq!(part.settled(), OK, "{}", last_error());
        assert_eq!(part.abort(), OK);
        assert_eq!(member.abort(), OK);
    });
}

#[test]
fn an_initialization_without_all_ranks_lasts_until_it_is_aborted() {
    let _alone = with(&[]);
    let mut member = Rank::on(devices(1)[0], 0, 2);
    assert_eq!(member.init(unique_id(), Some(non_blocking())), ncclResult_t::ncclInProgress);
    thread::sleep(Duration::from_millis(50));
    assert_eq!(member.async_error(), ncclResult_t::ncclInProgress);
    assert_eq!(member.abort(), OK);
}

/// Two ranks try to connect. Returns the result of each.
fn connect(devices: [usize; 2], ranks: [usize; 2], worlds: [usize; 2]) -> [ncclResult_t; 2] {
    let id = unique_id();
    let join = |index: usize| {
        let mut member = Rank::on(devices[index], ranks[index], worlds[index]);
        let answer = member.init(id, Some(non_blocking()));
        if answer != ncclResult_t::ncclInProgress {
            return answer;
        }
        // One of two ranks may never be notified that the other was rejected.
        let settled = (0..2000).find_map(|_| {
            thread::sleep(Duration::from_millis(1));
            let error = member.async_error();
            (error != ncclResult_t::ncclInProgress).then_some(error)
        });
        assert_eq!(member.abort(), OK);
        settled.unwrap_or(ncclResult_t::ncclInProgress)
    };
    thread::scope(|scope| [scope.spawn(|| join(0)), scope.spawn(|| join(1))].map(|rank| rank.join().unwrap()))
}

#[test]
fn two_ranks_on_one_device_are_refused_unless_that_is_allowed() {
    let _alone = with(&[(Setting::SharedDevices, 0, 0)]);
    let ours = devices(1)[0];
    let refused = ncclResult_t::ncclInvalidUsage;
    assert_eq!(connect([ours; 2], [0, 1], [2; 2]), [refused; 2]);
    assert!(last_error().contains("Duplicate GPU detected"), "{}", last_error());
    control().set(Setting::SharedDevices, 1);
    assert_eq!(connect([ours; 2], [0, 1], [2; 2]), [OK; 2]);
}

#[test]
fn ranks_that_do_not_fit_together_are_refused() {
    let _alone = with(&[]);
    let refused = ncclResult_t::ncclInvalidUsage;
    let ours = devices(2);
    assert!(connect([ours[0], ours[1]], [0, 1], [2, 3]).contains(&refused));
    assert!(connect([ours[0], ours[1]], [0, 0], [2, 2]).contains(&refused));
    let mut lone = Rank::on(ours[0], 0, 1);
    lone.rank = 1;
    assert_eq!(lone.init(unique_id(), None), ncclResult_t::ncclInvalidArgument);
    let foreign = nccl_sys::ncclUniqueId { internal: [1; 128] };
    assert_eq!(Rank::on(ours[0], 0, 1).init(foreign, None), ncclResult_t::ncclInvalidArgument);
    let unmarked = ncclConfig_t { magic: 0, ..NCCL_CONFIG_INITIALIZER };
    assert_eq!(Rank::on(ours[0], 0, 1).init(unique_id(), Some(unmarked)), ncclResult_t::ncclInvalidArgument);
}

#[test]
fn a_planned_result_applies_once_and_only_on_its_device() {
    let _alone = with(&[]);
    let devices = devices(2);
    for code in [8, 99] {
        control().plan_answer(devices[0], c"ncclAllReduce", 1, ncclResult_t(code));
        world(&devices, |member| {
            assert_eq!(member.all_reduce(&[1.0]), [2.0]);
            if member.rank == 0 {
                let buffer = member.floats(&[1.0]);
                let args = member.args(member.at(&buffer), member.at(&buffer), 1);
                assert_eq!(member.call("AllReduce", args), ncclResult_t(code));
            }
            assert_eq!(member.all_reduce(&[1.0]), [2.0]);
        });
    }
    assert_eq!(
        (words(ncclResult_t(8)).as_str(), words(ncclResult_t(99)).as_str()),
        ("timeout", "unknown result code")
    );
}

#[test]
fn a_planned_error_is_seen_and_ends_with_an_abort() {
    let _alone = with(&[]);
    let devices = devices(2);
    control().plan_async_error(devices[0], 1, ncclResult_t::ncclRemoteError);
    world(&devices, |member| {
        assert_eq!(member.all_reduce(&[1.0]), [2.0]);
        let buffer = member.floats(&[1.0]);
        let args = member.args(member.at(&buffer), member.at(&buffer), 1);
        assert_eq!(member.call("AllReduce", args), OK);
        if member.rank == 0 {
            while member.async_error() == OK {
                thread::yield_now();
            }
            assert_eq!(member.async_error(), ncclResult_t::ncclRemoteError);
            assert_eq!(member.call("AllReduce", args), ncclResult_t::ncclRemoteError);
        } else {
            thread::sleep(Duration::from_millis(50));
            assert_eq!(member.async_error(), OK);
        }
        assert!(!member.stream.record_event(None).unwrap().is_complete());
        assert_eq!(member.abort(), OK);
        assert!(member.stream.clone_dtoh(&buffer).unwrap()[0].is_nan());
    });
}

#[test]
fn a_planned_hang_holds_everybody_up_until_they_abort() {
    let _alone = with(&[]);
    let devices = devices(3);
    control().plan_hang(devices[2], 0);
    world(&devices, |member| {
        let buffer = member.floats(&[1.0]);
        let args = member.args(member.at(&buffer), member.at(&buffer), 1);
        assert_eq!(member.call("AllReduce", args), OK);
        let done = member.stream.record_event(None).unwrap();
        thread::sleep(Duration::from_millis(50));
        assert!(!done.is_complete());
        assert_eq!((member.async_error(), member.abort()), (OK, OK));
        member.stream.synchronize().unwrap();
    });
}

#[test]
fn a_planned_bit_is_wrong_once_and_on_one_rank_only() {
    let _alone = with(&[]);
    let devices = devices(2);
    control().plan_wrong_bit(devices[1], 1);
    let sums = world(&devices, |member| [0; 3].map(|_| member.all_reduce(&[1.0, 2.0])));
    let right = vec![2.0, 4.0];
    assert_eq!(sums[0], [right.clone(), right.clone(), right.clone()]);
    assert_eq!((&sums[1][0], &sums[1][2]), (&right, &right));
    // The last byte of a float contains its sign, and all but one bit of its exponent.
    assert_eq!(sums[1][1], [2.0, f32::from_bits(4.0_f32.to_bits() ^ (1 << 24))]);
}

#[test]
fn ranks_in_different_calls_hang_or_fail_as_it_is_set() {
    let devices = devices(2);
    for fails in [false, true] {
        let _alone = with(&[(Setting::MismatchFails, u64::from(fails), 0)]);
        world(&devices, |member| {
            let buffer = member.floats(&[1.0; 4]);
            let count = 3 + member.rank;
            let args = member.args(member.at(&buffer), member.at(&buffer), count);
            assert_eq!(member.call("AllReduce", args), OK);
            while fails && member.async_error() == OK {
                thread::yield_now();
            }
            thread::sleep(Duration::from_millis(50));
            assert!(!member.stream.record_event(None).unwrap().is_complete());
            let wanted = if fails { ncclResult_t::ncclInvalidUsage } else { OK };
            assert_eq!((member.async_error(), member.abort()), (wanted, OK));
            let faults = faults_of(devices[member.rank]);
            assert!(faults.iter().any(|fault| fault.contains("calls AllReduce with")), "{faults:?}");
        });
    }
}

#[test]
fn a_rank_that_is_gone_is_noticed_only_if_it_is_set() {
    let devices = devices(2);
    for fails in [false, true] {
        let _alone = with(&[(Setting::PeerLossFails, u64::from(fails), 0)]);
        world(&devices, |member| {
            if member.rank == 1 {
                return;
            }
            let buffer = member.floats(&[1.0]);
            assert_eq!(member.call("AllReduce", member.args(member.at(&buffer), member.at(&buffer), 1)), OK);
            while fails && member.async_error() == OK {
                thread::yield_now();
            }
            thread::sleep(Duration::from_millis(50));
            let wanted = if fails { ncclResult_t::ncclRemoteError } else { OK };
            assert_eq!((member.async_error(), member.abort()), (wanted, OK));
            member.stream.synchronize().unwrap();
        });
    }
}

#[test]
fn a_communicator_that_ended_is_not_used() {
    let _alone = with(&[]);
    let devices = devices(1);
    let mut stale = ncclComm_t::NULL;
    world(&devices, |member| member.fork(member.comm).comm.0 as usize)
        .iter()
        .for_each(|handle| stale = ncclComm_t(std::ptr::without_provenance_mut(*handle)));
    let mut member = Rank::on(devices[0], 0, 1).fork(stale);
    assert_eq!(member.call("AllReduce", member.args(0, 0, 1)), ncclResult_t::ncclInvalidArgument);
    assert_eq!(member.destroy(), ncclResult_t::ncclInvalidArgument);
    assert!(faults(None).contains(&"a communicator was used after it was destroyed".to_owned()));
    let none = Rank::on(devices[0], 0, 1).fork(ncclComm_t::NULL);
    assert_eq!(none.fork(ncclComm_t::NULL).abort(), OK);
    assert_eq!(none.call("AllReduce", none.args(0, 0, 1)), ncclResult_t::ncclInvalidArgument);
}

#[test]
fn a_stream_of_another_device_is_refused() {
    let _alone = with(&[]);
    let devices = devices(2);
    let other = Rank::on(devices[1], 0, 1);
    world(&devices[..1], |member| {
        let buffer = member.floats(&[1.0]);
        let args = member.args(member.at(&buffer), member.at(&buffer), 1);
        let stream = other.stream.cu_stream().cast();
        assert_eq!(member.call_on(stream, "AllReduce", args), ncclResult_t::ncclUnhandledCudaError);
        assert!(faults_of(devices[0])[0].contains("the stream is of device"));
    });
}

#[test]
fn calls_are_recorded_with_their_arguments() {
    let _alone = with(&[]);
    let devices = devices(1);
    let name = c"a-name";
    let config = ncclConfig_t { minCTAs: 3, commName: name.as_ptr(), ..NCCL_CONFIG_INITIALIZER };
    let mut member = Rank::on(devices[0], 0, 1);
    assert_eq!(member.init(unique_id(), Some(config)), OK);
    let buffer = member.floats(&[1.0; 12]);
    let at = member.at(&buffer);
    let args = Args { root: 0, ..member.args(at, at, 12) };
    assert_eq!(member.call("Reduce", args), OK);
    assert_eq!(member.call("Reduce", Args { root: 4, ..args }), ncclResult_t::ncclInvalidArgument);
    let mut on = -1;
    // SAFETY: the answer is written to a number that lives here.
    assert_eq!(unsafe { nccl().ncclCommCuDevice(member.comm, &raw mut on) }.unwrap(), OK);
    assert_eq!(on, devices[0] as i32);
    // SAFETY: the communicator exists.
    assert_eq!(unsafe { nccl().ncclCommFinalize(member.comm) }.unwrap(), OK);
    assert_eq!(member.call("Reduce", args), ncclResult_t::ncclInvalidUsage);
    assert_eq!(member.destroy(), OK);
    let device = devices[0].to_string();
    let mut calls = control().take_calls();
    calls.retain(|call| call.argument("device") == Some(&device));
    let names: Vec<_> = calls.iter().map(|call| (call.name.as_str(), call.code)).collect();
    let wanted = [
        ("ncclCommInitRankConfig", 0),
        ("ncclReduce", 0),
        ("ncclReduce", 4),
        ("ncclCommFinalize", 0),
        ("ncclReduce", 5),
        ("ncclCommDestroy", 0),
    ];
    assert_eq!(names, wanted);
    assert_eq!((calls[0].argument("min_ctas"), calls[0].argument("name")), (Some("3"), Some("a-name")));
    assert_eq!((calls[1].argument("count"), calls[2].argument("root")), (Some("12"), Some("4")));
    assert_eq!(calls[1].argument("input"), Some(format!("{at:#x}").as_str()));
}
