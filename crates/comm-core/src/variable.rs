//! What can be wrong with a variable of the environment before its value is looked at.

/// Why a variable of the environment cannot be used. What is wrong with a value is an
/// [`Invalid::Setting`](crate::Invalid::Setting) instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VariableFault {
    /// It is needed, and not set.
    #[error("is not set")]
    NotSet,
    /// It is set to nothing, which is neither a value nor the same as not set.
    #[error("is set, but empty")]
    Empty,
    /// Its bytes are not valid UTF-8.
    #[error("is not text: its bytes are not valid UTF-8")]
    NotText,
    /// The library reads no variable of this name, and one whose name is nearly the same.
    #[error("is not a variable of comm; did you mean {nearest}?")]
    Misspelt {
        /// The name of the variable that is nearly the same.
        nearest: String,
    },
}
