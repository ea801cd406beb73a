//! Optimizers that update every element by itself, so that a rank can update any part of a tensor.

use std::fmt::Debug;
use std::ops::{Add, Div, Mul, Sub};

use comm_core::Element;

/// A type in which optimizers compute: `f32` or `f64`.
pub trait Scalar:
    Element + Into<f64> + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self>
{
    /// Returns the nearest number of this type.
    fn from_f64(number: f64) -> Self;

    /// Returns the square root.
    #[must_use]
    fn sqrt(self) -> Self;
}

impl Scalar for f32 {
    fn from_f64(number: f64) -> Self {
        number as Self
    }

    fn sqrt(self) -> Self {
        Self::sqrt(self)
    }
}

impl Scalar for f64 {
    fn from_f64(number: f64) -> Self {
        number
    }

    fn sqrt(self) -> Self {
        Self::sqrt(self)
    }
}

/// An optimizer whose update of an element depends on that element alone: on its value, its
/// gradient and its state.
///
/// `Debug` must print all settings, and the same text for equal settings, because ranks compare
/// settings by that text.
///
/// The result has the same bits wherever the element is in the slices, so a sharded optimizer
/// equals an unsharded one.
pub trait Optimizer<T: Scalar>: Debug + Send {
    /// The names of the numbers that the optimizer keeps per element, zero at first.
    fn state_names(&self) -> &'static [&'static str];

    /// Updates parameters. All slices have the same length, and `states` has one slice per name.
    /// `step` counts from 1.
    fn update(&self, step: u64, parameters: &mut [T], gradients: &[T], states: &mut [&mut [T]]);
}

/// Stochastic gradient descent with momentum, like PyTorch's `SGD`.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Sgd {
    /// The learning rate.
    pub learning_rate: f64,
    /// The factor of the momentum; 0 for none.
    pub momentum: f64,
    /// The part of the gradient that does not enter the momentum, except in the first step.
    pub dampening: f64,
    /// The factor of the parameter that is added to its gradient.
    pub weight_decay: f64,
    /// Whether to use Nesterov's momentum.
    pub nesterov: bool,
}

impl Sgd {
    /// Creates the optimizer without momentum or weight decay.
    #[must_use]
    pub const fn new(learning_rate: f64) -> Self {
        Self { learning_rate, momentum: 0.0, dampening: 0.0, weight_decay: 0.0, nesterov: false }
    }

    comm_core::setters!(
        learning_rate: f64,
        momentum: f64,
        dampening: f64,
        weight_decay: f64,
        nesterov: bool
    );
}

impl<T: Scalar> Optimizer<T> for Sgd {
    fn state_names(&self) -> &'static [&'static str] {
        if self.momentum == 0.0 { &[] } else { &["momentum"] }
    }

    fn update(&self, step: u64, parameters: &mut [T], gradients: &[T], states: &mut [&mut [T]]) {
        let [rate, momentum, decay] = [self.learning_rate, self.momentum, self.weight_decay].map(T::from_f64);
        let fresh = T::from_f64(if step == 1 { 1.0 } else { 1.0 - self.dampening });
        let parameters = parameters.iter_mut().zip(gradients);
        let Some(buffer) = states.first_mut() else {
            parameters.for_each(|(p, g)| *p = *p - rate * (*g + decay * *p));
            return;
        };
        for ((p, g), buffer) in parameters.zip(buffer.iter_mut()) {
            let g = *g + decay * *p;
            *buffer = momentum * *buffer + fresh * g;
            *p = *p - rate * if self.nesterov { g + momentum * *buffer } else { *buffer };
        }
    }
}

/// AdamW (Loshchilov and Hutter, Decoupled Weight Decay Regularization, ICLR 2019), like PyTorch's
/// `AdamW`.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct AdamW {
    /// The learning rate.
    pub learning_rate: f64,
    /// The decay of the average of gradients.
    pub beta1: f64,
    /// The decay of the average of their squares.
    pub beta2: f64,
    /// The number added to the root of the average of squares.
    pub epsilon: f64,
    /// The decay of parameters per unit of the learning rate.
    pub weight_decay: f64,
}

impl AdamW {
    /// Creates the optimizer with PyTorch's defaults.
    #[must_use]
    pub const fn new(learning_rate: f64) -> Self {
        Self { learning_rate, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.01 }
    }

    comm_core::setters!(learning_rate: f64, beta1: f64, beta2: f64, epsilon: f64, weight_decay: f64);
}

impl<T: Scalar> Optimizer<T> for AdamW {
    fn state_names(&self) -> &'static [&'static str] {
        &["mean", "square"]
    }

    fn update(&self, step: u64, parameters: &mut [T], gradients: &[T], states: &mut [&mut [T]]) {
        let [mean, square] = states else { return };
        let power = i32::try_from(step).unwrap_or(i32::MAX);
        let rate = T::from_f64(self.learning_rate / (1.0 - self.beta1.powi(power)));
        let root = T::from_f64((1.0 - self.beta2.powi(power)).sqrt());
        let kept = T::from_f64(1.0 - self.learning_rate * self.weight_decay);
        let [beta1, beta2, epsilon] = [self.beta1, self.beta2, self.epsilon].map(T::from_f64);
        let [fresh1, fresh2] = [1.0 - self.beta1, 1.0 - self.beta2].map(T::from_f64);
        let states = mean.iter_mut().zip(square.iter_mut());
        for ((p, g), (mean, square)) in parameters.iter_mut().zip(gradients).zip(states) {
            *mean = beta1 * *mean + fresh1 * *g;
            *square = beta2 * *square + fresh2 * *g * *g;
            *p = *p * kept - rate * *mean / (square.sqrt() / root + epsilon);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(seed: u64, len: usize) -> Vec<f32> {
        let number = |at| (comm_core::wire::digest([seed, at]) >> 40) as f32 / (1 << 23) as f32 - 1.0;
        (0..len as u64).map(number).collect()
    }

    /// Runs five steps on slices cut into parts of this length.
    fn run(optimizer: &impl Optimizer<f32>, part: usize) -> Vec<u32> {
        let mut parameters = noise(0, 203);
        let mut states = vec![vec![0.0; 203]; optimizer.state_names().len()];
        for step in 1..=5 {
            let gradients = noise(step, 203);
            let mut states: Vec<_> = states.iter_mut().map(|state| state.chunks_mut(part)).collect();
            for (p, g) in parameters.chunks_mut(part).zip(gradients.chunks(part)) {
                let mut own: Vec<&mut [f32]> = states.iter_mut().filter_map(Iterator::next).collect();
                optimizer.update(step, p, g, &mut own);
            }
        }
        parameters.into_iter().map(f32::to_bits).collect()
    }

    #[test]
    fn updates_do_not_depend_on_the_position_of_an_element() {
        let momentum = Sgd::new(0.1).momentum(0.9).dampening(0.1).weight_decay(0.01);
        let optimizers: [&dyn Fn(usize) -> Vec<u32>; 4] = [
            &|part| run(&Sgd::new(0.1), part),
            &|part| run(&momentum, part),
            &|part| run(&momentum.nesterov(true), part),
            &|part| run(&AdamW::new(1e-3), part),
        ];
        for optimizer in optimizers {
            let whole = optimizer(203);
            assert!([1, 2, 3, 7, 8, 16, 100].iter().all(|part| optimizer(*part) == whole));
        }
    }

    /// The values that PyTorch 2.15 computes in `f64` for p = 1, -2 and gradients 0.5, 4 then -1,
    /// 3.
    #[test]
    fn updates_match_pytorch() {
        fn after<O: Optimizer<f64>>(optimizer: O) -> [f64; 2] {
            let mut parameters = [1.0, -2.0];
            let mut states = vec![[0.0; 2]; optimizer.state_names().len()];
            for (step, gradients) in [(1, [0.5, 4.0]), (2, [-1.0, 3.0])] {
                let mut states: Vec<&mut [f64]> = states.iter_mut().map(|state| &mut state[..]).collect();
                optimizer.update(step, &mut parameters, &gradients, &mut states);
            }
            parameters
        }
        let near = |got: [f64; 2], expected: [f64; 2]| {
            assert!(
                got.iter().zip(expected).all(|(got, expected)| (got - expected).abs() < 1e-12),
                "{got:?}"
            );
        };
        near(after(Sgd::new(0.1)), TORCH[0]);
        let momentum = Sgd::new(0.1).momentum(0.9).dampening(0.2).weight_decay(0.05);
        near(after(momentum), TORCH[1]);
        near(after(momentum.dampening(0.0).nesterov(true)), TORCH[2]);
        near(after(AdamW::new(0.1).weight_decay(0.3)), TORCH[3]);
    }

    const TORCH: [[f64; 2]; 4] = [
        [1.05, -2.7],
        [0.97172, -2.97144],
        [1.03244275, -3.6008605],
        [0.880_510_354_180_565_3, -2.077_057_507_625_409],
    ];
}
