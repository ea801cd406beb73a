//! Faults of an environment variable other than a bad value.

/// The reason why an environment variable cannot be used. A bad value is an
/// [`Invalid::Setting`](crate::Invalid::Setting) instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VariableFault {
    /// It is required, and not set.
    #[error("is not set")]
    NotSet,
    /// It is set to the empty string, which is neither a value nor the same as not set.
    #[error("is set, but empty")]
    Empty,
    /// Its bytes are not valid UTF-8.
    #[error("is not text: its bytes are not valid UTF-8")]
    NotText,
    /// The library reads no variable of this name, but one with a similar name.
    #[error("is not a variable of comm; did you mean {nearest}?")]
    Misspelt {
        /// The similar name.
        nearest: String,
    },
}
