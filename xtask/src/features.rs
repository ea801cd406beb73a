//! Compiles published packages with none of their features, and with each alone.

use std::io::{self, Write};
use std::path::Path;
use std::process::Command;

use crate::packages::{self, Package, PackagesError};
use crate::places;

/// (package, feature) with a step of its own in `.ci/run`.
const APART: [(&str, &str); 1] = [("comm-candle", "cuda")];

/// Why a package is no good with some features.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FeaturesError {
    /// The packages of the workspace are unknown.
    #[error(transparent)]
    Packages(#[from] PackagesError),
    /// cargo could not be started.
    #[error("cannot start cargo")]
    Start(#[source] io::Error),
    /// A package does not compile with these features, or not without a warning.
    #[error("{package} with {features}:\n{said}")]
    Faulty { package: String, features: String, said: String },
    /// Standard output is closed.
    #[error("cannot write")]
    Output(#[from] io::Error),
}

/// Checks every published package that has features.
pub(crate) fn run(out: &mut impl Write) -> Result<(), FeaturesError> {
    let root = places::root();
    for package in packages::read(&root)?.iter().filter(|package| package.is_publishable()) {
        for selection in selections(package) {
            writeln!(out, "{} {}", package.name, selection.unwrap_or("without features"))?;
            check(&root, package, selection)?;
        }
    }
    Ok(())
}

/// None, and each alone, of a package that has any.
fn selections(package: &Package) -> Vec<Option<&str>> {
    let is_apart = |feature: &str| APART.contains(&(package.name.as_str(), feature));
    let each = package.features.keys().map(String::as_str).filter(|feature| !is_apart(feature)).map(Some);
    let none = (!package.features.is_empty()).then_some(None);
    none.into_iter().chain(each).collect()
}

/// A warning is as bad as an error. The flag that makes it one would have everything built anew, so
/// whatever cargo says is taken for one.
fn check(root: &Path, package: &Package, feature: Option<&str>) -> Result<(), FeaturesError> {
    let mut cargo = Command::new("cargo");
    cargo.args(["check", "--quiet", "--no-default-features", "--package", &package.name]);
    if let Some(feature) = feature {
        cargo.args(["--features", feature]);
    }
    let output = cargo.current_dir(root).output().map_err(FeaturesError::Start)?;
    if output.status.success() && output.stderr.is_empty() {
        return Ok(());
    }
    let package = package.name.clone();
    let features = feature.unwrap_or("no feature").to_owned();
    Err(FeaturesError::Faulty {
        package,
        features,
        said: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
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
