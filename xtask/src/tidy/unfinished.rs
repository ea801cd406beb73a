//! No text contains a mark of unfinished work, or of a merge with conflicts.

use super::Finding;
use super::tree::Tree;

/// Each is split in two, so that this file does not contain it.
const MARKS: [&str; 5] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
    concat!("todo", "!"),
    concat!("unimplemented", "!"),
];

/// The starts of lines that a merge leaves around conflicts.
const CONFLICTS: [&str; 2] = ["<<<<<<< ", ">>>>>>> "];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in &tree.texts {
        for (index, line) in text.lines().enumerate() {
            let marks = MARKS.iter().filter(|mark| has_word(line, mark));
            let conflicts = CONFLICTS.iter().filter(|mark| line.starts_with(**mark));
            let found = marks.chain(conflicts);
            findings.extend(found.map(|mark| Finding::new(path, index + 1, format!("contains {mark}"))));
        }
    }
    findings
}

/// Returns whether `line` contains `word` as a whole word.
fn has_word(line: &str, word: &str) -> bool {
    let is_inside = |neighbour: Option<char>| neighbour.is_some_and(|c| c.is_alphanumeric() || c == '_');
    line.match_indices(word).any(|(start, _)| {
        let before = line[..start].chars().next_back();
        let after = line[start + word.len()..].chars().next();
        !is_inside(before) && (word.ends_with('!') || !is_inside(after))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_found_in_any_text() {
        for mark in MARKS {
            let text = format!("fine\nx // {mark} later\n");
            let findings = check(&Tree::with_texts([("a.rs", &text)]));
            assert_eq!(findings.len(), 1, "{mark}");
            assert_eq!(findings[0].line, 2);
        }
        let text = format!("fn f() {{ {}() }}", MARKS[3]);
        assert_eq!(check(&Tree::with_texts([("a.rs", &text)])).len(), 1);
    }

    #[test]
    fn conflicts_of_a_merge_are_found_at_the_starts_of_lines() {
        for mark in CONFLICTS {
            let text = format!("fine\n{mark}HEAD\n if a {mark} b\n");
            let findings = check(&Tree::with_texts([("a.md", &text)]));
            assert_eq!(findings.iter().map(|finding| finding.line).collect::<Vec<_>>(), [2], "{mark}");
        }
    }

    #[test]
    fn parts_of_words_are_not_marks() {
        let text = format!("{0}S, {0}_LIST, M{0}, not_{1}x", MARKS[0], MARKS[3]);
        assert_eq!(check(&Tree::with_texts([("a.rs", &text)])), []);
    }
}
