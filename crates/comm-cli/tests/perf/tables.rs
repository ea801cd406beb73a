//! Tests of the measurements and their output formats.

use std::fs;

use comm::ring::RingConfig;
use comm::ring::choose::{CallShape, choose};
use comm::{Collective, ReduceOrder};
use serde_json::{Map, Value};

use crate::harness::{commctl, end, printed, rows};

#[test]
fn a_table_has_a_row_per_size_and_nothing_wrong() {
    let table = printed("all_reduce -n 3 --max 256 --check");
    let rows = rows(&table);
    let columns = |at: usize| rows.iter().map(|row| row[at]).collect::<Vec<_>>();
    assert_eq!(columns(0), ["4", "16", "64", "256"]);
    assert_eq!(columns(1), ["1", "4", "16", "64"]);
    assert!(rows.iter().all(|row| row[2..5] == ["f32", "sum", "-"]), "{table}");
    for row in &rows {
        let times: Vec<f64> = [7, 6, 8, 9].map(|at| row[at].parse().expect("a time")).to_vec();
        assert!(times[0] > 0.0 && times.is_sorted(), "{row:?}");
        assert_eq!(row[12], "0");
    }
    for line in ["# 3 ranks on 1 host over auto (shm): rings of ", "#  rank 2 pid ", "# 0 wrong elements"] {
        assert!(table.contains(line), "{table}");
    }
}

#[test]
fn every_collective_is_correct_with_any_root_and_layout() {
    for line in [
        "all_reduce --transport shm",
        "all_to_all --transport tcp",
        "reduce --root 2",
        "reduce --out-of-place --root 1",
        "broadcast --root 1",
        "all_gather --in-place",
        "all_gather",
        "reduce_scatter --in-place --op max",
        "reduce_scatter --op avg",
        "gather --root 2",
        "scatter --root 1",
        "all_to_all --in-place",
        "all_to_all --dtype u8",
        "scan --op prod",
        "exscan --out-of-place --op min --dtype i32",
        "all_reduce --out-of-place --dtype bf16 --op prod",
        "all_reduce --dtype i16 --op bxor --algorithm ring",
    ] {
        let table = printed(&format!("{line} -n 3 --max 1K --factor 16 --check"));
        let rows = rows(&table);
        assert!(!rows.is_empty() && rows.iter().all(|row| row[12] == "0"), "{line}: {table}");
    }
}

#[test]
fn the_requested_transport_is_used_and_printed() {
    for (asked, name) in [("tcp", "tcp: the system's"), ("shm", "shm: rings"), ("auto", "auto (shm): rings")]
    {
        let table = printed(&format!("all_reduce -n 2 --max 4 --transport {asked}"));
        assert!(table.contains(&format!("# 2 ranks on 1 host over {name}")), "{table}");
    }
}

#[test]
fn ranks_are_bound_to_cores_unless_asked_otherwise() {
    let sorted = |mut lines: Vec<String>| {
        lines.sort();
        lines
    };
    let measured = |options: &str| {
        let table = printed(&format!("all_reduce -n 3 --max 4 {options}"));
        let ranks = table.lines().filter(|line| line.starts_with("#  rank "));
        sorted(ranks.map(|rank| rank.split_once(" cores ").expect("its cores").1.to_owned()).collect())
    };
    let launched = |bind_to| {
        let script = r"sed -n 's/^Cpus_allowed_list:\t//p' /proc/self/status";
        let ended = end(&mut commctl(&["run", "-n", "3", "--bind-to", bind_to, "--", "sh", "-c", script]));
        sorted(ended.stdout.lines().map(str::to_owned).collect())
    };
    assert_eq!(measured(""), launched("core"));
    assert_eq!(measured("--bind-to none"), launched("none"));
}

/// The sizes are above the limit from which allocated buffers are read in place.
#[test]
fn results_in_allocated_buffers_are_correct() {
    for line in ["all_reduce", "all_gather --in-place", "broadcast --root 1", "all_to_all"] {
        let printed =
            printed(&format!("{line} -n 2 --min 6M --max 6M --transport shm --alloc --check --json"));
        let row: Map<String, Value> = serde_json::from_str(printed.trim()).expect("an object");
        assert_eq!((&row["alloc"], &row["wrong"]), (&true.into(), &0.into()), "{line}");
    }
}

/// Returns the times of a row; only their order is known.
fn times(object: &Map<String, Value>) -> Vec<f64> {
    let times = object["time_us"].as_object().expect("percentiles");
    assert_eq!(times.keys().collect::<Vec<_>>(), ["p10", "p50", "p90", "p99"]);
    times.values().map(|time| time.as_f64().expect("a number")).collect()
}

const KEYS: [&str; 12] = [
    "algbw_gb_per_s",
    "algorithm",
    "alloc",
    "busbw_gb_per_s",
    "bytes",
    "collective",
    "dtype",
    "op",
    "ranks",
    "time_us",
    "transport",
    "wrong",
];

#[test]
fn every_line_of_json_is_an_object_with_exactly_the_keys() {
    let printed = printed("all_gather -n 2 --max 128 --json --check");
    let rows: Vec<Map<String, Value>> =
        printed.lines().map(|line| serde_json::from_str(line).expect("an object")).collect();
    assert_eq!(rows.len(), 3);
    for row in &rows {
        let mut keys: Vec<&String> = row.keys().collect();
        keys.sort_unstable();
        assert_eq!(keys, KEYS);
        let times = times(row);
        assert!(times[0] > 0.0 && times.is_sorted(), "{row:?}");
        let bytes = row["bytes"].as_f64().expect("a size");
        let [algbw, busbw] =
            ["algbw_gb_per_s", "busbw_gb_per_s"].map(|key| row[key].as_f64().expect("a speed"));
        assert!((algbw / (bytes / times[1] / 1e3) - 1.0).abs() < 1e-9, "{row:?}");
        assert!((busbw / algbw - 0.5).abs() < 1e-9, "{row:?}");
        assert_eq!((&row["transport"], &row["algorithm"]), (&"auto (shm)".into(), &"ring".into()));
        assert_eq!((&row["dtype"], &row["op"], &row["wrong"]), (&"f32".into(), &Value::Null, &0.into()));
    }
}

#[test]
fn unchecked_results_are_null() {
    let printed = printed("barrier -n 2 --json");
    let row: Map<String, Value> = serde_json::from_str(&printed).expect("one object");
    for (key, value) in [("dtype", Value::Null), ("wrong", Value::Null), ("bytes", 0.into())] {
        assert_eq!(row[key], value);
    }
}

#[test]
fn csv_has_the_columns_of_its_header() {
    let printed = printed("reduce -n 2 --max 64 --csv --op min");
    let mut lines = printed.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let head = lines.next().expect("a header");
    assert_eq!(
        head.join(","),
        "collective,ranks,transport,algorithm,dtype,op,bytes,time_us_p10,time_us_p50,time_us_p90,time_us_p99,\
         algbw_gb_per_s,busbw_gb_per_s,wrong"
    );
    let rows: Vec<_> = lines.collect();
    assert_eq!(rows.len(), 3);
    assert!(rows.iter().all(|row| row.len() == head.len() && row[0] == "reduce" && row[5] == "min"));
    assert!(rows.iter().all(|row| row[13].is_empty()), "{rows:?}");
}

#[test]
fn a_picture_is_drawn() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = folder.path().join("inner/all_reduce.svg");
    printed(&format!("all_reduce -n 2 --max 1K --svg {}", path.display()));
    let picture = fs::read_to_string(path).expect("the picture");
    for text in ["<svg", "all_reduce, 2 ranks, f32", "busbw", "time per call", "</svg>"] {
        assert!(picture.contains(text), "{text} is missing");
    }
}

#[test]
fn ranks_of_a_launcher_measure_together_and_one_prints() {
    let program = env!("CARGO_BIN_EXE_commctl");
    let line = "perf all_reduce --max 16 --samples 2 --sample-ms 0.1 --json";
    let words: Vec<&str> = ["run", "-n", "2", "--", program].into_iter().chain(line.split(' ')).collect();
    let ended = end(&mut commctl(&words));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(ended.stdout.lines().count(), 2);
    assert!(ended.stdout.contains(r#""ranks":2"#), "{ended:?}");
}

#[test]
fn the_printed_algorithm_is_the_selected_one() {
    let named = |overhead: &str, speed: &str| {
        let link = format!("latency_us:1,overhead_us:{overhead},gb_per_s:{speed}");
        let links = format!("within={link} between={link} reduce_gb_per_s=inf ranks_per_host=4");
        let line = "perf all_reduce -n 4 --min 4K --max 4K --samples 1 --sample-ms 0 --json";
        let ended = end(commctl(&line.split(' ').collect::<Vec<_>>()).env("COMM_LINKS", &links));
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let row: Map<String, Value> = serde_json::from_str(&ended.stdout).expect("one object");

        let tuning = RingConfig::default().tuning(links.parse().expect("a model"));
        let (collective, order) = (Collective::AllReduce, ReduceOrder::Any);
        let question = CallShape::new(collective).ranks(4).bytes(4096).order(order);
        let choice = choose(&question, None, &tuning).expect("an algorithm");
        assert_eq!(row["algorithm"], choice.algorithm.name);
        row["algorithm"].clone()
    };
    // Few messages if each is expensive, and few bytes if bytes are.
    assert_ne!(named("1000", "1"), named("0", "0.001"));
}
