//! Gradients that candle lost, found in the first step.

use crate::variables::Variable;
use crate::{Error, Result};

/// The response to floating point variables for which no rank has a gradient in the first step.
///
/// candle gives no gradient, and no error, to variables before an operation without backward:
/// `layer_norm`, `rms_norm`, `softmax_last_dim`, `rope`, `rope_i`, `rope_thd` and `sdpa` of
/// candle-nn, and the layers `RmsNorm` and `LayerNorm` with a bias on contiguous input. Such
/// variables are never trained. But frozen variables and running means have no gradient either.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum LostGradients {
    /// Ignores them. [`Report::without_gradient`](crate::Report::without_gradient) lists the
    /// variables.
    Allow,
    /// Logs a warning with the names.
    #[default]
    Warn,
    /// Fails the step on every rank with [`Error::LostGradients`], before any variable or gradient
    /// has changed.
    Refuse,
}

impl LostGradients {
    pub(crate) const ALL: [Self; 3] = [Self::Allow, Self::Warn, Self::Refuse];

    /// Responds to variables for which no rank has a gradient, which are the same on every rank,
    /// and then allows them in later steps.
    pub(crate) fn check(&mut self, names: &[String], trained: usize) -> Result<()> {
        if !names.is_empty() {
            let error = Error::LostGradients { names: names.to_vec(), trained };
            match self {
                Self::Allow => {}
                Self::Warn => tracing::warn!("{error}"),
                Self::Refuse => return Err(error),
            }
        }
        *self = Self::Allow;
        Ok(())
    }
}

/// Returns the number of variables that have gradients in most models: those of floating point
/// numbers.
pub(crate) fn trained(variables: &[Variable]) -> usize {
    variables.iter().filter(|variable| variable.dtype.is_float()).count()
}

/// The number of names in the text of an error.
const LISTED: usize = 10;

/// Lists the first names, and counts the others.
pub(crate) fn list(names: &[String]) -> String {
    let listed: Vec<String> = names.iter().take(LISTED).map(|name| format!("{name:?}")).collect();
    let more = names.len().saturating_sub(LISTED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", listed.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_lists_ten_names_and_counts_the_others() {
        let names: Vec<String> = (0..12).map(|at| format!("w{at}")).collect();
        assert_eq!(list(&names[..2]), "\"w0\", \"w1\"");
        assert!(list(&names).ends_with("\"w9\" and 2 more"));
    }
}
