//! A workspace of the unpacked packages, with a program that depends on the facade.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;

use super::PackageError;
use crate::commands::{self, CommandError};
use crate::packages::Package;

/// The program.
pub(super) const NAME: &str = "packaged";
const SOURCE: &str = "xtask/packaged/main.rs";
const FACADE: &str = "comm-world";
/// The package that is only checked: candle takes longer to build than all else.
const CHECKED: &str = "comm-candle";

/// Writes the project around the packages that lie in `folder`.
pub(super) fn write(packages: &[Package], root: &Path, folder: &Path) -> Result<(), PackageError> {
    let manifest = folder.join("Cargo.toml");
    fs::write(&manifest, self::manifest(packages)).map_err(PackageError::at(&manifest))?;
    let sources = folder.join("src");
    fs::create_dir_all(&sources).map_err(PackageError::at(&sources))?;
    // With the versions of the repository, what others have published is built once for both.
    for (from, to) in [(SOURCE, "src/main.rs"), ("Cargo.lock", "Cargo.lock")] {
        let from = root.join(from);
        fs::copy(&from, folder.join(to)).map_err(PackageError::at(&from))?;
    }
    Ok(())
}

/// Builds the program and all packages.
pub(super) fn build(folder: &Path, target: &Path) -> Result<(), CommandError> {
    cargo(folder, target, &["build", "--workspace", "--exclude", CHECKED])?;
    cargo(folder, target, &["check", "--package", CHECKED])
}

fn cargo(folder: &Path, target: &Path, arguments: &[&str]) -> Result<(), CommandError> {
    let mut cargo = Command::new("cargo");
    cargo.args(arguments).arg("--quiet").arg("--target-dir").arg(target);
    commands::run(cargo.current_dir(folder))
}

/// The program depends on the facade as users do, by version and with all features. Patches say
/// where all versions come from, so that a wrong version between two packages is found too.
fn manifest(packages: &[Package]) -> String {
    let facade = packages.iter().find(|package| package.name == FACADE);
    let features = facade.map(|facade| facade.features.keys().collect::<Vec<_>>()).unwrap_or_default();
    let version = facade.map_or("*", |facade| facade.version.as_str());
    let mut text = format!(
        r#"[package]
name = "{NAME}"
edition = "2024"
publish = false

[dependencies]
comm = {{ package = "{FACADE}", version = "{version}", features = {features:?} }}

[profile.dev]
# As in the repository, for what others have published.
opt-level = 1

[workspace]
members = {:?}
"#,
        packages.iter().map(Package::folder_when_packed).collect::<Vec<_>>()
    );
    for package in packages {
        let (name, folder) = (&package.name, package.folder_when_packed());
        // Nothing fails here: this writes to memory.
        let _ = write!(
            text,
            "\n[patch.crates-io.{name}]\npath = \"{folder}\"\n\n[profile.dev.package.{name}]\nopt-level = 0\n"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_project_takes_the_facade_with_all_features_from_its_package() {
        let features = ["sim", "tcp"].map(|name| (name.to_owned(), Vec::new())).into();
        let facade =
            Package { version: "1.2.3".into(), features, ..Package::with_dependencies(FACADE, Vec::new()) };
        let text = manifest(&[facade]);
        assert!(text.contains(r#"version = "1.2.3", features = ["sim", "tcp"] }"#), "{text}");
        assert!(text.contains("[patch.crates-io.comm-world]\npath = \"comm-world-1.2.3\"\n"), "{text}");
        assert!(text.contains(r#"members = ["comm-world-1.2.3"]"#), "{text}");
    }
}
