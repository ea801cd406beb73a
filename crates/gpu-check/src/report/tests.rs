//! Tests of the report.

use std::path::PathBuf;

use super::*;
use crate::machine::tests::test_machine;
use crate::record::{Speed, Subject};

fn end(case: &str, verdict: Verdict, words: &str) -> Record {
    Record::Case(CaseResult { case: case.into(), ranks: 2, verdict, message: words.into(), seconds: 1.25 })
}

fn speed(subject: Subject, round: usize, seconds: f64) -> Record {
    let collective = "all_gather".into();
    Record::Speed(Speed { collective, ranks: 1, bytes: 1_000_000, round, subject, seconds })
}

fn records() -> Vec<Record> {
    vec![
        Record::Machine(test_machine(1, 23_007)),
        Record::Placement(test_machine(1, 23_007).placement().unwrap()),
        end("all_reduce", Verdict::Passed, ""),
        end("split", Verdict::Failed, "a | b"),
        end("shrink", Verdict::NotRun, "NCCL is too old"),
        speed(Subject::Ours, 0, 1e-3),
        speed(Subject::Copy, 0, 5e-4),
        speed(Subject::Ours, 1, 2e-3),
        speed(Subject::Copy, 1, 2e-3),
        Record::NotMeasured("one rank, PyTorch: no module".into()),
    ]
}

#[test]
fn a_page_names_the_machine_and_the_cases_that_passed_and_failed() {
    let page = page(&records());
    for wanted in [
        "| GPU | A device of a test, compute capability 0.0, 1024 MiB |",
        "| NCCL | 2.30.7, `libnccl.so.2` |",
        "| devices of several ranks | 0, 0, with NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_MAX_CTAS=8 |",
        "1 cases passed, 1 failed, 1 were not run.",
        "| 2 | passed | 1.25 |",
        "| 2 | FAILED: a \\| b | 1.25 |",
        "| 2 | not run: NCCL is too old |  |",
        "| 1 | all_gather | 1000000 | 1500.0 us | 0.67 | 0.75 (0.50 to 1.00) |  |",
        "- one rank, PyTorch: no module",
    ] {
        assert!(page.contains(wanted), "{wanted}\n---\n{page}");
    }
    assert!(!page.contains("Nothing in this repository"));
}

#[test]
fn a_page_of_a_run_without_measurements_states_it() {
    let page = page(&records()[..5]);
    assert!(page.ends_with("## Bandwidth\n\nNot measured.\n"), "{page}");
}

#[test]
fn records_survive_a_journal() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.jsonl");
    let text: String = records().iter().map(|record| serde_json::to_string(record).unwrap() + "\n").collect();
    std::fs::write(&path, text).unwrap();
    assert_eq!(crate::record::read(&path).unwrap(), records());
    assert!(crate::record::has_failed(&records()));
    assert!(!crate::record::has_failed(&records()[..3]));
    std::fs::write(&path, "{}\n").unwrap();
    assert!(crate::record::read(&path).unwrap_err().to_string().contains("line 1"));
}

/// The committed report comes from a run, or is the current text for no run.
#[test]
fn the_committed_page_is_up_to_date() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/gpu-report.md");
    let committed = std::fs::read_to_string(path).unwrap();
    if committed.contains("Nothing in this repository has run on a GPU yet") {
        assert_eq!(
            committed,
            page(&[]),
            "regenerate it with: cargo run -p gpu-check -- --from /dev/null --report docs/gpu-report.md"
        );
    } else {
        assert!(committed.contains("| GPU |") && committed.contains("cases passed"), "{committed}");
    }
}
