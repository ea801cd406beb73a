//! The optimizers SGD and AdamW, with PyTorch's formulas and settings.

use num_traits::Float;

use crate::real::Real;

/// An update rule with its settings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rule {
    /// Stochastic gradient descent with momentum.
    Sgd {
        /// The factor of the previous direction.
        momentum: f64,
    },
    /// Adam with decoupled weight decay (Loshchilov and Hutter, 2019).
    AdamW {
        /// The decay of the running means of the gradient and its square.
        betas: (f64, f64),
        /// Added to the denominator.
        epsilon: f64,
        /// The share of a weight that a step with learning rate 1 subtracts.
        weight_decay: f64,
    },
}

impl Rule {
    /// SGD with momentum 0.9.
    pub const SGD: Self = Self::Sgd { momentum: 0.9 };

    /// AdamW with PyTorch's defaults.
    pub const ADAM_W: Self = Self::AdamW { betas: (0.9, 0.999), epsilon: 1e-8, weight_decay: 0.01 };
}

/// An update rule with its state for every parameter.
#[derive(Debug, Clone)]
pub struct Optimizer<T> {
    rule: Rule,
    learning_rate: f64,
    steps: i32,
    memory: Vec<Memory<T>>,
}

/// The running means of one parameter. SGD uses the first as its momentum buffer.
#[derive(Debug, Clone)]
struct Memory<T> {
    first: Vec<T>,
    second: Vec<T>,
}

impl<T: Real> Optimizer<T> {
    /// Creates an optimizer for parameters of these lengths, in this order.
    pub fn new(rule: Rule, learning_rate: f64, lengths: impl IntoIterator<Item = usize>) -> Self {
        let second = |len| if matches!(rule, Rule::AdamW { .. }) { vec![T::zero(); len] } else { Vec::new() };
        let memory = |len| Memory { first: vec![T::zero(); len], second: second(len) };
        Self { rule, learning_rate, steps: 0, memory: lengths.into_iter().map(memory).collect() }
    }

    /// Returns the number of updates so far.
    pub const fn steps(&self) -> i32 {
        self.steps
    }

    /// Sets the number of updates so far.
    pub const fn set_steps(&mut self, steps: i32) {
        self.steps = steps;
    }

    /// Returns the running means, equally many on all ranks.
    pub fn memory_mut(&mut self) -> impl Iterator<Item = &mut [T]> {
        self.memory.iter_mut().flat_map(|memory| [&mut memory.first[..], &mut memory.second[..]])
    }

    /// Updates every parameter once. Pass the parameters in the order of construction, each with
    /// its gradient.
    pub fn step<'a>(&mut self, parameters: impl IntoIterator<Item = (&'a mut [T], &'a [T])>) {
        self.steps = self.steps.saturating_add(1);
        for (memory, (weights, gradient)) in self.memory.iter_mut().zip(parameters) {
            match self.rule {
                Rule::Sgd { momentum } => {
                    memory.sgd(weights, gradient, self.learning_rate, momentum);
                }
                Rule::AdamW { betas, epsilon, weight_decay } => {
                    let adam = AdamWStep::new(self.learning_rate, betas, epsilon, weight_decay, self.steps);
                    memory.adam_w(weights, gradient, &adam);
                }
            }
        }
    }
}

/// The factors that all weights of one AdamW step share.
struct AdamWStep<T> {
    beta1: T,
    beta2: T,
    epsilon: T,
    keep: T,
    step_size: T,
    second_correction_sqrt: T,
}

impl<T: Real> AdamWStep<T> {
    fn new(rate: f64, (beta1, beta2): (f64, f64), epsilon: f64, weight_decay: f64, steps: i32) -> Self {
        Self {
            beta1: T::from_f64(beta1),
            beta2: T::from_f64(beta2),
            epsilon: T::from_f64(epsilon),
            keep: T::from_f64(1.0 - rate * weight_decay),
            step_size: T::from_f64(rate / (1.0 - beta1.powi(steps))),
            second_correction_sqrt: T::from_f64((1.0 - beta2.powi(steps)).sqrt()),
        }
    }
}

impl<T: Real> Memory<T> {
    fn sgd(&mut self, weights: &mut [T], gradient: &[T], learning_rate: f64, momentum: f64) {
        let (learning_rate, momentum) = (T::from_f64(learning_rate), T::from_f64(momentum));
        for ((weight, velocity), &slope) in weights.iter_mut().zip(&mut self.first).zip(gradient) {
            *velocity = momentum * *velocity + slope;
            *weight -= learning_rate * *velocity;
        }
    }

    fn adam_w(&mut self, weights: &mut [T], gradient: &[T], step: &AdamWStep<T>) {
        let memory = self.first.iter_mut().zip(&mut self.second);
        for ((weight, (first, second)), &slope) in weights.iter_mut().zip(memory).zip(gradient) {
            *first = step.beta1 * *first + (T::one() - step.beta1) * slope;
            *second = step.beta2 * *second + (T::one() - step.beta2) * slope * slope;
            let scale = Float::sqrt(*second) / step.second_correction_sqrt + step.epsilon;
            *weight = *weight * step.keep - step.step_size * *first / scale;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(rule: Rule, gradients: &[f64]) -> f64 {
        let mut weight = [1.0];
        let mut optimizer = Optimizer::new(rule, 0.1, [1]);
        for gradient in gradients {
            optimizer.step([(weight.as_mut_slice(), [*gradient].as_slice())]);
        }
        weight[0]
    }

    #[test]
    fn momentum_adds_up() {
        // v = 1, then 0.9 + 2 = 2.9.
        let expected = 1.0 - 0.1 * 1.0 - 0.1 * 2.9;
        assert!((run(Rule::SGD, &[1.0, 2.0]) - expected).abs() < 1e-15);
    }

    #[test]
    fn the_first_adam_step_has_the_length_of_the_learning_rate() {
        let expected = 1.0 * (1.0 - 0.1 * 0.01) - 0.1;
        for gradient in [1e-3, 5.0, 1e3] {
            assert!((run(Rule::ADAM_W, &[gradient]) - expected).abs() < 1e-5);
        }
    }

    #[test]
    fn the_second_adam_step_follows_the_paper() {
        let (first, second): (f64, f64) = (0.9 * 0.1 * 1.0 + 0.1 * -2.0, 0.999 * 0.001 + 0.001 * 4.0);
        let direction = (first / (1.0 - 0.81)) / ((second / (1.0 - 0.999 * 0.999)).sqrt() + 1e-8);
        let after_first = 0.999 - 0.1 / (1.0 + 1e-8);
        let expected = after_first * 0.999 - 0.1 * direction;
        assert!((run(Rule::ADAM_W, &[1.0, -2.0]) - expected).abs() < 1e-12);
    }
}
