//! What a step found.

/// Which gradients a step did not find. Names are sorted.
///
/// Both lists are empty in the usual case. A variable without gradient on any rank is one that the
/// loss does not depend on, or one that lies behind an operation without backward, which candle
/// does not tell; running means of a batch norm are among the former. It is worth a look after the
/// first step.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    pub(crate) nowhere: Vec<String>,
    pub(crate) elsewhere: Vec<String>,
}

impl Report {
    /// The variables for which no rank had a gradient, and for which none has one now. The same on
    /// every rank. Variables of integers, which never have one, are left out.
    #[must_use]
    pub fn without_gradient(&self) -> &[String] {
        &self.nowhere
    }

    /// The variables for which other ranks had a gradient and this one had none: it counted as
    /// zero, and there is one now.
    #[must_use]
    pub fn counted_as_zero(&self) -> &[String] {
        &self.elsewhere
    }
}
