//! Invalid arguments are reported once, before any rank starts, with exit code 2.

use crate::harness::{commctl, end, perf};

#[track_caller]
fn refused(line: &str, reason: &str) {
    let ended = perf(line);
    assert_eq!(ended.code, Some(2), "{line}: {ended:?}");
    assert!(ended.stderr.contains(reason), "{line}: {ended:?}");
    assert_eq!(ended.stdout, "", "{line}");
    assert!(ended.stderr.matches("commctl: ").count() <= 1, "{line}: {ended:?}");
}

#[test]
fn bad_values_are_named() {
    refused("", "COLLECTIVE");
    refused("all_shout", "all_shout");
    refused("all_reduce -n 0", "'0'");
    refused("all_reduce --min 4KB", "4KB");
    refused("all_reduce --min 0", "at least 1");
    refused("all_reduce --factor 1", "--factor");
    refused("all_reduce --dtype f80", "f80");
    refused("all_reduce --op mean", "mean");
    refused("all_reduce --transport pigeon", "pigeon");
    refused("all_reduce --sample-ms -1", "-1");
    refused("all_reduce --bind-to socket", "expected core, numa or none");
}

#[test]
fn bad_combinations_are_named() {
    refused("all_reduce --min 64 --max 16", "--min 64");
    refused("all_reduce --op band", "band is not defined on f32");
    refused("all_reduce --root 0", "has no root");
    refused("broadcast -n 2 --root 2", "--root 2");
    refused("broadcast --op sum", "reduces nothing");
    refused("broadcast --out-of-place", "no such broadcast");
    refused("all_reduce --in-place --out-of-place", "--out-of-place");
    refused("all_reduce --algorithm magic", "\"magic\"");
    refused("all_reduce --json --csv", "--csv");
    refused("barrier --svg picture.svg", "--svg");
    refused("all_reduce --calibrate", "--calibrate");
    refused("--calibrate -n 1", "--calibrate");
    refused("all_reduce --out links", "--out");
    refused("send_recv -n 1", "send_recv");
    refused("send_recv --op sum", "--op");
    refused("send_recv --dtype i8", "--dtype");
    refused("send_recv --in-place", "--in-place");
    refused("send_recv --svg picture.svg", "--svg");
}

#[test]
fn sizes_above_the_available_memory_are_an_error() {
    refused("all_gather -n 2 --min 1048576G --max 1048576G", "available");
    refused("send_recv -n 2 --min 1048576G --max 1048576G", "available");
}

#[test]
fn a_number_of_ranks_that_differs_from_the_launchers_is_an_error() {
    let mut command = commctl(&["perf", "all_reduce", "-n", "3"]);
    let ended = end(command.envs([("RANK", "0"), ("WORLD_SIZE", "1")]));
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.stderr.contains("-n 3"), "{ended:?}");
}

#[test]
fn the_error_of_an_invalid_link_model_names_its_variable() {
    let mut command = commctl(&["perf", "all_reduce", "-n", "1", "--max", "4"]);
    let ended = end(command.env("COMM_LINKS", "fast"));
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.stderr.contains("COMM_LINKS"), "{ended:?}");
}
