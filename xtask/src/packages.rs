//! The packages of the workspace, as `cargo metadata` lists them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, io};

use serde::Deserialize;

/// Why the packages could not be listed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PackagesError {
    /// cargo could not be started.
    #[error("cannot start cargo metadata")]
    Start(#[source] io::Error),
    /// `cargo metadata` failed.
    #[error("cargo metadata failed: {0}")]
    Failed(String),
    /// `cargo metadata` printed something unexpected.
    #[error("cannot understand cargo metadata")]
    Json(#[from] serde_json::Error),
}

/// A package of the workspace.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    #[serde(rename = "manifest_path")]
    pub(crate) manifest: PathBuf,
    pub(crate) dependencies: Vec<Dependency>,
    pub(crate) targets: Vec<Target>,
    pub(crate) id: String,
    /// What each feature turns on.
    pub(crate) features: BTreeMap<String, Vec<String>>,
    pub(crate) description: Option<String>,
    pub(crate) keywords: Vec<String>,
    pub(crate) categories: Vec<String>,
    /// The registries that accept the package, where it does not go to crates.io.
    pub(crate) publish: Option<Vec<String>>,
    /// Whether cargo means this package too when it is told of none.
    #[serde(skip)]
    pub(crate) is_default: bool,
}

/// A line of a package's dependency tables.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) kind: Option<DependencyKind>,
    /// Where the dependency lies if it is part of this repository.
    #[serde(default)]
    pub(crate) path: Option<PathBuf>,
    /// Where it is needed, unless that is everywhere.
    #[serde(default)]
    pub(crate) target: Option<String>,
}

/// The kinds that cargo names; normal ones have none.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(crate) enum DependencyKind {
    Dev,
    Build,
}

/// What a package builds.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Target {
    pub(crate) kind: Vec<String>,
    #[serde(rename = "src_path")]
    pub(crate) source: PathBuf,
}

#[derive(Debug, Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    #[serde(rename = "workspace_default_members")]
    default_members: Vec<String>,
}

impl Package {
    /// A package with these dependencies and nothing else.
    #[cfg(test)]
    pub(crate) fn with_dependencies(name: &str, dependencies: Vec<Dependency>) -> Self {
        let manifest = PathBuf::from(format!("crates/{name}/Cargo.toml"));
        let id = format!("path+file:///crates/{name}");
        Self { name: name.to_owned(), manifest, dependencies, id, is_default: true, ..Self::default() }
    }

    /// Whether the manifest allows cargo to publish the package.
    pub(crate) fn is_publishable(&self) -> bool {
        self.publish.as_ref().is_none_or(|registries| !registries.is_empty())
    }

    /// The folder that the package lies in when cargo has packed it.
    pub(crate) fn folder_when_packed(&self) -> String {
        format!("{}-{}", self.name, self.version)
    }

    /// The folder of the package.
    pub(crate) fn folder(&self) -> &Path {
        self.manifest.parent().unwrap_or(Path::new(""))
    }

    /// The files in which the crates of this package begin that other people use: libraries and
    /// programs, but neither tests nor examples.
    pub(crate) fn crate_roots(&self) -> impl Iterator<Item = &Path> {
        let is_shipped = |target: &&Target| target.kind.iter().any(|kind| kind == "lib" || kind == "bin");
        self.targets.iter().filter(is_shipped).map(|target| target.source.as_path())
    }
}

impl Dependency {
    /// A normal dependency inside the workspace.
    #[cfg(test)]
    pub(crate) fn inside(name: &str) -> Self {
        Self { name: name.to_owned(), kind: None, path: Some(PathBuf::from(name)), target: None }
    }

    /// A normal dependency from the registry.
    #[cfg(test)]
    pub(crate) fn outside(name: &str) -> Self {
        Self { path: None, ..Self::inside(name) }
    }
}

/// Lists the packages of the workspace in `root`. Their paths are relative to it.
pub(crate) fn read(root: &Path) -> Result<Vec<Package>, PackagesError> {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["metadata", "--format-version", "1", "--no-deps"]).current_dir(root);
    let output = command.output().map_err(PackagesError::Start)?;
    if !output.status.success() {
        return Err(PackagesError::Failed(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    let Metadata { mut packages, default_members } = serde_json::from_slice(&output.stdout)?;
    for package in &mut packages {
        package.is_default = default_members.contains(&package.id);
        package.manifest = relative(&package.manifest, root);
        for target in &mut package.targets {
            target.source = relative(&target.source, root);
        }
    }
    Ok(packages)
}

/// `path` as seen from `root`, if it lies in it.
pub(crate) fn relative(path: &Path, root: &Path) -> PathBuf {
    path.strip_prefix(root).unwrap_or(path).to_owned()
}
