//! Checks of hosts before a job.

use std::process::{Command, Output};

const COMMCTL: &str = env!("CARGO_BIN_EXE_commctl");

fn doctor(arguments: &str, prepare: &str) -> Output {
    let script = format!("{prepare} exec {COMMCTL} doctor {arguments}");
    Command::new("sh").args(["-c", &script]).output().unwrap()
}

fn lines(output: &Output) -> Vec<&str> {
    std::str::from_utf8(&output.stdout).unwrap().lines().collect()
}

#[test]
fn the_first_line_names_a_limit_that_is_too_low() {
    let output = doctor("-n 2 --world 40", "ulimit -n 100 &&");
    assert_eq!(output.status.code(), Some(1));
    let lines = lines(&output);
    let cause = "a rank of 40 opens 181 files, and 100 are allowed (ulimit -n)";
    assert!(lines[0].starts_with("error: ") && lines[0].ends_with(cause), "{}", lines[0]);
    assert!(lines[1].contains("ulimit -n 181"), "{}", lines[1]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("one problem must be solved before a job can run here"), "{error}");
}

#[test]
fn the_first_line_names_a_wrong_variable() {
    let output = doctor("-n 1", "COMM_TIMEOUT_S=soon");
    assert_eq!(output.status.code(), Some(1));
    let first = lines(&output)[0];
    assert!(first.starts_with("error: ") && first.contains("COMM_TIMEOUT_S"), "{first}");
}

#[test]
fn ranks_of_a_job_measure_their_links_and_one_of_them_prints() {
    let output =
        Command::new(COMMCTL).args(["run", "-n", "3", "--", COMMCTL, "doctor", "--json"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let lines = lines(&output);
    assert_eq!(lines.len(), 1, "{lines:?}");
    let report: serde_json::Value = serde_json::from_str(lines[0]).unwrap();
    assert_eq!(report["hosts"].as_array().unwrap().len(), 1, "{report}");
    let links = report["links"].as_array().unwrap();
    let ranks: Vec<String> = links.iter().map(|link| link["ranks"].to_string()).collect();
    assert_eq!(ranks, ["[0,1]", "[0,2]", "[1,2]"]);
    for link in links {
        assert!(
            link["bandwidth"].as_f64().unwrap() > 0.0 && link["latency"].as_f64().unwrap() > 0.0,
            "{link}"
        );
        // Both ranks read the clock of this host.
        assert!(link["skew"].as_f64().unwrap().abs() < 5.0, "{link}");
    }
}
