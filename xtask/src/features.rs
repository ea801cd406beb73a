//! Compiles published packages without features and with each feature alone.

use std::io::Write;
use std::path::Path;

use crate::error::{Error, Result};
use crate::packages::{self, Package};
use crate::{commands, places};

/// Pairs of package and feature that `.ci/run` checks in a separate step.
const APART: [(&str, &str); 1] = [("comm-candle", "cuda")];

pub(crate) fn run(out: &mut impl Write) -> Result<()> {
    let root = places::root();
    for package in packages::read(&root)?.iter().filter(|package| package.is_publishable()) {
        for selection in selections(package) {
            writeln!(out, "{} {}", package.name, selection.unwrap_or("without features"))?;
            check(&root, package, selection)?;
        }
    }
    Ok(())
}

fn selections(package: &Package) -> Vec<Option<&str>> {
    let is_apart = |feature: &str| APART.contains(&(package.name.as_str(), feature));
    let each = package.features.keys().map(String::as_str).filter(|feature| !is_apart(feature)).map(Some);
    let none = (!package.features.is_empty()).then_some(None);
    none.into_iter().chain(each).collect()
}

/// Counts warnings as errors. `-D warnings` would rebuild all dependencies, so any message is an
/// error.
fn check(root: &Path, package: &Package, feature: Option<&str>) -> Result<()> {
    let mut cargo = commands::cargo();
    cargo.args(["check", "--quiet", "--no-default-features", "--package", &package.name]);
    if let Some(feature) = feature {
        cargo.args(["--features", feature]);
    }
    let failed = |reason: &str| {
        let program = format!("cargo check of {} with {}", package.name, feature.unwrap_or("no feature"));
        Error::Failed { program, reason: reason.to_owned() }
    };
    let start = |source| Error::Start { program: "cargo".into(), source };
    let output = cargo.current_dir(root).output().map_err(start)?;
    let messages = String::from_utf8_lossy(&output.stderr);
    if output.status.success() && messages.is_empty() { Ok(()) } else { Err(failed(&messages)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, features: &[&str]) -> Package {
        let features = features.iter().map(|feature| ((*feature).to_owned(), Vec::new())).collect();
        Package { features, ..Package::with_dependencies(name, Vec::new()) }
    }

    #[test]
    fn none_and_each_feature_alone_are_checked() {
        assert_eq!(selections(&package("comm-core", &["a", "b"])), [None, Some("a"), Some("b")]);
        assert_eq!(selections(&package("comm-core", &[])), []);
        assert_eq!(selections(&package("comm-candle", &["cuda"])), [None]);
    }
}
