//! The number types of models.

use std::iter::Sum;

use comm::Element;
use num_traits::{Float, NumAssign};

use crate::matmul::Multiply;

/// `f32` or `f64`, with the operations of model, optimizers and collectives.
pub trait Real: Float + NumAssign + Sum + Multiply + Element + Default {
    /// Rounds to this type.
    fn from_f64(value: f64) -> Self;

    /// Converts exactly.
    fn widen(self) -> f64;
}

impl Real for f32 {
    fn from_f64(value: f64) -> Self {
        value as Self
    }

    fn widen(self) -> f64 {
        f64::from(self)
    }
}

impl Real for f64 {
    fn from_f64(value: f64) -> Self {
        value
    }

    fn widen(self) -> f64 {
        self
    }
}
