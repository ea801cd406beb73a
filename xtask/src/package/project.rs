//! A workspace of the unpacked packages with a program that depends on the facade.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use crate::commands;
use crate::error::{Error, Result};
use crate::packages::Package;

/// The name of the program.
pub(super) const NAME: &str = "packaged";
const SOURCE: &str = "xtask/packaged/main.rs";
const FACADE: &str = "comm-world";
/// The packages that are only checked, because burn and candle take long to build.
const CHECKED: [&str; 2] = ["comm-burn", "comm-candle"];
/// The packages that are packed, but not built, because they need MPI. `.ci/run` builds them where
/// it is installed.
const UNBUILT: [&str; 1] = ["comm-mpi"];

/// Writes the project around the packages in `folder`.
pub(super) fn write(packages: &[Package], root: &Path, folder: &Path) -> Result<()> {
    let manifest = folder.join("Cargo.toml");
    fs::write(&manifest, self::manifest(packages)).map_err(Error::file(&manifest))?;
    let sources = folder.join("src");
    fs::create_dir_all(&sources).map_err(Error::file(&sources))?;
    // With the lock file of the repository, dependencies are built only once.
    for (from, to) in [(SOURCE, "src/main.rs"), ("Cargo.lock", "Cargo.lock")] {
        let from = root.join(from);
        fs::copy(&from, folder.join(to)).map_err(Error::file(&from))?;
    }
    Ok(())
}

/// Builds the program and all packages.
pub(super) fn build(folder: &Path, target: &Path) -> Result<()> {
    let built: Vec<&str> = ["build", "--workspace"]
        .into_iter()
        .chain(CHECKED.into_iter().chain(UNBUILT).flat_map(|name| ["--exclude", name]))
        .collect();
    let checked: Vec<&str> =
        ["check"].into_iter().chain(CHECKED.into_iter().flat_map(|name| ["--package", name])).collect();
    cargo(folder, target, &built)?;
    cargo(folder, target, &checked)
}

fn cargo(folder: &Path, target: &Path, arguments: &[&str]) -> Result<()> {
    let mut cargo = commands::cargo();
    cargo.args(arguments).arg("--quiet").arg("--target-dir").arg(target);
    commands::run(cargo.current_dir(folder))
}

/// Returns the manifest. The program depends on the facade by version, as users do, with all
/// features. The packages are patches, so that wrong versions between packages are also detected.
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
# As in the repository, for dependencies.
opt-level = 1
lto = "off"

[workspace]
members = {:?}
"#,
        packages.iter().map(Package::folder_when_packed).collect::<Vec<_>>()
    );
    for package in packages {
        let (name, folder) = (&package.name, package.folder_when_packed());
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
    fn the_project_depends_on_the_packaged_facade_with_all_features() {
        let features = ["sim", "tcp"].map(|name| (name.to_owned(), Vec::new())).into();
        let facade =
            Package { version: "1.2.3".into(), features, ..Package::with_dependencies(FACADE, Vec::new()) };
        let text = manifest(&[facade]);
        assert!(text.contains(r#"version = "1.2.3", features = ["sim", "tcp"] }"#), "{text}");
        assert!(text.contains("[patch.crates-io.comm-world]\npath = \"comm-world-1.2.3\"\n"), "{text}");
        assert!(text.contains(r#"members = ["comm-world-1.2.3"]"#), "{text}");
    }
}
