//! The difference between ranks that cannot train together.

/// A setting or a count that differs between ranks that train locally. Every rank gets the same
/// value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("ranks cannot train together: {what} is {found} on {}, but {expected} on rank {reference}", crate::error::list(.ranks))]
#[non_exhaustive]
pub struct Disagreement {
    /// The name of the setting, like the field of [`LocalOptions`](crate::LocalOptions), or a
    /// description.
    pub what: &'static str,
    /// The value that most ranks have.
    pub expected: String,
    /// The value that the ranks at fault have.
    pub found: String,
    /// The ranks that differ from the majority.
    pub ranks: Vec<usize>,
    /// The lowest rank of the majority.
    pub reference: usize,
}
