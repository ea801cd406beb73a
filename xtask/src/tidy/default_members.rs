//! Every package is a default member of the workspace, except those with long builds, and those
//! that need more than Rust.

use super::Finding;
use super::tree::Tree;
use crate::packages::Package;

/// Packages that `.ci/run` builds in a separate step.
const EXCEPT: [&str; 6] = ["candle-digits", "comm-burn", "comm-candle", "comm-mpi", "comm-torch", "gpt"];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    tree.packages.iter().filter_map(check_package).collect()
}

fn check_package(package: &Package) -> Option<Finding> {
    let is_exception = EXCEPT.contains(&package.name.as_str());
    (package.is_default == is_exception).then(|| {
        let must = if is_exception { "must not" } else { "must" };
        let message = format!("{} {must} be among the default-members of the workspace", package.name);
        Finding::new("Cargo.toml", 1, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_that_is_not_built_by_default_is_found() {
        let package =
            |name: &str, is_default| Package { is_default, ..Package::with_dependencies(name, Vec::new()) };
        let count =
            |name: &str, is_default| check(&Tree::with_packages(vec![package(name, is_default)])).len();
        assert_eq!((count("comm-core", true), count("comm-core", false)), (0, 1));
        assert_eq!((count("comm-candle", false), count("comm-candle", true)), (0, 1));
    }
}
