//! The bars of the overhead of training.

use super::model::{TrainingCase, TrainingModel};
use super::overhead::Overheads;
use crate::compare::ratio::Ratio;

/// A limit of the ratio of our overhead to a peer's.
#[derive(Debug)]
pub(super) struct OverheadBar {
    pub(super) ours: &'static str,
    /// The variants of the peer; the fastest one of a round counts.
    pub(super) peers: &'static [&'static str],
    /// The models with computation and with a fixed time.
    pub(super) models: [TrainingModel; 2],
    pub(super) limit: f64,
}

const PYTORCH: &[&str] = &["pytorch", "pytorch-view"];
const PYTORCH_BF16: &[&str] = &["pytorch-bf16", "pytorch-bf16-view"];
const LARGE: [TrainingModel; 2] = [TrainingModel::LargePerceptron, TrainingModel::LargeFixed];
const SMALL: [TrainingModel; 2] = [TrainingModel::SmallPerceptron, TrainingModel::SmallFixed];

pub(super) const OVERHEAD_BARS: [OverheadBar; 5] = [
    OverheadBar { ours: "comm-shm", peers: PYTORCH, models: LARGE, limit: 0.15 },
    OverheadBar { ours: "comm-tcp", peers: PYTORCH, models: LARGE, limit: 0.4 },
    OverheadBar { ours: "comm-shm", peers: PYTORCH, models: SMALL, limit: 0.1 },
    OverheadBar { ours: "comm-tcp", peers: PYTORCH, models: SMALL, limit: 0.15 },
    OverheadBar { ours: "comm-shm-bf16", peers: PYTORCH_BF16, models: LARGE, limit: 0.15 },
];

impl OverheadBar {
    /// Returns the ratios to which the bar applies, or `None` if they were not measured.
    pub(super) fn ratio(&self, overheads: &Overheads, ranks: usize, model: TrainingModel) -> Option<Ratio> {
        overheads.ratio(TrainingCase { ranks, model }, self.ours, self.peers)
    }
}
