//! An error includes each cause once: in its text or as its source.
//!
//! Reporters print an error and the chain of its sources, so a cause in the text must not also be a
//! source. For `thiserror`, every field named `source` or marked `#[from]` or `#[source]` is a
//! source; a field `r#source` is not.

use super::Finding;
use super::tree::Tree;

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    const MESSAGE: &str =
        "the text of this error includes its source, which a chain of causes then prints twice";
    let sources = tree.texts.iter().filter(|(path, _)| path.extension().is_some_and(|name| name == "rs"));
    sources
        .flat_map(|(path, text)| {
            repeated(text).into_iter().map(move |line| Finding::new(path, line, MESSAGE))
        })
        .collect()
}

/// Returns the lines, from 1, of `#[error]` attributes whose text includes the source of the error.
fn repeated(text: &str) -> Vec<usize> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    let starts = lines.iter().enumerate().filter(|(_, line)| line.trim_start().starts_with("#[error("));
    for (at, _) in starts {
        let end =
            lines[at..].iter().position(|line| line.trim_end().ends_with(")]")).map_or(at, |end| at + end);
        let attribute = lines[at..=end].concat();
        let variant = lines[end + 1..].iter().take_while(|line| !line.contains("#[error(") && **line != "}");
        let is_source = |field: &str| {
            (attribute.contains("{source}") && has_source_field(field))
                || (attribute.contains("{0}") && (field.contains("(#[from]") || field.contains("(#[source]")))
        };
        if variant.into_iter().any(|field| is_source(field)) {
            found.push(at + 1);
        }
    }
    found
}

/// Returns whether a line has a field `source`, but not `r#source`.
fn has_source_field(line: &str) -> bool {
    line.match_indices("source: ").any(|(at, _)| {
        let before = line[..at].chars().next_back();
        before.is_none_or(|before| before.is_whitespace() || before == '{')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_in_the_text_must_not_be_a_source() {
        let named =
            "#[error(\"cannot {doing}: {source}\")]\nIo {\n    doing: String,\n    source: io::Error,\n},\n";
        let inline = "#[error(\"{}: {source}\", .path)]\nFile { path: PathBuf, source: io::Error },\n";
        let tuple = "#[error(\"bad: {0}\")]\nBad(#[from] Cause),\n";
        for text in [named, inline, tuple] {
            assert_eq!(repeated(text), [1], "{text}");
        }
    }

    #[test]
    fn a_cause_is_either_in_the_text_or_a_source() {
        let hidden = "#[error(\"cannot {doing}: {source}\")]\nIo { doing: String, r#source: io::Error },\n";
        let only = "#[error(\"cannot {doing}\")]\nIo { doing: String, source: io::Error },\n";
        let next = "#[error(\"usage: {0}\")]\nUsage(String),\n#[error(transparent)]\nOther(#[from] Cause),\n";
        for text in [hidden, only, next] {
            assert_eq!(repeated(text), [0; 0], "{text}");
        }
    }
}
