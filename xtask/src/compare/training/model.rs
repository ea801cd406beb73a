//! The trained models.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A model that all programs train.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum TrainingModel {
    /// A perceptron of 784, 512, 512 and 10 units, with 64 samples per rank.
    #[serde(rename = "mlp-0.7m")]
    SmallPerceptron,
    /// A perceptron of 1024, 4096, 4096 and 1024 units, with 32 samples per rank.
    #[serde(rename = "mlp-25m")]
    LargePerceptron,
    /// The parameters of the small perceptron, whose layers take a fixed processor time.
    #[serde(rename = "fixed-0.7m")]
    SmallFixed,
    /// The parameters of the large perceptron, whose layers take a fixed processor time.
    #[serde(rename = "fixed-25m")]
    LargeFixed,
}

/// A model with a number of ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct TrainingCase {
    pub(crate) ranks: usize,
    pub(crate) model: TrainingModel,
}

impl TrainingModel {
    pub(crate) const ALL: [Self; 4] =
        [Self::SmallPerceptron, Self::LargePerceptron, Self::SmallFixed, Self::LargeFixed];

    /// Returns the name in records and on command lines.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::SmallPerceptron => "mlp-0.7m",
            Self::LargePerceptron => "mlp-25m",
            Self::SmallFixed => "fixed-0.7m",
            Self::LargeFixed => "fixed-25m",
        }
    }

    pub(crate) const fn parameters(self) -> usize {
        match self {
            Self::SmallPerceptron | Self::SmallFixed => 669_706,
            Self::LargePerceptron | Self::LargeFixed => 25_175_040,
        }
    }

    /// Returns whether layers take a fixed time instead of computing.
    pub(crate) const fn is_fixed(self) -> bool {
        matches!(self, Self::SmallFixed | Self::LargeFixed)
    }

    /// Returns the title in the report.
    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::SmallPerceptron => "perceptron of 0.7 M parameters",
            Self::LargePerceptron => "perceptron of 25 M parameters",
            Self::SmallFixed => "fixed computation, 0.7 M parameters",
            Self::LargeFixed => "fixed computation, 25 M parameters",
        }
    }
}

impl fmt::Display for TrainingModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
