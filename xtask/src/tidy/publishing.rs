//! Published packages have a description, keywords, a readme and both licences; all other packages
//! cannot be published.

use super::Finding;
use super::links::relative_links;
use super::tree::Tree;
use crate::packages::Package;

/// The packages on crates.io.
const PUBLISHED: [&str; 18] = [
    "comm-burn",
    "comm-candle",
    "comm-cli",
    "comm-core",
    "comm-checkpoint",
    "comm-ddp",
    "comm-hybrid",
    "comm-mesh",
    "comm-mpi",
    "comm-nccl",
    "comm-pmi",
    "comm-rendezvous",
    "comm-ring",
    "comm-shm",
    "comm-sim",
    "comm-tcp",
    "comm-world",
    "nccl-sys",
];

/// Files of every published package.
const FILES: [&str; 3] = ["LICENSE-APACHE", "LICENSE-MIT", "README.md"];

/// The limits of crates.io.
const KEYWORDS_MAX: usize = 5;
const KEYWORD_LENGTH_MAX: usize = 20;

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    tree.packages.iter().flat_map(|package| check_package(tree, package)).collect()
}

fn check_package(tree: &Tree, package: &Package) -> Vec<Finding> {
    let is_listed = PUBLISHED.contains(&package.name.as_str());
    match (is_listed, package.is_publishable()) {
        (true, true) => [check_manifest(package), check_files(tree, package), check_links(tree, package)]
            .into_iter()
            .flatten()
            .collect(),
        (false, false) => Vec::new(),
        (true, false) => vec![finding(package, "is published, but its manifest has `publish = false`")],
        (false, true) => vec![finding(package, "is not published: its manifest must have `publish = false`")],
    }
}

fn check_manifest(package: &Package) -> Vec<Finding> {
    let is_description = package.description.as_ref().is_some_and(|text| !text.is_empty());
    let are_keywords = (1..=KEYWORDS_MAX).contains(&package.keywords.len())
        && package.keywords.iter().all(|keyword| is_keyword(keyword));
    let fields = [
        (is_description, "has no description"),
        (
            are_keywords,
            "must have 1 to 5 keywords, each a letter and up to 19 letters, digits, `_`, `-` or `+`",
        ),
        (!package.categories.is_empty(), "has no categories"),
    ];
    fields.into_iter().filter(|(is_right, _)| !is_right).map(|(_, what)| finding(package, what)).collect()
}

fn is_keyword(word: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "_-+".contains(c);
    word.len() <= KEYWORD_LENGTH_MAX
        && word.starts_with(|first: char| first.is_ascii_alphabetic())
        && word.chars().all(is_allowed)
}

fn check_files(tree: &Tree, package: &Package) -> Vec<Finding> {
    let is_missing = |file: &&str| !tree.paths.contains(&package.folder().join(file));
    FILES.into_iter().filter(is_missing).map(|file| finding(package, &format!("has no {file}"))).collect()
}

/// crates.io shows the readme without the repository, so relative links do not work.
fn check_links(tree: &Tree, package: &Package) -> Vec<Finding> {
    let readme = package.folder().join("README.md");
    relative_links(tree.text(&readme))
        .map(|(line, link)| {
            Finding::new(&readme, line, format!("the relative link to {link} is dead on crates.io"))
        })
        .collect()
}

fn finding(package: &Package, what: &str) -> Finding {
    Finding::new(&package.manifest, 1, format!("{} {what}", package.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str) -> Package {
        Package {
            description: Some("What it is".to_owned()),
            keywords: vec!["mpi".to_owned()],
            categories: vec!["science".to_owned()],
            ..Package::with_dependencies(name, Vec::new())
        }
    }

    /// Checks a repository of one package with these files.
    fn messages(package: Package, files: &[(&str, &str)]) -> Vec<String> {
        let mut tree = Tree::with_packages(vec![package.clone()]);
        for (file, text) in files {
            let path = package.folder().join(file);
            tree.paths.insert(path.clone());
            tree.texts.insert(path, (*text).to_owned());
        }
        check(&tree).into_iter().map(|finding| finding.message).collect()
    }

    const COMPLETE: [(&str, &str); 3] =
        [("LICENSE-APACHE", ""), ("LICENSE-MIT", ""), ("README.md", "# It\n")];

    #[test]
    fn a_complete_package_passes() {
        assert!(messages(package("comm-core"), &COMPLETE).is_empty());
    }

    #[test]
    fn every_missing_field_is_found() {
        let bare = Package::with_dependencies("comm-core", Vec::new());
        assert_eq!(messages(bare, &COMPLETE).len(), 3);
    }

    #[test]
    fn every_missing_file_is_found() {
        for missing in 0..COMPLETE.len() {
            let mut files = COMPLETE.to_vec();
            let (name, _) = files.remove(missing);
            assert_eq!(messages(package("comm-core"), &files), [format!("comm-core has no {name}")]);
        }
    }

    #[test]
    fn a_package_is_either_listed_or_private() {
        let private = |name: &str| Package { publish: Some(Vec::new()), ..package(name) };
        assert!(messages(private("xtask"), &[]).is_empty());
        assert_eq!(messages(package("xtask"), &COMPLETE).len(), 1);
        assert_eq!(messages(private("comm-core"), &COMPLETE).len(), 1);
    }

    #[test]
    fn invalid_keywords_are_found() {
        for refused in ["", "3d", "two words", "longer-than-20-letters", "größe"] {
            assert!(!is_keyword(refused), "{refused}");
        }
        for accepted in ["mpi", "key-value", "c++", "exactly-twenty-chars"] {
            assert!(is_keyword(accepted), "{accepted}");
        }
        let keywords = vec!["mpi".to_owned(); 6];
        assert_eq!(messages(Package { keywords, ..package("comm-core") }, &COMPLETE).len(), 1);
    }

    #[test]
    fn relative_links_of_a_readme_are_found() {
        let mut files = COMPLETE;
        files[2].1 = "[far](https://example.org) [here](#part) [near](../../docs/wire.md)\n";
        let found = messages(package("comm-core"), &files);
        assert_eq!(found, ["the relative link to ../../docs/wire.md is dead on crates.io"]);
    }
}
