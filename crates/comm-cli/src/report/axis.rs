//! The axes of plots: logarithmic or linear.

use std::ops::Range;

use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::{IntoLogRange, LogCoord};

use super::units;

/// An axis.
#[derive(Debug, Clone, Copy)]
pub struct Axis {
    /// The name of the axis.
    pub name: &'static str,
    /// Formats a value.
    pub label: fn(&f64) -> String,
    /// The scale.
    pub scale: Scale,
}

/// The scale of an axis.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scale {
    /// Equal distances are equal ratios. Labels are at powers of the base.
    Log(f64),
    /// Equal distances are equal differences.
    Linear,
}

impl Axis {
    /// An axis of sizes in bytes.
    pub const SIZE: Self =
        Self { name: "size", label: |bytes| units::about(*bytes), scale: Scale::Log(16.0) };

    /// Creates an axis of times in microseconds.
    pub const fn time(name: &'static str) -> Self {
        Self { name, label: |micros| units::time(*micros * 1e-6), scale: Scale::Log(10.0) }
    }

    /// Creates a linear axis.
    pub const fn linear(name: &'static str, label: fn(&f64) -> String) -> Self {
        Self { name, label, scale: Scale::Linear }
    }
}

impl Scale {
    /// Returns whether a number can be shown on the axis.
    pub(super) fn has(self, number: f64) -> bool {
        number.is_finite() && (self == Self::Linear || number > 0.0)
    }

    /// Returns the coordinates of an axis for these numbers, with a margin.
    pub(super) fn coordinates(self, numbers: impl Iterator<Item = f64> + Clone) -> Coordinates {
        let lowest = numbers.clone().fold(f64::INFINITY, f64::min);
        let highest = numbers.fold(f64::NEG_INFINITY, f64::max);
        let has_none = lowest > highest;
        match self {
            Self::Log(base) => {
                let limits = if has_none { 0.5..2.0 } else { lowest / 1.5..highest * 1.5 };
                Coordinates::Log(limits.log_scale().base(base).into())
            }
            Self::Linear => {
                let margin = if lowest < highest { (highest - lowest) / 25.0 } else { 0.5 };
                let limits = if has_none { 0.0..1.0 } else { lowest - margin..highest + margin };
                Coordinates::Linear(limits.into())
            }
        }
    }
}

/// The coordinates of an axis with either scale, so that each axis of a chart can have its own.
pub(super) enum Coordinates {
    Log(LogCoord<f64>),
    Linear(RangedCoordf64),
}

impl Ranged for Coordinates {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        match self {
            Self::Log(axis) => axis.map(value, limit),
            Self::Linear(axis) => axis.map(value, limit),
        }
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        match self {
            Self::Log(axis) => distinct(axis.key_points(hint)),
            Self::Linear(axis) => axis.key_points(hint),
        }
    }

    fn range(&self) -> Range<f64> {
        match self {
            Self::Log(axis) => axis.range(),
            Self::Linear(axis) => axis.range(),
        }
    }
}

/// Removes repeated points: a logarithmic axis ends one decade and begins the next with the same
/// one.
fn distinct(mut points: Vec<f64>) -> Vec<f64> {
    points.sort_by(f64::total_cmp);
    points.dedup_by(|next, last| (*next / *last - 1.0).abs() < 1e-6);
    points
}

#[cfg(test)]
mod tests {
    use plotters::coord::ranged1d::BoldPoints;

    use super::*;

    #[test]
    fn no_point_of_a_logarithmic_axis_is_labelled_twice() {
        let axis = Scale::Log(10.0).coordinates([0.7e6, 25e6].into_iter());
        let points = axis.key_points(BoldPoints(20));
        assert!(points.len() > 4 && points.contains(&1e7), "{points:?}");
        assert!(points.windows(2).all(|pair| pair[1] > pair[0] * 1.01), "{points:?}");
    }
}
