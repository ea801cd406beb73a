//! The core crate has only the listed external dependencies.

use super::Finding;
use super::tree::Tree;
use crate::packages::Package;

/// The target of loom tests, whose dependencies do not count.
const LOOM: &str = "cfg(loom)";

/// Pairs of a crate and its external dependencies, which users of all crates build.
const EXACT: [(&str, &[&str]); 1] =
    [("comm-core", &["bytemuck", "crossbeam-channel", "float8", "half", "ndarray", "rustix", "thiserror"])];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let listed = |package: &&Package| EXACT.iter().find(|(name, _)| *name == package.name);
    tree.packages
        .iter()
        .filter_map(|package| Some((package, listed(&package)?.1)))
        .flat_map(|(package, exact)| differences(tree, package, exact))
        .collect()
}

fn differences(tree: &Tree, package: &Package, exact: &[&str]) -> Vec<Finding> {
    let found: Vec<&str> = package
        .dependencies
        .iter()
        .filter(|dependency| dependency.kind.is_none() && dependency.path.is_none())
        .filter(|dependency| dependency.target.as_deref() != Some(LOOM))
        .map(|dependency| dependency.name.as_str())
        .collect();
    let finding = |name: &&str, what: &str| {
        Finding::new(
            &package.manifest,
            tree.line_of(package, name),
            format!("{} {what} {name}", package.name),
        )
    };
    let added =
        found.iter().filter(|name| !exact.contains(name)).map(|name| finding(name, "must not depend on"));
    let unused = exact
        .iter()
        .filter(|name| !found.contains(name))
        .map(|name| finding(name, "is listed to depend on, but does not:"));
    added.chain(unused).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packages::{Dependency, DependencyKind};

    fn findings(names: &[&str]) -> Vec<String> {
        let mut dependencies: Vec<_> = names.iter().map(|name| Dependency::outside(name)).collect();
        dependencies.push(Dependency { kind: Some(DependencyKind::Dev), ..Dependency::outside("proptest") });
        let target = Some(LOOM.to_owned());
        dependencies.push(Dependency { target, ..Dependency::outside("loom") });
        let tree = Tree::with_packages(vec![Package::with_dependencies("comm-core", dependencies)]);
        check(&tree).into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn the_list_is_exact() {
        assert!(
            findings(&["bytemuck", "crossbeam-channel", "float8", "half", "ndarray", "rustix", "thiserror"])
                .is_empty()
        );
        assert_eq!(
            findings(&[
                "bytemuck",
                "crossbeam-channel",
                "float8",
                "half",
                "libc",
                "ndarray",
                "rustix",
                "thiserror"
            ]),
            ["comm-core must not depend on libc"]
        );
        assert_eq!(
            findings(&["bytemuck", "crossbeam-channel", "float8", "ndarray", "rustix", "thiserror"]),
            ["comm-core is listed to depend on, but does not: half"]
        );
    }
}
