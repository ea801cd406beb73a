//! What the rules look at: the packages of the workspace and the texts of the repository.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;
use walkdir::WalkDir;

/// What is built or generated, and git's own.
const SKIPPED: [&str; 3] = ["target", "out", ".git"];

/// Files with other extensions are known by their names only.
const TEXTS: [&str; 6] = ["rs", "md", "toml", "sh", "yml", "yaml"];

/// Why the repository could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TreeError {
    /// A folder or a file is not readable.
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// A folder could not be listed.
    #[error(transparent)]
    Walk(#[from] walkdir::Error),
    /// `cargo metadata` failed.
    #[error("cargo metadata failed: {0}")]
    Metadata(String),
    /// `cargo metadata` printed something unexpected.
    #[error("cannot understand cargo metadata")]
    Json(#[from] serde_json::Error),
}

/// The repository as the rules see it. All paths are relative to its root.
#[derive(Debug, Default)]
pub(super) struct Tree {
    pub(super) packages: Vec<Package>,
    /// Every file and folder.
    pub(super) paths: BTreeSet<PathBuf>,
    /// The contents of those that hold text.
    pub(super) texts: BTreeMap<PathBuf, String>,
}

/// A package of the workspace.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Package {
    pub(super) name: String,
    #[serde(rename = "manifest_path")]
    pub(super) manifest: PathBuf,
    pub(super) dependencies: Vec<Dependency>,
    pub(super) targets: Vec<Target>,
    pub(super) id: String,
    /// Whether cargo means this package too when it is told of none.
    #[serde(skip)]
    pub(super) is_default: bool,
}

/// A line of a package's dependency tables.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Dependency {
    pub(super) name: String,
    #[serde(default)]
    pub(super) kind: Option<DependencyKind>,
    /// Where the dependency lies if it is part of this repository.
    #[serde(default)]
    pub(super) path: Option<PathBuf>,
    /// Where it is needed, unless that is everywhere.
    #[serde(default)]
    pub(super) target: Option<String>,
}

/// The kinds that cargo names; normal ones have none.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(super) enum DependencyKind {
    Dev,
    Build,
}

/// What a package builds.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Target {
    pub(super) kind: Vec<String>,
    #[serde(rename = "src_path")]
    pub(super) source: PathBuf,
}

#[derive(Debug, Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    #[serde(rename = "workspace_default_members")]
    default_members: Vec<String>,
}

impl Tree {
    /// Reads the repository that this program was built in.
    pub(super) fn of_this_repository() -> Result<Self, TreeError> {
        let package = Path::new(env!("CARGO_MANIFEST_DIR"));
        Self::read(package.parent().unwrap_or(package))
    }

    fn read(root: &Path) -> Result<Self, TreeError> {
        let mut tree = Self { packages: packages(root)?, ..Self::default() };
        let wanted = |name: &OsStr| !SKIPPED.iter().any(|skipped| name == *skipped);
        for entry in
            WalkDir::new(root).min_depth(1).into_iter().filter_entry(|entry| wanted(entry.file_name()))
        {
            let entry = entry?;
            let path = relative(entry.path(), root);
            if entry.file_type().is_file() && is_text(&path) {
                let source = |source| TreeError::Read { path: path.clone(), source };
                tree.texts.insert(path.clone(), fs::read_to_string(entry.path()).map_err(source)?);
            }
            tree.paths.insert(path);
        }
        Ok(tree)
    }

    /// A tree of these texts.
    #[cfg(test)]
    pub(super) fn with_texts<const N: usize>(texts: [(&str, &str); N]) -> Self {
        let texts: BTreeMap<_, _> =
            texts.into_iter().map(|(path, text)| (PathBuf::from(path), text.to_owned())).collect();
        let paths = texts.keys().flat_map(|path| path.ancestors().map(Path::to_owned)).collect();
        Self { packages: Vec::new(), paths, texts }
    }

    /// A tree of these packages, with nothing in it.
    #[cfg(test)]
    pub(super) fn with_packages(packages: Vec<Package>) -> Self {
        Self { packages, ..Self::default() }
    }

    /// The text of a file, empty if there is none.
    pub(super) fn text(&self, path: &Path) -> &str {
        self.texts.get(path).map_or("", String::as_str)
    }

    /// All texts with this extension.
    pub(super) fn texts_with_extension(&self, extension: &str) -> impl Iterator<Item = (&Path, &str)> {
        let wanted = move |path: &Path| path.extension().is_some_and(|found| found == extension);
        self.texts
            .iter()
            .map(|(path, text)| (path.as_path(), text.as_str()))
            .filter(move |(path, _)| wanted(path))
    }
}

impl Package {
    /// A package with these dependencies and nothing else.
    #[cfg(test)]
    pub(super) fn with_dependencies(name: &str, dependencies: Vec<Dependency>) -> Self {
        let manifest = PathBuf::from(format!("crates/{name}/Cargo.toml"));
        let id = format!("path+file:///crates/{name}");
        Self { name: name.to_owned(), manifest, dependencies, targets: Vec::new(), id, is_default: true }
    }

    /// The files in which the crates of this package begin that other people use: libraries and programs, but neither
    /// tests nor examples.
    pub(super) fn crate_roots(&self) -> impl Iterator<Item = &Path> {
        let is_shipped = |target: &&Target| target.kind.iter().any(|kind| kind == "lib" || kind == "bin");
        self.targets.iter().filter(is_shipped).map(|target| target.source.as_path())
    }

    /// Where the manifest first names a dependency, for findings about it.
    pub(super) fn line_of(&self, tree: &Tree, dependency: &str) -> usize {
        let names =
            |line: &str| line.strip_prefix(dependency).is_some_and(|rest| rest.starts_with([' ', '.', '=']));
        tree.text(&self.manifest).lines().position(names).map_or(1, |index| index + 1)
    }
}

impl Dependency {
    /// A normal dependency inside the workspace.
    #[cfg(test)]
    pub(super) fn inside(name: &str) -> Self {
        Self { name: name.to_owned(), kind: None, path: Some(PathBuf::from(name)), target: None }
    }

    /// A normal dependency from the registry.
    #[cfg(test)]
    pub(super) fn outside(name: &str) -> Self {
        Self { path: None, ..Self::inside(name) }
    }
}

fn is_text(path: &Path) -> bool {
    path.extension().map_or(path.starts_with(".ci"), |found| TEXTS.iter().any(|text| found == *text))
}

fn packages(root: &Path) -> Result<Vec<Package>, TreeError> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["metadata", "--format-version", "1", "--no-deps"]).current_dir(root);
    let output = command.output().map_err(|error| TreeError::Metadata(error.to_string()))?;
    if !output.status.success() {
        return Err(TreeError::Metadata(String::from_utf8_lossy(&output.stderr).into_owned()));
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

fn relative(path: &Path, root: &Path) -> PathBuf {
    path.strip_prefix(root).unwrap_or(path).to_owned()
}
