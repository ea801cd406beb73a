//! Records that are exported for PyTorch's analyzer, which must name the same rank. Not run by
//! default:
//!
//! ```sh
//! COMM_TEST_PYTHON=path/to/python cargo test -p comm-cli --test doctor -- --ignored
//! ```

use std::process::Command;

use tempfile::TempDir;

use super::{RANKS, dead_rank, different_calls, stopped_rank, text};

/// Exports the records, and returns all output of PyTorch's analyzer.
fn analyzed(records: &TempDir, options: &[&str]) -> String {
    let exported = tempfile::tempdir().unwrap();
    text(records.path(), &["--export-torch", exported.path().join("rank_").to_str().unwrap()]);
    let output = Command::new(std::env::var("COMM_TEST_PYTHON").unwrap())
        .args(["-m", "torch.distributed.flight_recorder.fr_trace"])
        .arg(exported.path())
        .args(options)
        .output()
        .unwrap();
    let [stdout, stderr] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    format!("{stdout}{stderr}")
}

#[test]
#[ignore = "needs PyTorch, in the python that COMM_TEST_PYTHON names"]
fn pytorch_names_the_rank_that_made_another_call() {
    let output = analyzed(&different_calls(), &[]);
    assert!(output.contains("Collective sequence number: 40 has errors"), "{output}");
    assert!(output.contains("Error type: COLLECTIVE_TYPE_MISMATCH"), "{output}");
    let is_named = |rank: &usize| output.contains(&format!("Culprit rank {rank};"));
    let named: Vec<usize> = (0..RANKS).filter(is_named).collect();
    // It compares all files with the first one that it reads, in the order of the file system.
    assert!(named == [2] || named == [0, 1, 3], "{output}");
}

#[test]
#[ignore = "needs PyTorch, in the python that COMM_TEST_PYTHON names"]
fn pytorch_names_ranks_without_a_record() {
    for (records, rank) in [(dead_rank(), 1), (stopped_rank(), 3)] {
        let output = analyzed(&records, &[]);
        assert!(output.contains(&format!("Missing dump files from ranks {{{rank}}}")), "{output}");
        let output = analyzed(&records, &["--allow-incomplete-ranks"]);
        assert!(output.contains(&format!("we missed FR dumps from ranks ({{{rank}}})")), "{output}");
    }
}

#[test]
#[ignore = "needs PyTorch, in the python that COMM_TEST_PYTHON names"]
fn pytorch_names_the_rank_that_has_not_made_a_call() {
    let records = super::records(super::Fate::Writes, |comm, _| {
        super::calls(comm)?;
        if comm.rank() == 1 { comm.clone().finalize() } else { comm.barrier() }
    });
    let output = analyzed(&records, &[]);
    assert!(output.contains("Not all ranks joining collective, sequence number: 40"), "{output}");
    assert!(output.contains("missing ranks: {1}"), "{output}");
}
