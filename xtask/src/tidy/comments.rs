//! Comments are plain English: a doc comment opens with a statement, and lines wrap at 100 columns.

use std::path::Path;

use super::Finding;
use super::tree::Tree;

const COLUMNS_MAX: usize = 100;

/// A doc comment that opens with one of these does not state the purpose of the item.
const BANNED_OPENINGS: [&str; 13] = [
    "What", "How", "Who", "Whoever", "Whose", "Whom", "Why", "Which", "That of", "Those of", "So many",
    "So much", "As many",
];
/// Phrases that have no place in the first line of a doc comment.
const BANNED_PHRASES: [&str; 3] = ["which is none", "takes note", "one behind the other"];
/// Phrases that have no place in the first sentence of a doc comment.
const BANNED_IN_SENTENCE: [&str; 7] = ["of which", "that of", "those of", "so many", "what", "how", "who"];

/// A generated file.
const BINDINGS: &str = "nccl-sys/src/bindings.rs";

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let rules = |(path, text)| [check_openings(path, text), check_wraps(path, text)].concat();
    tree.texts_with_extension("rs").flat_map(rules).collect()
}

/// Returns the marker and the text of a line that contains only a comment.
fn comment(line: &str) -> Option<(&str, &str)> {
    let line = line.trim_start();
    ["///", "//!", "//"].into_iter().find_map(|marker| {
        let text = line.strip_prefix(marker)?;
        (text.is_empty() || text.starts_with(' ')).then(|| (&line[..marker.len()], text.trim_start()))
    })
}

fn check_openings(path: &Path, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut previous = None;
    let lines: Vec<_> =
        text.lines().map(|line| comment(line).filter(|(marker, _)| *marker != "//")).collect();
    for (index, current) in lines.iter().enumerate() {
        let marker = current.map(|(marker, _)| marker);
        if let (Some((marker, text)), false) = (current, marker == previous) {
            let opening = BANNED_OPENINGS.into_iter().find(|opening| opens_with(text, opening));
            let phrase = BANNED_PHRASES.into_iter().find(|phrase| text.contains(phrase));
            let sentence = first_sentence(&lines[index..]);
            let in_sentence =
                BANNED_IN_SENTENCE.into_iter().find(|phrase| contains_phrase(&sentence, phrase));
            findings.extend(opening.or(phrase).or(in_sentence).map(|found| {
                let message = format!("this {marker} contains {found:?}: state what the item is or does");
                Finding::new(path, index + 1, message)
            }));
        }
        previous = marker;
    }
    findings
}

/// Returns the first sentence of a doc comment, which begins with the first of these lines. Empty
/// for the help of a command line, which has no full stop.
fn first_sentence(lines: &[Option<(&str, &str)>]) -> String {
    let mut sentence = String::new();
    for (_, text) in lines.iter().map_while(|line| line.filter(|(_, text)| !text.is_empty())) {
        sentence.push_str(text);
        sentence.push(' ');
        let ends = [". ", ": ", "; "].into_iter().filter_map(|end| sentence.find(end));
        if let Some(end) = ends.min() {
            sentence.truncate(end);
            return sentence;
        }
    }
    String::new()
}

fn opens_with(text: &str, opening: &str) -> bool {
    text.strip_prefix(opening).is_some_and(|rest| !rest.starts_with(continues_word))
}

fn contains_phrase(text: &str, phrase: &str) -> bool {
    text.match_indices(phrase).any(|(start, _)| {
        let (before, after) = (&text[..start], &text[start + phrase.len()..]);
        !before.ends_with(continues_word) && !after.starts_with(continues_word)
    })
}

/// Returns whether a character belongs to a word, or to code.
fn continues_word(character: char) -> bool {
    character.is_alphanumeric() || ['-', '_', '`'].contains(&character)
}

fn check_wraps(path: &Path, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    if path == Path::new(BINDINGS) {
        return findings;
    }
    let mut is_code = false;
    for (index, line) in text.lines().enumerate() {
        let Some((_, text)) = comment(line) else {
            is_code = false;
            continue;
        };
        if text.starts_with("```") {
            is_code = !is_code;
        }
        let breakable = !is_code && !text.starts_with('|') && text.contains(' ') && !text.contains("://");
        let columns = line.chars().count();
        if breakable && columns > COLUMNS_MAX {
            let message = format!("a comment of {columns} columns: wrap it at {COLUMNS_MAX}");
            findings.push(Finding::new(path, index + 1, message));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn assert_lines(rule: fn(&Path, &str) -> Vec<Finding>, text: &str, expected: &[usize]) {
        let lines: Vec<usize> = rule(Path::new("a.rs"), text).iter().map(|finding| finding.line).collect();
        assert_eq!(lines, expected, "{text}");
    }

    #[test]
    fn a_doc_comment_must_not_open_with_a_banned_word() {
        for opening in BANNED_OPENINGS {
            assert_lines(check_openings, &format!("    /// {opening} it is.\n"), &[1]);
            assert_lines(check_openings, &format!("//! {opening} it is.\n"), &[1]);
        }
        assert_lines(check_openings, "fn f() {}\n/// The rank, which is none.\n", &[2]);
        assert_lines(check_openings, "/// Takes a rank, which is none\n#[arg(long)]\n", &[1]);
    }

    #[test]
    fn a_first_sentence_must_not_contain_a_banned_phrase() {
        for phrase in BANNED_IN_SENTENCE {
            assert_lines(check_openings, &format!("fn f() {{}}\n/// The rank\n/// {phrase} it.\n"), &[2]);
            assert_lines(check_openings, &format!("/// The rank: {phrase} it.\n"), &[]);
            assert_lines(check_openings, &format!("/// The rank. It is\n/// {phrase} it.\n"), &[]);
        }
        assert_lines(check_openings, "/// Calls `what` somehow, if whatever.\n", &[]);
        assert_lines(check_openings, "/// Show what ranks do\n#[arg(long)]\n", &[]);
    }

    #[test]
    fn later_lines_and_plain_comments_may_open_with_any_word() {
        assert_lines(check_openings, "/// Sends.\n/// What it sends is kept.\n", &[]);
        assert_lines(check_openings, "// What it sends is kept.\n", &[]);
        assert_lines(check_openings, "/// Whatever.\nfn f() {}\n/// How-to.\n", &[]);
    }

    #[test]
    fn each_item_is_checked_on_its_own() {
        assert_lines(check_openings, "//! Good.\n\n/// What.\nA,\n/// How it ends.\nB,\n", &[3, 5]);
        assert_lines(check_openings, "//! Good.\n/// What.\n", &[2]);
    }

    #[test]
    fn comments_wrap_at_100_columns() {
        let of =
            |columns: usize, marker: &str| format!("{marker} a {}\n", "x".repeat(columns - marker.len() - 3));
        for marker in ["//", "///", "//!", "    //"] {
            assert_lines(check_wraps, &of(100, marker), &[]);
            assert_lines(check_wraps, &of(101, marker), &[1]);
        }
    }

    #[test]
    fn code_tables_addresses_and_single_words_need_not_wrap() {
        let long = "x ".repeat(60);
        for text in [
            format!("/// | {long} |\n"),
            format!("/// ```\n/// {long}\n/// ```\n"),
            format!("// https://a.b/{}\n", "x".repeat(120)),
            format!("/// {}\n", "x".repeat(120)),
            format!("let a = 1; // {long}\n"),
        ] {
            assert_lines(check_wraps, &text, &[]);
        }
        assert_lines(check_wraps, &format!("/// ```\n/// ```\n/// {long}\n"), &[3]);
    }
}
