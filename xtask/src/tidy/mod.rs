//! The rules of this repository that the compiler does not check, one file per rule.
//!
//! A rule is a function from the [`Tree`] to findings. `cargo xtask tidy` prints them; the same
//! rules run as an ordinary test of this package.

mod book;
mod changelog;
mod comments;
mod conformance;
mod default_members;
mod dependencies;
mod edges;
mod error_sources;
mod exhaustive;
mod file_length;
mod links;
mod lints;
mod publishing;
mod purity;
mod source;
mod tree;
mod type_names;
mod unfinished;
mod unsafe_code;

use std::fmt;
use std::io::{Write, stderr};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use tree::Tree;

type Rule = fn(&Tree) -> Vec<Finding>;

/// All rules with the names that their findings show.
const RULES: [(&str, Rule); 17] = [
    ("book", book::check),
    ("changelog", changelog::check),
    ("comments", comments::check),
    ("conformance", conformance::check),
    ("default-members", default_members::check),
    ("dependencies", dependencies::check),
    ("edges", edges::check),
    ("error-sources", error_sources::check),
    ("exhaustive", exhaustive::check),
    ("file-length", file_length::check),
    ("links", links::check),
    ("lints", lints::check),
    ("publishing", publishing::check),
    ("purity", purity::check),
    ("type-names", type_names::check),
    ("unfinished", unfinished::check),
    ("unsafe-code", unsafe_code::check),
];

/// Checks all rules and prints the violations.
pub(crate) fn run() -> Result<()> {
    let violations = violations(&Tree::of_this_repository()?);
    for violation in &violations {
        writeln!(stderr(), "{violation}")?;
    }
    if violations.is_empty() { Ok(()) } else { Err(Error::Violations(violations.len())) }
}

fn violations(tree: &Tree) -> Vec<Violation> {
    let mut violations: Vec<_> = RULES
        .iter()
        .flat_map(|(rule, check)| check(tree).into_iter().map(|finding| Violation { rule, finding }))
        .collect();
    violations.sort_by(|a, b| (&a.finding.path, a.finding.line).cmp(&(&b.finding.path, b.finding.line)));
    violations
}

/// A violation of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Finding {
    /// Relative to the root of the repository.
    path: PathBuf,
    /// The line number, from 1.
    line: usize,
    message: String,
}

impl Finding {
    fn new(path: impl AsRef<Path>, line: usize, message: impl Into<String>) -> Self {
        Self { path: path.as_ref().to_owned(), line, message: message.into() }
    }
}

#[derive(Debug)]
struct Violation {
    rule: &'static str,
    finding: Finding,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Finding { path, line, message } = &self.finding;
        write!(f, "{}:{line}: [{}] {message}", path.display(), self.rule)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_repository_is_tidy() {
        let tree = Tree::of_this_repository().expect("a readable repository");
        let violations: Vec<_> = violations(&tree).iter().map(ToString::to_string).collect();
        assert!(violations.is_empty(), "\n{}\n", violations.join("\n"));
    }

    #[test]
    fn a_violation_names_its_place_and_rule() {
        let violation = Violation { rule: "edges", finding: Finding::new("a/b.rs", 7, "no") };
        assert_eq!(violation.to_string(), "a/b.rs:7: [edges] no");
    }
}
