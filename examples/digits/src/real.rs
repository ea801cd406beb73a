//! The number types of models.

use std::iter::Sum;

use comm::ddp::Scalar;
use num_traits::{Float, NumAssign};

use crate::matmul::Multiply;

/// `f32` or `f64`, with the operations that the model, the optimizers and collectives need.
pub trait Real: Float + NumAssign + Sum + Multiply + Scalar + Default {
    /// Converts the number exactly.
    fn widen(self) -> f64;
}

impl Real for f32 {
    fn widen(self) -> f64 {
        f64::from(self)
    }
}

impl Real for f64 {
    fn widen(self) -> f64 {
        self
    }
}
