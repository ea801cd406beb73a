//! The packages of the workspace, as `cargo metadata` lists them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::commands;
use crate::error::{Error, Result};

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
    /// The features, and those that each enables.
    pub(crate) features: BTreeMap<String, Vec<String>>,
    pub(crate) description: Option<String>,
    pub(crate) keywords: Vec<String>,
    pub(crate) categories: Vec<String>,
    /// The registries that accept the package; `None` is crates.io.
    pub(crate) publish: Option<Vec<String>>,
    /// Whether the package is a default member of the workspace.
    #[serde(skip)]
    pub(crate) is_default: bool,
}

/// An entry in a package's dependency tables.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) kind: Option<DependencyKind>,
    /// The folder, for packages of this repository.
    #[serde(default)]
    pub(crate) path: Option<PathBuf>,
    /// The platforms, unless the dependency applies to all.
    #[serde(default)]
    pub(crate) target: Option<String>,
}

/// The kind of a dependency, except for normal ones.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(crate) enum DependencyKind {
    Dev,
    Build,
}

/// A library, program, test or example of a package.
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
    #[cfg(test)]
    pub(crate) fn with_dependencies(name: &str, dependencies: Vec<Dependency>) -> Self {
        let manifest = PathBuf::from(format!("crates/{name}/Cargo.toml"));
        let id = format!("path+file:///crates/{name}");
        Self { name: name.to_owned(), manifest, dependencies, id, is_default: true, ..Self::default() }
    }

    pub(crate) fn is_publishable(&self) -> bool {
        self.publish.as_ref().is_none_or(|registries| !registries.is_empty())
    }

    /// The folder in the archive of the package.
    pub(crate) fn folder_when_packed(&self) -> String {
        format!("{}-{}", self.name, self.version)
    }

    pub(crate) fn folder(&self) -> &Path {
        self.manifest.parent().unwrap_or(Path::new(""))
    }

    /// The root files of libraries and programs.
    pub(crate) fn crate_roots(&self) -> impl Iterator<Item = &Path> {
        let is_shipped = |target: &&Target| target.kind.iter().any(|kind| kind == "lib" || kind == "bin");
        self.targets.iter().filter(is_shipped).map(|target| target.source.as_path())
    }
}

impl Dependency {
    /// A normal dependency in the workspace.
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

/// Returns the packages of the workspace in `root`, with paths relative to it.
pub(crate) fn read(root: &Path) -> Result<Vec<Package>> {
    let mut cargo = commands::cargo();
    cargo.args(["metadata", "--format-version", "1", "--no-deps"]).current_dir(root);
    let json = |source| Error::Json { what: "the output of cargo metadata".into(), source };
    let Metadata { mut packages, default_members } =
        serde_json::from_str(&commands::output(&mut cargo)?).map_err(json)?;
    for package in &mut packages {
        package.is_default = default_members.contains(&package.id);
        package.manifest = relative(&package.manifest, root);
        for target in &mut package.targets {
            target.source = relative(&target.source, root);
        }
    }
    Ok(packages)
}

pub(crate) fn relative(path: &Path, root: &Path) -> PathBuf {
    path.strip_prefix(root).unwrap_or(path).to_owned()
}
