//! Tests in which a rank fails: the reported rank, and the termination of the others.

use std::collections::HashSet;
use std::time::Instant;

use rustix::fs::{CWD, Mode, mkfifoat};
use rustix::process::{Pid, Signal};

use crate::harness::{
    FOREVER, Launched, PROMISED, commctl, kill, launch, start, wait_until_dead, wait_until_zombie,
};

#[test]
fn the_launch_succeeds_if_all_ranks_succeed() {
    let ended = launch(&["-n", "4"], "exit 0").end();
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    assert_eq!(ended.stderr, "");
}

#[test]
fn a_rank_that_exits_early_does_not_terminate_the_others() {
    let script = r#"[ $RANK = 0 ] && exit 0; while [ ! -e "$DIR/go" ]; do sleep 0.02; done; report "done" x"#;
    let mut launched = launch(&["-n", "2"], script);
    wait_until_dead(launched.pid("pid.0"));
    std::fs::write(launched.path("go"), "").expect("a file");
    assert_eq!(launched.report("done"), "x");
    assert_eq!(launched.end().status.code(), Some(0));
}

#[test]
fn a_failed_rank_terminates_the_others_and_sets_the_exit_code() {
    // The last rank: a launcher that waits in rank order would hang.
    let script =
        format!(r#"[ $RANK = 3 ] && while [ ! -e "$DIR/go" ]; do sleep 0.01; done && exit 7; {FOREVER}"#);
    let mut launched = launch(&["-n", "4"], &script);
    let pids = launched.pids(4);
    let cause = Instant::now();
    std::fs::write(launched.path("go"), "").expect("a file");
    let ended = launched.end();
    assert!(cause.elapsed() < PROMISED, "{:?}", cause.elapsed());
    assert_eq!(ended.status.code(), Some(7));
    assert_eq!(ended.message(), format!("commctl: rank 3 (pid {}) exited with code 7", pids[3]));
    pids.into_iter().for_each(wait_until_dead);
}

#[test]
fn a_killed_rank_terminates_the_others_and_its_signal_is_reported() {
    let mut launched = launch(&["-n", "4"], FOREVER);
    let pids = launched.pids(4);
    let cause = Instant::now();
    kill(pids[2], Signal::KILL);
    let ended = launched.end();
    assert!(cause.elapsed() < PROMISED, "{:?}", cause.elapsed());
    assert_eq!(ended.status.code(), Some(128 + 9));
    assert_eq!(ended.message(), format!("commctl: rank 2 (pid {}) was killed by SIGKILL", pids[2]));
    pids.into_iter().for_each(wait_until_dead);
}

#[test]
fn the_others_have_a_second_to_record_their_calls() {
    let script = r#"trap 'report "term" $(date +%s%3N); exit 1' TERM; report "ready.$RANK" x
        [ $RANK = 1 ] && while [ ! -e "$DIR/ready.0" ]; do sleep 0.01; done && report "failed" $(date +%s%3N) && exit 7
        while :; do sleep 0.01; done"#;
    let mut launched = launch(&["-n", "2", "--env", "COMM_FLIGHT_DIR=/tmp"], script);
    let cause = Instant::now();
    let ended = launched.end();
    assert!(cause.elapsed() < PROMISED, "{:?}", cause.elapsed());
    assert_eq!(ended.status.code(), Some(7));
    let [failed, term] = ["failed", "term"].map(|name| launched.report(name).parse::<u64>().expect("a time"));
    assert!(term - failed >= 1000, "SIGTERM came after {} ms", term - failed);
}

#[test]
fn the_others_of_an_elastic_launch_go_on_until_too_few_are_left() {
    let killed = |rank: usize, pids: &[Pid]| {
        format!("commctl: rank {rank} (pid {}) was killed by SIGKILL", pids[rank])
    };
    // With one rank lost, the others end as they like.
    let script = r#"while [ ! -e "$DIR/go" ]; do sleep 0.01; done"#;
    let mut launched = launch(&["-n", "3", "--elastic", "2"], script);
    let pids = launched.pids(3);
    kill(pids[0], Signal::KILL);
    wait_until_dead(pids[0]);
    std::fs::write(launched.path("go"), "").expect("a file");
    let ended = launched.end();
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    assert_eq!(ended.stderr.lines().collect::<Vec<_>>(), [killed(0, &pids)]);
    // With two ranks lost, one is too few.
    let mut launched = launch(&["-n", "3", "--elastic", "2"], FOREVER);
    let pids = launched.pids(3);
    for rank in [0, 1] {
        kill(pids[rank], Signal::KILL);
        wait_until_dead(pids[rank]);
    }
    let ended = launched.end();
    assert_eq!(ended.status.code(), Some(128 + 9), "{ended:?}");
    assert_eq!(ended.stderr.lines().collect::<Vec<_>>(), [killed(0, &pids), killed(1, &pids)]);
    wait_until_dead(pids[2]);
}

/// The ranks of this script end when they are told to; the processes that replace them report it.
const JOINING: &str = r#"[ "$COMM_JOIN" = 1 ] && report "joined.$RANK" $$
while [ ! -e "$DIR/go.$RANK" ]; do sleep 0.01; done; [ ! -e "$DIR/fail" ]"#;

#[test]
fn a_failed_rank_of_an_elastic_launch_is_replaced_a_limited_number_of_times() {
    let flags = ["-n", "2", "--elastic", "1:2", "--max-restarts", "2", "--tag-output"];
    let mut launched = launch(&flags, JOINING);
    let pids = launched.pids(2);
    let mut victim = pids[1];
    let mut expected = Vec::new();
    for _ in 0..2 {
        kill(victim, Signal::KILL);
        expected.push(format!("commctl: rank 1 (pid {victim}) was killed by SIGKILL"));
        victim = launched.pid("joined.1");
        std::fs::remove_file(launched.path("joined.1")).expect("the report");
    }
    // There is no third replacement, and one rank is enough.
    kill(victim, Signal::KILL);
    expected.push(format!("commctl: rank 1 (pid {victim}) was killed by SIGKILL"));
    wait_until_dead(victim);
    std::fs::write(launched.path("go.0"), "").expect("a file");
    let ended = launched.end();
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    assert_eq!(ended.stderr.lines().collect::<Vec<_>>(), expected);
    assert!(!launched.path("joined.1").exists());
}

#[test]
fn ranks_of_a_launch_inside_a_process_that_joined_do_not_join() {
    let launch = commctl()
        .args(["run", "-n", "2", "sh", "-c", r#"[ "$COMM_JOIN" = 0 ]"#])
        .env("COMM_JOIN", "1")
        .output()
        .expect("commctl");
    assert_eq!(launch.status.code(), Some(0), "{launch:?}");
}

#[test]
fn a_replacement_that_fails_after_the_job_has_succeeded_came_too_late() {
    let mut launched = launch(&["-n", "2", "--elastic", "2:2"], JOINING);
    let pids = launched.pids(2);
    kill(pids[1], Signal::KILL);
    launched.pid("joined.1");
    std::fs::write(launched.path("go.0"), "").expect("a file");
    wait_until_dead(pids[0]);
    std::fs::write(launched.path("fail"), "").expect("a file");
    std::fs::write(launched.path("go.1"), "").expect("a file");
    let ended = launched.end();
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    assert_eq!(ended.message(), format!("commctl: rank 1 (pid {}) was killed by SIGKILL", pids[1]));
}

#[test]
fn the_first_of_several_failures_is_reported() {
    let mut launched = launch(&["-n", "3"], FOREVER);
    let pids = launched.pids(3);
    // All ranks fail before the launcher polls, neither in rank order nor in the order of process
    // ids.
    launched.signal(Signal::STOP);
    for rank in [1, 2, 0] {
        kill(pids[rank], Signal::USR1);
        wait_until_zombie(pids[rank]);
    }
    launched.signal(Signal::CONT);
    let ended = launched.end();
    assert_eq!(ended.message(), format!("commctl: rank 1 (pid {}) was killed by SIGUSR1", pids[1]));
}

#[test]
fn a_killed_rank_is_reported_even_if_a_peer_exits_first() {
    // The kernel closes the pipe of a killed rank, on which the peers wait, before the launcher is
    // notified. The order is a race, so the test repeats it.
    let script = r#"if [ $RANK = 2 ]; then exec 9> "$DIR/pipe"; kill -KILL $$; else read line < "$DIR/pipe"; exit 1; fi"#;
    for _ in 0..20 {
        let mut launched = start(|dir| {
            mkfifoat(CWD, dir.path().join("pipe"), Mode::RUSR | Mode::WUSR).expect("a named pipe");
            let mut command = commctl();
            command.args(["run", "-n", "3", "--", "sh", "-c", script]).env("DIR", dir.path());
            command
        });
        let ended = launched.end();
        assert!(ended.message().starts_with("commctl: rank 2 "), "{ended:?}");
        assert!(ended.message().ends_with("was killed by SIGKILL"), "{ended:?}");
    }
}

#[test]
fn ranks_are_started_again_until_they_succeed() {
    let script = r#"report "ran.$RANK.$TORCHELASTIC_RESTART_COUNT" "$COMM_JOB_ID $COMM_SECRET"
        [ $RANK = 1 ] && [ $TORCHELASTIC_RESTART_COUNT -lt 2 ] && exit 5; exit 0"#;
    let mut launched = launch(&["-n", "2", "--max-restarts", "4"], script);
    let ended = launched.end();
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    let lines: Vec<&str> = ended.stderr.lines().collect();
    assert!(lines.len() == 2 && lines[0].starts_with("commctl: rank 1 (pid "), "{ended:?}");
    assert!(lines[0].ends_with(" exited with code 5: restart 1 of 4"), "{ended:?}");
    assert!(lines[1].ends_with(" exited with code 5: restart 2 of 4"), "{ended:?}");
    let runs: Vec<String> = (0..3).map(|restart| launched.report(&format!("ran.1.{restart}"))).collect();
    let fields = |at| runs.iter().map(move |run| run.split(' ').nth(at)).collect::<HashSet<_>>();
    // Processes that remain from an earlier start belong to another job, and do not know the
    // secret.
    assert_eq!((fields(0).len(), fields(1).len()), (3, 3), "{runs:?}");
}

#[test]
fn a_launch_fails_after_the_last_restart() {
    let ended = launch(&["-n", "2", "--max-restarts", "1"], "exit $((3 + TORCHELASTIC_RESTART_COUNT))").end();
    assert_eq!(ended.status.code(), Some(4), "{ended:?}");
    assert_eq!(ended.stderr.lines().count(), 2, "{ended:?}");
    assert!(ended.message().ends_with(" exited with code 4"), "{ended:?}");
}

#[test]
fn an_interrupted_launch_is_not_restarted() {
    let mut launched = launch(&["-n", "2", "--max-restarts", "9"], FOREVER);
    let pids = launched.pids(2);
    launched.signal(Signal::TERM);
    let ended = launched.end();
    assert_eq!(ended.message(), "commctl: interrupted by SIGTERM");
    pids.into_iter().for_each(wait_until_dead);
}

#[test]
fn a_sibling_that_ignores_sigterm_is_killed_in_time() {
    let script = format!("[ $RANK = 0 ] || trap '' TERM; report ready.$RANK x; {FOREVER}");
    let mut launched = launch(&["-n", "3"], &script);
    let pids = launched.pids(3);
    (0..3).for_each(|rank| drop(launched.report(&format!("ready.{rank}"))));
    let cause = Instant::now();
    kill(pids[0], Signal::KILL);
    let ended = launched.end();
    assert!(cause.elapsed() < PROMISED, "{:?}", cause.elapsed());
    assert_eq!(ended.message(), format!("commctl: rank 0 (pid {}) was killed by SIGKILL", pids[0]));
    pids.into_iter().for_each(wait_until_dead);
}

#[test]
fn the_grace_period_can_be_set() {
    let script = format!("[ $RANK = 0 ] || trap '' TERM; report ready.$RANK x; {FOREVER}");
    let mut launched = launch(&["-n", "2", "--grace", "0.2"], &script);
    let pids = launched.pids(2);
    launched.report("ready.1");
    let cause = Instant::now();
    kill(pids[0], Signal::KILL);
    launched.end();
    assert!(cause.elapsed().as_secs() < 3, "the default would have taken longer: {:?}", cause.elapsed());
}

#[test]
fn an_infinite_grace_period_does_not_overflow() {
    let ended = launch(&["-n", "2", "--grace", "1e19"], "exit 3").end();
    assert_eq!(ended.status.code(), Some(3), "{ended:?}");
}

#[test]
fn a_rank_may_exit_during_the_grace_period() {
    let script = format!("trap 'sleep 0.3; report saved x; exit 0' TERM; report ready.$RANK x; {FOREVER}");
    let mut launched = launch(&["-n", "2"], &script);
    let pids = launched.pids(2);
    launched.report("ready.1");
    kill(pids[0], Signal::KILL);
    launched.end();
    assert_eq!(launched.report("saved"), "x");
}

/// A rank whose child ignores SIGTERM.
const STUBBORN_CHILD: &str = "sh -c \"trap '' TERM; while :; do sleep 0.05; done\" & report child.$RANK $!";

fn children(launched: &Launched, ranks: usize) -> Vec<Pid> {
    (0..ranks).map(|rank| launched.pid(&format!("child.{rank}"))).collect()
}

#[test]
fn children_of_ranks_die_when_a_rank_fails() {
    let script = format!("{STUBBORN_CHILD}; {FOREVER}");
    let mut launched = launch(&["-n", "2", "--grace", "0.5"], &script);
    let pids = launched.pids(2);
    let children = children(&launched, 2);
    kill(pids[0], Signal::KILL);
    assert_eq!(launched.end().status.code(), Some(137));
    children.into_iter().for_each(wait_until_dead);
}

#[test]
fn remaining_children_of_a_rank_are_terminated() {
    let mut launched = launch(&["-n", "2", "--grace", "0.5"], &format!("{STUBBORN_CHILD}; exit 0"));
    let children = children(&launched, 2);
    assert_eq!(launched.end().status.code(), Some(0));
    children.into_iter().for_each(wait_until_dead);
}

#[test]
fn remaining_children_of_a_rank_get_sigterm_first() {
    // The shell in the background reports in its trap; it ends in time only if it receives SIGTERM.
    let script = format!(
        "(trap 'report saved x; exit' TERM; report ready x; {FOREVER}) & \
        while [ ! -e \"$DIR/ready\" ]; do sleep 0.02; done; exit 0"
    );
    let mut launched = launch(&["-n", "1", "--grace", "1000"], &script);
    assert_eq!(launched.end().status.code(), Some(0));
    assert_eq!(launched.report("saved"), "x");
}

#[test]
fn a_killed_launcher_leaves_no_children_of_ranks() {
    let script = format!("sh -c '{FOREVER}' & report child.$RANK $!; wait");
    let launched = launch(&["-n", "2"], &script);
    let mut pids = launched.pids(2);
    pids.extend((0..2).map(|rank| launched.pid(&format!("child.{rank}"))));
    launched.signal(Signal::KILL);
    pids.into_iter().for_each(wait_until_dead);
}

#[test]
fn a_killed_launcher_leaves_no_rank() {
    // Ranks that ignore SIGHUP and SIGTERM, and survive as orphans.
    let script = format!("trap '' TERM HUP INT PIPE; report ready.$RANK x; {FOREVER}");
    let mut launched = launch(&["-n", "3"], &script);
    let pids = launched.pids(3);
    (0..3).for_each(|rank| drop(launched.report(&format!("ready.{rank}"))));
    launched.signal(Signal::KILL);
    launched.end();
    pids.into_iter().for_each(wait_until_dead);
}
