//! The search for the library.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::PathBuf;

/// The paths on which NCCL is searched.
///
/// If a path is given, only this one is tried, because another copy of NCCL than the requested one
/// is worse than none: the path of [`Search::at`], or else that in the variable `COMM_NCCL_PATH`.
/// Otherwise the system's loader searches `libnccl.so.2` and then `libnccl.so`: first a copy that
/// the process has already loaded, then `LD_LIBRARY_PATH`, the cache of `ldconfig` and the system's
/// folders.
///
/// A path without a slash is a name for the system's loader.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Search {
    path: Option<PathBuf>,
    variable: Option<OsString>,
}

impl Search {
    /// The variable that contains a path.
    pub const VARIABLE: &str = "COMM_NCCL_PATH";

    /// The names that the system's loader searches.
    pub const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

    /// Searches with the system's loader only, without the environment.
    pub fn new() -> Self {
        Self::default()
    }

    /// Searches as the environment says. No other function of this crate reads it.
    pub fn from_env() -> Self {
        Self::new().with_variable(env::var_os(Self::VARIABLE))
    }

    /// Searches only at `path`.
    #[must_use]
    pub fn at(self, path: impl Into<PathBuf>) -> Self {
        Self { path: Some(path.into()), ..self }
    }

    /// Uses `value` as the value of `COMM_NCCL_PATH`. An empty one is ignored.
    #[must_use]
    pub fn with_variable(self, value: Option<OsString>) -> Self {
        Self { variable: value.filter(|value| !value.is_empty()), ..self }
    }

    /// Returns the paths to try, in order.
    pub(crate) fn candidates(&self) -> Vec<(Origin, PathBuf)> {
        match (&self.path, &self.variable) {
            (Some(path), _) => vec![(Origin::Given, path.clone())],
            (None, Some(value)) => vec![(Origin::Variable, value.into())],
            (None, None) => Self::NAMES.map(|name| (Origin::System, OsStr::new(name).into())).into(),
        }
    }
}

/// The source of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// The caller of [`Search::at`].
    Given,
    /// The variable `COMM_NCCL_PATH`.
    Variable,
    /// The system's loader, which finds libraries by name.
    System,
}

/// Formats the source after a path in a message.
impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Given => f.write_str("the path given"),
            Self::Variable => f.write_str(Search::VARIABLE),
            Self::System => f.write_str("the system's loader"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[track_caller]
    fn assert_candidates(search: &Search, expected: &[(Origin, &str)]) {
        let expected: Vec<_> =
            expected.iter().map(|(origin, path)| (*origin, Path::new(path).into())).collect();
        assert_eq!(search.candidates(), expected);
    }

    #[test]
    fn what_is_named_is_tried_alone_and_the_path_given_comes_first() {
        let variable = Search::new().with_variable(Some("/b".into()));
        assert_candidates(&variable, &[(Origin::Variable, "/b")]);
        assert_candidates(&variable.clone().at("/a"), &[(Origin::Given, "/a")]);
        assert_candidates(&Search::new().at("/a").with_variable(Some("/b".into())), &[(Origin::Given, "/a")]);
    }

    #[test]
    fn the_loader_searches_if_no_path_is_given() {
        let names = [(Origin::System, "libnccl.so.2"), (Origin::System, "libnccl.so")];
        assert_candidates(&Search::new(), &names);
        assert_candidates(&Search::new().with_variable(Some("".into())), &names);
    }
}
