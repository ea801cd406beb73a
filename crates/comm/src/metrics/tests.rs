//! Tests of the text format.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use comm_core::{Collective, Group, GroupId, Membership};

use super::*;

/// A sample: its name, its labels in their order, and its value.
type Sample = (String, Vec<(String, String)>, f64);

fn is_name(name: &str) -> bool {
    let is_start = |c: char| c.is_ascii_alphabetic() || c == '_';
    name.starts_with(is_start) && name.chars().all(|c| is_start(c) || c.is_ascii_digit())
}

fn parse_sample(line: &str) -> Sample {
    let (name, rest) = line.split_once('{').unwrap();
    let (labels, value) = rest.split_once("} ").unwrap();
    let labels: Vec<(String, String)> = labels
        .split(',')
        .map(|label| {
            let (key, value) = label.split_once('=').unwrap();
            let value = value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).unwrap();
            assert!(is_name(key) && !value.contains(['"', '\\', '\n']), "{line}");
            (key.to_owned(), value.to_owned())
        })
        .collect();
    assert!(is_name(name), "{line}");
    (name.to_owned(), labels, value.parse().unwrap())
}

/// Parses the text strictly: each family has one HELP and one TYPE line before its samples, which
/// follow each other and do not repeat.
fn parse(text: &str) -> BTreeMap<String, (String, Vec<Sample>)> {
    assert!(text.ends_with('\n'));
    let mut families: BTreeMap<String, (String, Vec<Sample>)> = BTreeMap::new();
    let (mut current, mut help) = (String::new(), String::new());
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ').unwrap().0.to_owned();
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(name == help && ["counter", "histogram"].contains(&kind), "{line}");
            assert!(families.insert(name.to_owned(), (kind.to_owned(), Vec::new())).is_none(), "{line}");
            name.clone_into(&mut current);
        } else {
            let sample = parse_sample(line);
            let (kind, samples) = families.get_mut(&current).unwrap();
            let suffix = sample.0.strip_prefix(&current).unwrap();
            let allowed: &[&str] = if kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
            assert!(allowed.contains(&suffix), "{line}");
            samples.push(sample);
        }
    }
    for (_, samples) in families.values() {
        let distinct: BTreeSet<_> = samples.iter().map(|(name, labels, _)| (name, labels)).collect();
        assert_eq!(distinct.len(), samples.len(), "{samples:?}");
    }
    families
}

fn metrics() -> Metrics {
    let group = Group::new(GroupId(0xab), Membership { rank: 1, size: 2 }).unwrap();
    let mut metrics = Metrics::new(group, vec![7, 5]);
    let mut calls = CallMetrics::new(Collective::AllReduce, "ring");
    let mut counts = [0; DurationHistogram::BUCKETS];
    (counts[2], counts[5], counts[27]) = (10, 4, 1);
    (calls.bytes, calls.time) = (4096, Duration::from_millis(1500));
    calls.durations = DurationHistogram::new(counts);
    calls.calls = calls.durations.total();
    metrics.calls = vec![calls, CallMetrics::new(Collective::Barrier, "linear")];
    metrics.waited_for[0] = Duration::from_millis(250);
    metrics.failures = 1;
    metrics
}

#[test]
fn the_text_has_every_counter_with_the_ranks_of_the_world() {
    let mut other = metrics();
    other.group = Group::new(GroupId::WORLD, Membership { rank: 0, size: 2 }).unwrap();
    let families = parse(&prometheus(&[metrics(), other]));
    let find = |family: &str, wanted: &[(&str, &str)]| {
        let samples = &families[family].1;
        let has = |labels: &[(String, String)], (key, value): &(&str, &str)| {
            labels.iter().any(|(k, v)| k == key && v == value)
        };
        let found: Vec<f64> = samples
            .iter()
            .filter(|(_, labels, _)| wanted.iter().all(|wanted| has(labels, wanted)))
            .map(|(_, _, value)| *value)
            .collect();
        found
    };
    let ours = [("rank", "5"), ("group", "ab")];
    assert_eq!(find("comm_failures_total", &ours), [1.0]);
    assert_eq!(find("comm_failures_total", &[("rank", "7"), ("group", "0")]), [1.0]);
    assert_eq!(find("comm_wait_seconds_total", &[ours[0], ours[1], ("peer", "7")]), [0.25]);
    assert_eq!(find("comm_call_bytes_total", &[ours[0], ours[1], ("collective", "all_reduce")]), [4096.0]);
}

#[test]
fn a_histogram_is_cumulative_and_ends_with_all_calls() {
    let families = parse(&prometheus(&[metrics()]));
    let (kind, samples) = &families["comm_call_duration_seconds"];
    assert_eq!(kind, "histogram");
    let of = |suffix: &str| {
        let name = format!("comm_call_duration_seconds{suffix}");
        let samples = samples.iter().filter(move |(own, labels, _)| {
            *own == name && labels.contains(&("algorithm".to_owned(), "ring".to_owned()))
        });
        samples.collect::<Vec<_>>()
    };
    let buckets = of("_bucket");
    assert_eq!(buckets.len(), DurationHistogram::BUCKETS);
    let bounds: Vec<f64> = buckets
        .iter()
        .map(|(_, labels, _)| match labels.last().unwrap() {
            (key, value) if key == "le" && value == "+Inf" => f64::INFINITY,
            (key, value) => (key == "le").then(|| value.parse().unwrap()).unwrap(),
        })
        .collect();
    assert!(bounds.is_sorted_by(|one, next| one < next));
    assert_eq!((bounds[0], bounds[27]), (1024e-9, f64::INFINITY));
    let values: Vec<f64> = buckets.iter().map(|(_, _, value)| *value).collect();
    assert!(values.is_sorted());
    assert_eq!((values[1], values[2], values[26], values[27]), (0.0, 10.0, 14.0, 15.0));
    assert_eq!((of("_sum")[0].2, of("_count")[0].2), (1.5, 15.0));
}

#[test]
fn no_communicator_has_no_samples() {
    assert!(parse(&prometheus(&[])).values().all(|(_, samples)| samples.is_empty()));
}
