//! Every crate inherits the lints of the workspace.

use super::Finding;
use super::tree::Tree;

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let manifests = tree.packages.iter().map(|package| package.manifest.as_path());
    manifests
        .filter(|manifest| !inherits_lints(tree.text(manifest)))
        .map(|manifest| Finding::new(manifest, 1, "a manifest has `[lints]` with `workspace = true`"))
        .collect()
}

fn inherits_lints(manifest: &str) -> bool {
    let mut lines = manifest.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.any(|line| line == "[lints]") && lines.next() == Some("workspace = true")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_inherited_lints_count() {
        assert!(inherits_lints("[package]\n\n[lints]\n# Why.\nworkspace = true\n\n[dependencies]\n"));
        assert!(!inherits_lints("[package]\n"));
        assert!(!inherits_lints("[lints]\n[dependencies]\nworkspace = true\n"));
        assert!(!inherits_lints("[lints.rust]\nmissing_docs = \"allow\"\n"));
    }
}
