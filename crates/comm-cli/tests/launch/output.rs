//! Tests of the output of ranks.

use std::io;

use rustix::process::Signal;

use crate::harness::{REPORT, commctl, kill, launch, start_into, wait_for, wait_until_dead};

#[test]
fn output_is_inherited_unless_tagged() {
    let ended = launch(&["-n", "1"], "printf 'out'; printf 'err' >&2").end();
    assert_eq!(ended.stdout, b"out");
    assert_eq!(ended.stderr, "err");
}

#[test]
fn both_streams_are_tagged_and_separate() {
    let ended = launch(&["-n", "2", "--tag-output"], "echo out $RANK; echo err $RANK >&2").end();
    let mut stdout: Vec<_> = ended.stdout.split_inclusive(|byte| *byte == b'\n').collect();
    stdout.sort_unstable();
    assert_eq!(stdout, [b"[0]: out 0\n", b"[1]: out 1\n"]);
    let mut stderr: Vec<_> = ended.stderr.lines().collect();
    stderr.sort_unstable();
    assert_eq!(stderr, ["[0]: err 0", "[1]: err 1"]);
}

#[test]
fn lines_of_different_ranks_never_mix() {
    // Each line is written in two pieces, so that pieces of other ranks come in between.
    let script =
        "i=0; while [ $i -lt 300 ]; do printf \"$RANK$RANK$RANK\"; printf \" $i\\n\"; i=$((i+1)); done";
    let ended = launch(&["-n", "4", "--tag-output"], script).end();
    let text = String::from_utf8(ended.stdout).expect("ASCII");
    let mut seen = [0; 4];
    for line in text.lines() {
        let rank: usize = line[1..2].parse().expect("a tag");
        assert_eq!(line, format!("[{rank}]: {rank}{rank}{rank} {}", seen[rank]));
        seen[rank] += 1;
    }
    assert_eq!(seen, [300; 4]);
}

#[test]
fn long_lines_and_arbitrary_bytes_are_preserved() {
    // Each rank writes a megabyte without a line end at the same time, far more than the capacity
    // of a pipe.
    let script = r#"head -c 1000000 /dev/zero | tr '\0' "$RANK"; printf '\377\376\n'"#;
    let ended = launch(&["-n", "3", "--tag-output"], script).end();
    let mut lines: Vec<_> = ended.stdout.split_inclusive(|byte| *byte == b'\n').collect();
    lines.sort_unstable();
    assert_eq!(lines.len(), 3);
    for (rank, line) in lines.into_iter().enumerate() {
        let mut expected = format!("[{rank}]: ").into_bytes();
        expected.extend(std::iter::repeat_n(b'0' + rank as u8, 1_000_000));
        expected.extend(b"\xff\xfe\n");
        assert!(line == expected, "rank {rank}: {} bytes", line.len());
    }
}

#[test]
fn an_unfinished_last_line_is_flushed() {
    let ended = launch(&["-n", "1", "--tag-output"], "printf 'a\\nb'").end();
    assert_eq!(ended.stdout, b"[0]: a\n[0]: b\n");
}

#[test]
fn the_last_output_of_a_failed_rank_is_relayed() {
    let ended = launch(&["-n", "1", "--tag-output"], "printf 'last words' >&2; kill -KILL $$").end();
    let (first, second) = ended.stderr.split_once('\n').expect("two lines");
    assert_eq!(first, "[0]: last words");
    assert!(second.contains("was killed by SIGKILL"), "{second}");
}

#[test]
fn ranks_get_an_error_if_their_output_has_no_reader() {
    let (reader, writer) = io::pipe().expect("a pipe");
    drop(reader);
    let mut launched = start_into(Some(writer), |_| {
        let mut command = commctl();
        command.args(["run", "-n", "2", "--tag-output", "--", "yes"]);
        command
    });
    let ended = launched.end();
    assert_eq!(ended.status.code(), Some(128 + Signal::PIPE.as_raw()));
    assert!(ended.message().ends_with("was killed by SIGPIPE"), "{ended:?}");
}

#[test]
fn a_process_outside_of_the_group_does_not_delay_the_end() {
    // The rank exits after its child has created its own session, which the launcher does not
    // signal.
    let script = "echo output; setsid sleep 1000 & \
                  while read -r _ _ _ _ _ session _ </proc/$!/stat; [ \"$session\" != $! ]; do :; done; \
                  report daemon $!";
    let mut launched = launch(&["-n", "1", "--tag-output"], script);
    let daemon = launched.pid("daemon");
    let ended = launched.end();
    kill(daemon, Signal::KILL);
    assert_eq!(ended.stdout, b"[0]: output\n");
    wait_until_dead(daemon);
}

#[test]
fn a_failure_is_detected_while_the_output_blocks() {
    // Without a reader the pipe fills, and the relay and the ranks block in their writes.
    let (reader, writer) = io::pipe().expect("a pipe");
    let mut launched = start_into(Some(writer), |dir| {
        let mut command = commctl();
        command.args(["run", "-n", "2", "--tag-output", "--", "sh", "-c", &format!("{REPORT} exec yes")]);
        command.env("DIR", dir.path());
        command
    });
    let pids = launched.pids(2);
    let full = || rustix::io::ioctl_fionread(&reader).expect("a pipe") > 60_000;
    wait_for("a full pipe", || full().then_some(()));
    kill(pids[0], Signal::KILL);
    wait_until_dead(pids[1]);
    assert!(launched.is_running(), "earlier output is not dropped");
    drop(reader);
    assert_eq!(launched.end().status.code(), Some(137));
}

/// Starts a script with `--log-dir DIR/logs` and these options.
fn launch_with_logs(flags: &[&str], script: &str) -> crate::harness::Launched {
    crate::harness::start(|dir| {
        let mut command = commctl();
        command.arg("run").arg("--log-dir").arg(dir.path().join("logs")).args(flags);
        command.args(["--", "sh", "-c", &format!("{REPORT}{script}")]).env("DIR", dir.path());
        command
    })
}

#[test]
fn the_output_of_each_start_and_rank_is_in_its_own_files() {
    let script = "echo out $RANK $TORCHELASTIC_RESTART_COUNT; echo err $RANK >&2; \
                  [ $RANK = 0 ] || [ $TORCHELASTIC_RESTART_COUNT = 1 ]";
    let mut launched = launch_with_logs(&["-n", "2", "--max-restarts", "1"], script);
    let ended = launched.end();
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    assert_eq!(ended.stdout, b"");
    assert!(ended.stderr.contains("exited with code 1: restart 1 of 1\nthe last lines"), "{ended:?}");
    assert!(ended.stderr.ends_with("of its standard error:\n    err 1\n"), "{ended:?}");
    let read = |name: &str| std::fs::read_to_string(launched.path("logs").join(name)).unwrap();
    assert_eq!(read("0/rank-1/stdout.log"), "out 1 0\n");
    assert_eq!(read("0/rank-1/stderr.log"), "err 1\n");
    assert_eq!(read("1/rank-0/stdout.log"), "out 0 1\n");
    assert_eq!(read("1/rank-1/stdout.log"), "out 1 1\n");
}

#[test]
fn output_is_shown_with_tee_too_and_a_failure_repeats_the_last_lines() {
    let script = "printf 'un'; printf 'tagged\\n'; [ $RANK = 0 ] && exit 0; \
                  i=0; while [ $i -lt 50 ]; do echo line $i >&2; i=$((i+1)); done; exit 9";
    let mut launched = launch_with_logs(&["-n", "2", "--tee"], script);
    let ended = launched.end();
    assert_eq!(ended.status.code(), Some(9));
    let shown = String::from_utf8(ended.stdout.clone()).unwrap();
    assert!(shown.contains("[1]: untagged\n"), "{ended:?}");
    let read = |name: &str| std::fs::read_to_string(launched.path("logs").join(name)).unwrap();
    assert_eq!(read("0/rank-1/stdout.log"), "untagged\n");
    assert_eq!(read("0/rank-1/stderr.log").lines().count(), 50);
    assert!(ended.stderr.contains("[1]: line 0\n"), "{ended:?}");
    let last: String = (30..50).map(|at| format!("\n    line {at}")).collect();
    let expected = format!("exited with code 9\nthe last lines of its standard error:{last}\n");
    assert!(ended.stderr.ends_with(&expected), "{ended:?}");
}

#[test]
fn a_folder_that_cannot_be_created_is_an_error_before_any_rank_starts() {
    let mut command = commctl();
    command.args(["run", "-n", "1", "--log-dir", "/proc/nothing", "--", "true"]);
    let output = command.output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr.starts_with("commctl: cannot write the output of ranks to /proc/nothing"), "{stderr}");
}
