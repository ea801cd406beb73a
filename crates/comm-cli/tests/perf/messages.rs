//! Tests of `commctl perf send_recv`.

use serde_json::{Map, Value};

use crate::harness::{printed, rows};

const KINDS: [&str; 3] = ["send_recv_latency", "send_recv_bandwidth", "send_recv_bidirectional"];

fn objects(line: &str) -> Vec<Map<String, Value>> {
    printed(line).lines().map(|line| serde_json::from_str(line).expect("an object")).collect()
}

#[test]
fn messages_are_measured_in_three_ways_and_arrive_unchanged() {
    for transport in ["tcp", "shm"] {
        for ranks in [2, 3] {
            let line = format!(
                "send_recv -n {ranks} --max 256K --factor 65536 --transport {transport} --json --check"
            );
            let rows = objects(&line);
            let names: Vec<_> = rows.iter().map(|row| row["collective"].as_str().expect("a name")).collect();
            assert_eq!(names, KINDS.iter().flat_map(|kind| [*kind; 2]).collect::<Vec<_>>());
            for row in &rows {
                assert_eq!((&row["ranks"], &row["transport"]), (&ranks.into(), &transport.into()));
                assert_eq!((&row["wrong"], &row["dtype"]), (&0.into(), &Value::Null), "{row:?}");
                assert_eq!((&row["algorithm"], &row["op"]), (&Value::Null, &Value::Null));
                let number = |value: &Value| value.as_f64().expect("a number");
                let (bytes, time) = (number(&row["bytes"]), number(&row["time_us"]["p50"]));
                let (algbw, busbw) = (number(&row["algbw_gb_per_s"]), number(&row["busbw_gb_per_s"]));
                assert!((algbw / (bytes / time / 1e3) - 1.0).abs() < 1e-9, "{row:?}");
                let directions = if row["collective"] == KINDS[2] { 2.0 } else { 1.0 };
                assert!((busbw / algbw - directions).abs() < 1e-9, "{row:?}");
            }
        }
    }
}

#[test]
fn every_kind_has_a_table_and_all_share_the_columns_of_values() {
    let table = printed("send_recv -n 2 --max 16 --check");
    for kind in KINDS {
        assert!(table.contains(&format!(" perf {kind}\n")), "{table}");
    }
    assert_eq!(rows(&table).len(), 6);
    assert!(rows(&table).iter().all(|row| row.len() == 13 && row[0] == row[1] && row[12] == "0"), "{table}");
    assert_eq!(table.matches("wrong elements").count(), 1, "{table}");

    let values = printed("send_recv -n 2 --max 4 --csv");
    let names: Vec<&str> = values.lines().map(|line| line.split(',').next().expect("a name")).collect();
    assert_eq!(names, [&["collective"][..], &KINDS[..]].concat());
}
