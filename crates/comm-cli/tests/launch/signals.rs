//! Tests of signals to the launcher.

use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::harness::{FOREVER, REPORT, launch, start, state, wait_for, wait_until_dead};

#[test]
fn stop_signals_are_forwarded_to_every_rank() {
    for (name, signal) in [("INT", Signal::INT), ("TERM", Signal::TERM), ("HUP", Signal::HUP)] {
        let traps =
            ["INT", "TERM", "HUP"].map(|name| format!("trap 'report got.$RANK {name}; exit 0' {name};"));
        let script = format!("{} report ready.$RANK x; {FOREVER}", traps.concat());
        let mut launched = launch(&["-n", "3", "--grace", "30"], &script);
        (0..3).for_each(|rank| drop(launched.report(&format!("ready.{rank}"))));
        launched.signal(signal);
        let ended = launched.end();
        assert_eq!(ended.status.code(), Some(128 + signal.as_raw()));
        assert_eq!(ended.message(), format!("commctl: interrupted by SIG{name}"));
        (0..3).for_each(|rank| assert_eq!(launched.report(&format!("got.{rank}")), name));
    }
}

#[test]
fn ranks_that_ignore_a_signal_are_killed_after_the_grace_period() {
    let script = format!("trap '' TERM; report ready.$RANK x; {FOREVER}");
    let mut launched = launch(&["-n", "2", "--grace", "0.5"], &script);
    let pids = launched.pids(2);
    (0..2).for_each(|rank| drop(launched.report(&format!("ready.{rank}"))));
    let asked = Instant::now();
    launched.signal(Signal::TERM);
    let ended = launched.end();
    assert!(asked.elapsed() >= Duration::from_millis(500), "ranks did not have their grace period");
    assert_eq!(ended.status.code(), Some(143));
    pids.into_iter().for_each(wait_until_dead);
}

#[test]
fn a_second_interrupt_or_termination_kills_at_once() {
    for (name, signal) in [("INT", Signal::INT), ("TERM", Signal::TERM)] {
        let script = format!("trap 'report got.$RANK x' {name}; report ready.$RANK x; {FOREVER}");
        // A grace period longer than the limit of the test.
        let mut launched = launch(&["-n", "2", "--grace", "1000"], &script);
        let pids = launched.pids(2);
        (0..2).for_each(|rank| drop(launched.report(&format!("ready.{rank}"))));
        launched.signal(signal);
        (0..2).for_each(|rank| drop(launched.report(&format!("got.{rank}"))));
        assert!(launched.is_running(), "the first signal does not kill");
        launched.signal(signal);
        assert_eq!(launched.end().status.code(), Some(128 + signal.as_raw()));
        pids.into_iter().for_each(wait_until_dead);
    }
}

#[test]
fn a_signal_that_is_ignored_at_the_start_stays_ignored() {
    let mut launched = start(|dir| {
        let mut command = Command::new("sh");
        let script = format!("{REPORT}{FOREVER}");
        command.args([
            "-c",
            r#"trap '' HUP; exec "$0" run -n 1 -- sh -c "$1""#,
            env!("CARGO_BIN_EXE_commctl"),
        ]);
        command.arg(script).env("DIR", dir.path());
        command
    });
    let rank = launched.pids(1)[0];
    launched.signal(Signal::HUP);
    // Signals are handled in order: if the first one were caught, the launcher would report it.
    launched.signal(Signal::TERM);
    assert_eq!(launched.end().status.code(), Some(143));
    wait_until_dead(rank);
}

#[test]
fn a_stopped_rank_is_killed_too() {
    let mut launched = launch(&["-n", "2", "--grace", "0.2"], FOREVER);
    let pids = launched.pids(2);
    rustix::process::kill_process(pids[1], Signal::STOP).expect("a rank that runs");
    wait_for("the rank to stop", || (state(pids[1]) == Some('T')).then_some(()));
    launched.signal(Signal::TERM);
    assert_eq!(launched.end().status.code(), Some(143));
    pids.into_iter().for_each(wait_until_dead);
}
