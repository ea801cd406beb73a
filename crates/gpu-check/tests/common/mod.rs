//! Runs the suite on the emulator: the test program starts itself once per rank.
#![allow(dead_code, reason = "each test file is a program of its own, and uses a part of this")]

use std::process::Command;
use std::time::Duration;

use comm_nccl::{Library, Search};
use gpu_check::record::{CaseResult, Verdict};
use gpu_check::run::Runner;
use gpu_check::{CASES, Case, CaseSpec, Ranks, run_rank};
use gpu_emu::Control;
use nccl_sys::ncclResult_t;

/// The fault of a rank, as `RANK:FAULT`; see [`plan`].
pub(crate) const FAULT: &str = "GPU_CHECK_TEST_FAULT";
/// A function that the emulated NCCL lacks, like an older version.
pub(crate) const WITHOUT: &str = "GPU_CHECK_TEST_WITHOUT";
/// Two devices without disorder.
pub(crate) const CALM: [(&str, &str); 1] = [("GPU_EMU_DEVICES", "2")];
/// Two devices whose streams are delayed.
pub(crate) const DISORDER: [(&str, &str); 2] =
    [("GPU_EMU_DEVICES", "2"), ("GPU_EMU_JITTER_MICROSECONDS", "200")];
/// One device for two ranks.
pub(crate) const SHARED: [(&str, &str); 3] =
    [("GPU_EMU_DEVICES", "1"), ("GPU_EMU_SHARED_DEVICES", "1"), ("NCCL_MULTI_RANK_GPU_ENABLE", "1")];

/// Runs the rank of a process that a test started, if there is one.
pub(crate) fn run_spec() {
    let Some(spec) = CaseSpec::from_env().unwrap() else { return };
    let without = std::env::var(WITHOUT).ok();
    let control = without.map_or_else(Control::load, |symbol| Control::load_without(&[&symbol])).unwrap();
    let fault = std::env::var(FAULT).unwrap_or_default();
    let is_planned = plan(control, &spec, &fault);
    run_rank(&spec, || Ok(Library::load(&Search::new().at(control.path()))?)).unwrap();
    // Different calls of the ranks are a fault, except in the case that tests them.
    if !is_planned && spec.name != "different_calls" {
        assert_eq!(control.take_faults(), []);
    }
}

/// Plans a fault if this is the rank: `wrong-bit N`, `hang N` or `async-error N` for the operation
/// after N others, `answer CALL CODE N` for a call after N others of its name, `die`, `never-end`.
/// Returns whether any rank has a fault.
fn plan(control: &Control, spec: &CaseSpec, fault: &str) -> bool {
    let Some((rank, what)) = fault.split_once(':') else { return false };
    if rank != spec.rank.to_string() {
        return true;
    }
    let number = |text: &str| text.parse().unwrap();
    match what.split(' ').collect::<Vec<_>>()[..] {
        ["wrong-bit", before] => control.plan_wrong_bit(spec.device, number(before)),
        ["hang", before] => control.plan_hang(spec.device, number(before)),
        ["async-error", before] => {
            control.plan_async_error(spec.device, number(before), ncclResult_t::ncclRemoteError);
        }
        ["answer", call, code, before] => {
            let call = std::ffi::CString::new(call).unwrap();
            control.plan_code(spec.device, &call, number(before), code.parse().unwrap());
        }
        ["die"] => std::process::abort(),
        ["never-end"] => loop {
            std::thread::sleep(Duration::from_secs(60));
        },
        _ => panic!("unknown fault {what:?}"),
    }
    true
}

/// Returns a process of this program on the emulator with these settings.
pub(crate) fn start(settings: &[(&str, &str)]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "a_process_runs_its_rank", "--nocapture"]);
    command.envs(settings.iter().copied());
    command
}

/// Calls `run` with a runner on the emulator.
pub(crate) fn on_emulator<T>(settings: &[(&str, &str)], run: impl FnOnce(&Runner<'_>) -> T) -> T {
    run(&Runner {
        start: &|| Ok(start(settings)),
        device: 0,
        call_timeout: Duration::from_secs(60),
        limit: Duration::from_secs(200),
    })
}

pub(crate) fn named(name: &str) -> &'static Case {
    CASES.iter().find(|case| case.name == name).unwrap()
}

/// Returns the devices of one rank, and of two.
pub(crate) fn groups(case: &Case, two: &'static [usize]) -> Vec<&'static [usize]> {
    match case.ranks {
        Ranks::One => vec![&[0]],
        Ranks::Several => vec![two],
        Ranks::OneAndSeveral => vec![&[0], two],
    }
}

#[track_caller]
pub(crate) fn assert_passed(ended: &CaseResult) {
    assert_eq!(ended.verdict, Verdict::Passed, "{} of {}: {}", ended.case, ended.ranks, ended.message);
}
