//! Where the library is looked for.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::PathBuf;

/// Where NCCL is looked for.
///
/// A path that somebody names is the only one that is tried, as another copy of NCCL than the one
/// that was asked for is worse than none: first the one given to [`Search::at`], then the one in
/// the variable `COMM_NCCL_PATH`. Only if nobody named one, the system's loader is asked for
/// `libnccl.so.2` and then for `libnccl.so`. It answers with a copy that the process has loaded
/// already, if there is one of this name; then come the places that it knows: `LD_LIBRARY_PATH`,
/// the cache of `ldconfig` and the system's folders.
///
/// A path without a slash is a name that the system's loader is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Search {
    path: Option<PathBuf>,
    variable: Option<OsString>,
}

impl Search {
    /// The variable that names a library.
    pub const VARIABLE: &str = "COMM_NCCL_PATH";

    /// What the system's loader is asked for when nobody names a path.
    pub const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

    /// Looks where the system's loader looks, and nowhere else: the environment is not read.
    pub fn new() -> Self {
        Self::default()
    }

    /// Looks where the environment says. Nothing else in this crate reads it.
    pub fn from_env() -> Self {
        Self::new().with_variable(env::var_os(Self::VARIABLE))
    }

    /// Looks only at `path`.
    #[must_use]
    pub fn at(self, path: impl Into<PathBuf>) -> Self {
        Self { path: Some(path.into()), ..self }
    }

    /// Takes `value` for that of the variable `COMM_NCCL_PATH`. An empty one is none.
    #[must_use]
    pub fn with_variable(self, value: Option<OsString>) -> Self {
        Self { variable: value.filter(|value| !value.is_empty()), ..self }
    }

    /// What to try, in order.
    pub(crate) fn candidates(&self) -> Vec<(Origin, PathBuf)> {
        match (&self.path, &self.variable) {
            (Some(path), _) => vec![(Origin::Given, path.clone())],
            (None, Some(value)) => vec![(Origin::Variable, value.into())],
            (None, None) => Self::NAMES.map(|name| (Origin::System, OsStr::new(name).into())).into(),
        }
    }
}

/// Who says that the library may be somewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// The caller.
    Given,
    /// The variable `COMM_NCCL_PATH`.
    Variable,
    /// The system's loader, which finds libraries by name.
    System,
}

/// What stands behind a path in a message.
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
    fn the_system_is_asked_when_nobody_names_a_path() {
        let names = [(Origin::System, "libnccl.so.2"), (Origin::System, "libnccl.so")];
        assert_candidates(&Search::new(), &names);
        assert_candidates(&Search::new().with_variable(Some("".into())), &names);
    }
}
