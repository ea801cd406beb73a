//! The changelog exists and has a section for unreleased changes.

use std::path::Path;

use super::Finding;
use super::tree::Tree;

const CHANGELOG: &str = "CHANGELOG.md";
const HEADING: &str = "## [Unreleased]";

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let has_heading = tree.text(Path::new(CHANGELOG)).lines().any(|line| line.trim_end() == HEADING);
    if has_heading { Vec::new() } else { vec![Finding::new(CHANGELOG, 1, format!("no section `{HEADING}`"))] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreleased_section_is_required() {
        assert_eq!(check(&Tree::with_texts([("CHANGELOG.md", "# Changelog\n\n## [Unreleased]\n")])), []);
        assert_eq!(check(&Tree::with_texts([("CHANGELOG.md", "# Changelog\n\n## [1.0.0]\n")])).len(), 1);
        assert_eq!(check(&Tree::with_texts([])).len(), 1);
    }
}
