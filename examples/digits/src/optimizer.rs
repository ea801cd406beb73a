//! The optimizers SGD and AdamW, with PyTorch's formulas and settings.

use comm::ddp;
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

/// An update rule with its learning rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Update {
    rule: Rule,
    learning_rate: f64,
}

impl Update {
    /// Creates an update.
    #[must_use]
    pub const fn new(rule: Rule, learning_rate: f64) -> Self {
        Self { rule, learning_rate }
    }
}

/// The state is one or two running means. SGD uses the first as its momentum buffer.
impl<T: Real> ddp::Optimizer<T> for Update {
    fn state_names(&self) -> &'static [&'static str] {
        match self.rule {
            Rule::Sgd { .. } => &["first"],
            Rule::AdamW { .. } => &["first", "second"],
        }
    }

    fn update(&self, step: u64, weights: &mut [T], gradient: &[T], states: &mut [&mut [T]]) {
        match (self.rule, states) {
            (Rule::Sgd { momentum }, [velocity]) => {
                sgd((weights, velocity), gradient, self.learning_rate, momentum);
            }
            (Rule::AdamW { betas, epsilon, weight_decay }, [first, second]) => {
                let steps = i32::try_from(step).unwrap_or(i32::MAX);
                let adam = AdamWStep::new(self.learning_rate, betas, epsilon, weight_decay, steps);
                adam.apply(weights, gradient, first, second);
            }
            _ => {}
        }
    }
}

/// An update rule with its state for every parameter.
#[derive(Debug, Clone)]
pub struct Optimizer<T> {
    update: Update,
    steps: u64,
    /// The states of each parameter.
    states: Vec<Vec<Vec<T>>>,
}

impl<T: Real> Optimizer<T> {
    /// Creates an optimizer for parameters of these lengths, in this order.
    pub fn new(update: Update, lengths: impl IntoIterator<Item = usize>) -> Self {
        let states = ddp::Optimizer::<T>::state_names(&update).len();
        let zeros = |len| vec![vec![T::zero(); len]; states];
        Self { update, steps: 0, states: lengths.into_iter().map(zeros).collect() }
    }

    /// Returns the number of updates so far.
    pub const fn steps(&self) -> u64 {
        self.steps
    }

    /// Sets the number of updates so far.
    pub const fn set_steps(&mut self, steps: u64) {
        self.steps = steps;
    }

    /// Returns the states of all parameters, equally many on all ranks.
    pub fn states_mut(&mut self) -> impl Iterator<Item = &mut [T]> {
        self.states.iter_mut().flatten().map(|state| &mut state[..])
    }

    /// Updates every parameter once. Pass the parameters in the order of construction, each with
    /// its gradient.
    pub fn step<'a>(&mut self, parameters: impl IntoIterator<Item = (&'a mut [T], &'a [T])>) {
        self.steps += 1;
        for (states, (weights, gradient)) in self.states.iter_mut().zip(parameters) {
            let mut states: Vec<&mut [T]> = states.iter_mut().map(|state| &mut state[..]).collect();
            ddp::Optimizer::update(&self.update, self.steps, weights, gradient, &mut states);
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

fn sgd<T: Real>(
    (weights, velocity): (&mut [T], &mut [T]),
    gradient: &[T],
    learning_rate: f64,
    momentum: f64,
) {
    let (learning_rate, momentum) = (T::from_f64(learning_rate), T::from_f64(momentum));
    for ((weight, velocity), &slope) in weights.iter_mut().zip(velocity).zip(gradient) {
        *velocity = momentum * *velocity + slope;
        *weight -= learning_rate * *velocity;
    }
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

    fn apply(&self, weights: &mut [T], gradient: &[T], first: &mut [T], second: &mut [T]) {
        let means = first.iter_mut().zip(second);
        for ((weight, (first, second)), &slope) in weights.iter_mut().zip(means).zip(gradient) {
            *first = self.beta1 * *first + (T::one() - self.beta1) * slope;
            *second = self.beta2 * *second + (T::one() - self.beta2) * slope * slope;
            let scale = Float::sqrt(*second) / self.second_correction_sqrt + self.epsilon;
            *weight = *weight * self.keep - self.step_size * *first / scale;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(rule: Rule, gradients: &[f64]) -> f64 {
        let mut weight = [1.0];
        let mut optimizer = Optimizer::new(Update::new(rule, 0.1), [1]);
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
