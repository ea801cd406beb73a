//! Source files are not longer than a limit.

use std::path::Path;

use super::Finding;
use super::tree::Tree;

const LINES_MAX: usize = 500;

/// Generated files.
const EXEMPT: [&str; 1] = ["nccl-sys/src/bindings.rs"];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    tree.texts_with_extension("rs").filter_map(|(path, text)| check_file(path, text)).collect()
}

fn check_file(path: &Path, text: &str) -> Option<Finding> {
    let lines = text.lines().count();
    let too_long = lines > LINES_MAX && !EXEMPT.iter().any(|exempt| path == Path::new(exempt));
    too_long.then(|| {
        Finding::new(path, LINES_MAX + 1, format!("{lines} lines, more than {LINES_MAX}: split this file"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_inclusive() {
        let at = "x\n".repeat(LINES_MAX);
        let above = "x\n".repeat(LINES_MAX + 1);
        assert_eq!(check(&Tree::with_texts([("a.rs", &at), ("b.md", &above)])), []);
        assert_eq!(check(&Tree::with_texts([("a.rs", &above)])).len(), 1);
    }
}
