//! Tests of `commctl perf --calibrate`.

use std::fs;

use comm::LinkModel;

use crate::harness::{commctl, end, printed, rows};

#[test]
fn a_calibrated_model_is_printed_written_and_used() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = |name| folder.path().join(name).display().to_string();
    let (links, page) = (path("links"), path("model.md"));
    fs::write(&page, "Why.\n<!-- measured -->\nstale\n<!-- /measured -->\nOutliers.\n").expect("a page");
    let text = printed(&format!("--calibrate -n 3 --max 4K --out {links} --report {page}"));

    let line = text.lines().last().expect("a model");
    let model: LinkModel = line.parse().expect("the last line is a model");
    assert!(model.is_sound() && model.ranks_per_host == 3, "{model:?}");
    assert!(model.within.latency + model.within.overhead > 1e-7, "{model:?}");
    assert_eq!(fs::read_to_string(&links).expect("the file"), format!("{line}\n"));
    assert!(text.contains("median factor between predicted and measured times"), "{text}");
    let rows = rows(&text);
    for expected in [["all_reduce", "ring"], ["all_to_all", "pairwise"], ["barrier", "recursive_doubling"]] {
        assert!(rows.iter().any(|row| row.starts_with(&expected)), "{expected:?} is missing: {text}");
    }

    let page = fs::read_to_string(page).expect("the page");
    assert!(page.starts_with("Why.\n") && page.ends_with("Outliers.\n") && !page.contains("stale"), "{page}");
    assert!(page.contains(line) && page.contains("(model.svg)"), "{page}");
    assert!(fs::read_to_string(path("model.svg")).expect("the picture").contains("held out"));

    let words = ["perf", "all_reduce", "-n", "2", "--max", "4", "--samples", "1", "--sample-ms", "0"];
    let ended = end(commctl(&words).env("COMM_LINKS", format!("@{links}")));
    assert_eq!(ended.code, Some(0), "{ended:?}");
}
