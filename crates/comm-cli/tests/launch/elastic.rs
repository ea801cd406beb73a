//! Tests of elastic launches on one host, whose ranks fail at different moments.

use std::collections::BTreeMap;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};

use crate::harness::{Ended, Launched, commctl, kill, launch, start, wait_for, wait_until_dead};
use crate::steps;

/// Starts two ranks that come and go.
fn pair(change: impl FnOnce(&mut std::process::Command)) -> Launched {
    start(|dir| {
        let mut command = commctl();
        command.args(["run", "-n", "2", "--elastic", "1:2"]);
        steps::program(&mut command, dir.path());
        change(&mut command);
        command
    })
}

fn await_pair(
    launched: &Launched,
    condition: impl Fn(&BTreeMap<usize, Pid>) -> bool,
) -> BTreeMap<usize, Pid> {
    steps::await_group(&launched.path(""), 0, |members| members.len() == 2 && condition(members))
}

/// Checks that a launch has ended with the first of the failures that it has reported.
fn assert_ended_with_first(ended: &Ended, code: i32) {
    let mut reports = ended.stderr.lines().filter(|line| line.starts_with("commctl: "));
    let first = reports.next().unwrap();
    assert_eq!(reports.next_back(), Some(first), "{ended:?}");
    assert_eq!(ended.status.code(), Some(code), "{ended:?}");
}

/// Waits until all threads of a process have exited, and its parent can be notified.
fn wait_until_exited(pid: Pid) {
    let process = pidfd_open(pid, PidfdFlags::empty()).expect("a process that is not reaped");
    let mut descriptors = [PollFd::new(&process, PollFlags::IN)];
    wait_for("an exit", || (poll(&mut descriptors, Some(&Timespec::default())) == Ok(1)).then_some(()));
}

#[test]
fn ranks_that_all_fail_at_once_end_the_launch_with_the_first_failure_and_its_last_lines() {
    // Without a group, a replacement would wait for five minutes.
    let script = r#"[ "$COMM_JOIN" = 0 ] || while :; do sleep 0.05; done
        while [ ! -e "$DIR/go" ]; do sleep 0.01; done; echo "bad argument of $RANK" >&2; exit $((3 + RANK))"#;
    let logs = tempfile::tempdir().unwrap();
    let flags = ["-n", "3", "--elastic", "1:3", "--log-dir", logs.path().to_str().unwrap()];
    let mut launched = launch(&flags, script);
    launched.pids(3);
    std::fs::write(launched.path("go"), "").unwrap();
    let ended = launched.end();
    let reports: Vec<&str> = ended.stderr.lines().filter(|line| line.starts_with("commctl: ")).collect();
    // The last one ends the launch, and so repeats the first.
    assert_eq!(reports.len(), 4, "{ended:?}");
    assert_eq!(reports[0], reports[3], "{ended:?}");
    let rank: i32 = reports[0].split(' ').nth(2).unwrap().parse().unwrap();
    assert_eq!(ended.status.code(), Some(3 + rank), "{ended:?}");
    assert_eq!(ended.message(), format!("    bad argument of {rank}"));
}

#[test]
fn a_single_rank_that_fails_is_not_replaced_in_vain() {
    let ended = launch(&["-n", "1", "--elastic", "1:1"], "exit 5").end();
    assert_ended_with_first(&ended, 5);
}

#[test]
fn ranks_that_fail_one_after_the_other_end_the_launch_while_their_replacements_start() {
    let script = r#"[ "$COMM_JOIN" = 1 ] && report "joined.$RANK" $$; while :; do sleep 0.05; done"#;
    let mut launched = launch(&["-n", "3", "--elastic", "1:3"], script);
    let pids = launched.pids(3);
    let mut replacements = Vec::new();
    for rank in [1, 2] {
        kill(pids[rank], Signal::KILL);
        replacements.push(launched.pid(&format!("joined.{rank}")));
    }
    // A replacement that fails is replaced, too, as long as one of the first ranks is left.
    kill(replacements[0], Signal::TERM);
    wait_until_dead(replacements[0]);
    assert!(launched.is_running());
    kill(pids[0], Signal::KILL);
    let ended = launched.end();
    assert_ended_with_first(&ended, 137);
    assert!(ended.message().starts_with("commctl: rank 1 "), "{ended:?}");
    replacements.into_iter().for_each(wait_until_dead);
}

#[test]
fn a_process_that_waits_for_a_group_without_members_is_ended() {
    let mut launched = pair(steps::closed);
    let members = await_pair(&launched, |_| true);
    kill(members[&1], Signal::KILL);
    // The group goes on without it, and admits nobody.
    steps::await_group(&launched.path(""), 0, |members| members.len() == 1);
    kill(members[&0], Signal::KILL);
    let ended = launched.end();
    assert_ended_with_first(&ended, 137);
    assert!(ended.message().starts_with(&format!("commctl: rank 1 (pid {})", members[&1])), "{ended:?}");
}

#[test]
fn a_group_of_which_every_rank_was_replaced_goes_on() {
    let mut launched = pair(|_| {});
    let mut members = await_pair(&launched, |_| true);
    for rank in [1, 0, 1] {
        let lost = members[&rank];
        kill(lost, Signal::KILL);
        members = await_pair(&launched, |members| !members.values().any(|pid| *pid == lost));
    }
    steps::finish(&launched.path(""));
    let ended = launched.end();
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
}

#[test]
fn a_group_of_replacements_that_loses_all_members_ends_the_launch_with_the_failure_since_it_was_whole() {
    let mut launched = pair(|_| {});
    let mut members = await_pair(&launched, |_| true);
    for rank in [1, 0] {
        let lost = members[&rank];
        kill(lost, Signal::KILL);
        members = await_pair(&launched, |members| !members.values().any(|pid| *pid == lost));
    }
    // Both fail before the launcher notices one of them.
    launched.signal(Signal::STOP);
    for rank in [1, 0] {
        kill(members[&rank], Signal::USR1);
        wait_until_exited(members[&rank]);
    }
    launched.signal(Signal::CONT);
    let ended = launched.end();
    assert_eq!(ended.status.code(), Some(128 + 10), "{ended:?}");
    assert_eq!(ended.message(), format!("commctl: rank 1 (pid {}) was killed by SIGUSR1", members[&1]));
}
