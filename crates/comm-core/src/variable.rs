//! Errors in environment variables other than invalid values.

/// The reason why an environment variable cannot be used. An invalid value is an
/// [`Invalid::Setting`](crate::Invalid::Setting) instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VariableFault {
    /// It is required, but not set.
    #[error("is not set")]
    NotSet,
    /// It is set to the empty string, which is neither a valid value nor treated as not set.
    #[error("is set, but empty")]
    Empty,
    /// Its bytes are not valid UTF-8.
    #[error("is not text: its bytes are not valid UTF-8")]
    NotText,
    /// The library does not read a variable of this name, but reads one with a similar name.
    #[error("is not a variable of comm; did you mean {nearest}?")]
    Misspelt {
        /// The similar name.
        nearest: String,
    },
}
