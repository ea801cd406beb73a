//! The report of a step.

/// The gradients that were missing in a step. Names are sorted.
///
/// Both lists are usually empty. Parameters that require no gradients on any rank, such as frozen
/// ones and running statistics, are in neither.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    pub(crate) without_gradient: Vec<String>,
    pub(crate) counted_as_zero: Vec<String>,
}

impl Report {
    /// Returns the parameters for which no rank had a gradient, and which have none now. The list
    /// is the same on every rank.
    #[must_use]
    pub fn without_gradient(&self) -> &[String] {
        &self.without_gradient
    }

    /// Returns the parameters for which other ranks had a gradient but this one had none. It
    /// counted as zero, and this rank now has the average.
    #[must_use]
    pub fn counted_as_zero(&self) -> &[String] {
        &self.counted_as_zero
    }
}
