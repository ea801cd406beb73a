//! Every crate root starts with documentation.

use super::Finding;
use super::tree::Tree;

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let roots = tree.packages.iter().flat_map(|package| package.crate_roots());
    roots
        .filter(|root| !starts_with_docs(tree.text(root)))
        .map(|root| Finding::new(root, 1, "a crate root starts with crate documentation (`//!`)"))
        .collect()
}

fn starts_with_docs(text: &str) -> bool {
    text.lines().find(|line| !line.trim().is_empty()).is_some_and(|first| first.starts_with("//!"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documentation_comes_first() {
        assert!(starts_with_docs("\n//! What it is.\n"));
        assert!(!starts_with_docs("fn main() {}\n//! Too late.\n"));
        assert!(!starts_with_docs("// Not documentation.\n"));
        assert!(!starts_with_docs(""));
    }
}
