//! The measured models. Weights and samples depend only on indices, so that PyTorch trains the same
//! models on the same samples.

use std::convert::Infallible;
use std::time::Duration;

use digits::data::Batch;
use digits::model::{Gradients, Mlp, Pass};
use rustix::time::{ClockId, clock_gettime};

/// The layers of a perceptron.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Model {
    pub(crate) name: &'static str,
    /// Inputs, hidden units and outputs.
    sizes: &'static [usize],
    /// The samples per rank and step.
    batch: usize,
    /// The processor time of the backward pass in microseconds per layer, for models that compute
    /// nothing.
    fixed_us: Option<&'static [u64]>,
}

const LARGE: Model = Model { name: "mlp-25m", sizes: &[1024, 4096, 4096, 1024], batch: 32, fixed_us: None };
const SMALL: Model = Model { name: "mlp-0.7m", sizes: &[784, 512, 512, 10], batch: 64, fixed_us: None };
const MODELS: [Model; 4] = [
    LARGE,
    SMALL,
    Model { name: "fixed-25m", fixed_us: Some(&[10_000, 40_000, 10_000]), ..LARGE },
    Model { name: "fixed-0.7m", fixed_us: Some(&[1000, 700, 100]), ..SMALL },
];

/// The names of all models, as on the command line.
pub(crate) const NAMES: &str = "mlp-25m,mlp-0.7m,fixed-25m,fixed-0.7m";

/// The number of different labels; a label is a byte.
const LABELS_MAX: usize = 256;

/// Parses the name of a model.
pub(crate) fn find(name: &str) -> Result<Model, String> {
    MODELS.into_iter().find(|model| model.name == name).ok_or_else(|| format!("no model; there are {NAMES}"))
}

/// The forward and backward passes of a model on the samples of one rank.
#[derive(Debug)]
pub(crate) enum Workload {
    /// All matrix products.
    Perceptron(Box<Perceptron>),
    /// Each layer takes a fixed processor time, and the memory of its gradients keeps its values.
    Fixed(Vec<Duration>),
}

#[derive(Debug)]
pub(crate) struct Perceptron {
    mlp: Mlp<f32>,
    pass: Pass<f32>,
    batch: Batch<f32>,
}

impl Model {
    /// Returns the length of every parameter: weight and bias of each layer.
    pub(crate) fn lengths(&self) -> Vec<usize> {
        self.sizes.array_windows().flat_map(|[inputs, outputs]| [inputs * outputs, *outputs]).collect()
    }

    /// Returns the passes of this model on the samples of a rank, and its parameters.
    pub(crate) fn workload(&self, rank: usize) -> Workload {
        match self.fixed_us {
            Some(layers) => Workload::Fixed(layers.iter().copied().map(Duration::from_micros).collect()),
            None => Workload::Perceptron(Box::new(self.perceptron(rank))),
        }
    }

    fn perceptron(&self, rank: usize) -> Perceptron {
        let mut mlp = Mlp::new(self.sizes, 0);
        let layers = self.sizes.array_windows().enumerate();
        for ((layer, [inputs, outputs]), weight) in layers.zip(mlp.parameters_mut().step_by(2)) {
            let bound = (6.0 / *inputs as f64).sqrt() as f32;
            for (index, element) in weight.iter_mut().enumerate() {
                // PyTorch's weights are transposed.
                let (input, output) = (index / outputs, index % outputs);
                *element = number(output * inputs + input, layer) * bound;
            }
        }
        let (inputs, classes) = (self.sizes[0], self.sizes[self.sizes.len() - 1].min(LABELS_MAX));
        let pixels = (0..self.batch * inputs).map(|index| number(index, 1000 + rank)).collect();
        let labels = (0..self.batch).map(|sample| ((sample * 7 + rank) % classes) as u8).collect();
        Perceptron { mlp, pass: Pass::default(), batch: Batch { pixels, labels } }
    }
}

impl Workload {
    /// Runs forward and backward. Returns the loss.
    pub(crate) fn backward<G: Gradients<f32>>(&mut self, gradients: &mut G) -> Result<f32, G::Error> {
        match self {
            Self::Perceptron(perceptron) => {
                let Perceptron { mlp, pass, batch } = &mut **perceptron;
                mlp.backward(pass, batch, gradients)
            }
            Self::Fixed(layers) => {
                for (layer, time) in layers.iter().enumerate().rev() {
                    compute(*time);
                    for index in [2 * layer + 1, 2 * layer] {
                        gradients.memory(index)?;
                        gradients.ready(index)?;
                    }
                }
                Ok(0.0)
            }
        }
    }

    /// Subtracts the gradients, in the order of the parameters. Models that compute nothing have
    /// nothing to update.
    pub(crate) fn update<'g>(&mut self, gradients: impl Iterator<Item = &'g [f32]>, rate: f32) {
        let Self::Perceptron(perceptron) = self else { return };
        for (parameter, gradient) in perceptron.mlp.parameters_mut().zip(gradients) {
            parameter.iter_mut().zip(gradient).for_each(|(value, slope)| *value -= rate * slope);
        }
    }

    /// Returns a copy of all parameters.
    pub(crate) fn parameters(&self) -> Vec<Vec<f32>> {
        match self {
            Self::Perceptron(model) => model.mlp.parameters().map(|p| p.numbers.to_vec()).collect(),
            Self::Fixed(_) => Vec::new(),
        }
    }

    pub(crate) fn set_parameters(&mut self, values: &[Vec<f32>]) {
        let Self::Perceptron(perceptron) = self else { return };
        perceptron.mlp.parameters_mut().zip(values).for_each(|(to, from)| to.copy_from_slice(from));
    }
}

/// Gradients that are not sent.
#[derive(Debug)]
pub(crate) struct LocalGradients(pub(crate) Vec<Vec<f32>>);

impl Gradients<f32> for LocalGradients {
    type Error = Infallible;

    fn memory(&mut self, index: usize) -> Result<&mut [f32], Infallible> {
        Ok(&mut self.0[index])
    }

    fn ready(&mut self, _: usize) -> Result<(), Infallible> {
        Ok(())
    }
}

/// Keeps the processor busy for an amount of this thread's CPU time, without accessing memory.
fn compute(time: Duration) {
    let used = || {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
    };
    let end = used() + time;
    while used() < end {
        (0..1000).for_each(|_| std::hint::spin_loop());
    }
}

/// Returns a number in -1..1 that depends only on the index and the seed, using steps of the
/// finalizer of MurmurHash3.
fn number(index: usize, seed: usize) -> f32 {
    let mut bits = (index as u32 ^ seed as u32).wrapping_mul(0x9e37_79b1);
    bits = (bits ^ bits >> 16).wrapping_mul(0x85eb_ca6b);
    bits ^= bits >> 13;
    (bits >> 8) as f32 * (2.0 / (1 << 24) as f32) - 1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_listed_model_exists() {
        assert_eq!(NAMES.split(',').collect::<Vec<_>>(), MODELS.map(|model| model.name));
        assert!(find("mlp").is_err());
    }

    #[test]
    fn models_have_the_stated_numbers_of_parameters() {
        let parameters = MODELS.map(|model| model.lengths().iter().sum::<usize>());
        assert_eq!(parameters, [25_175_040, 669_706, 25_175_040, 669_706]);
        assert!(MODELS.iter().all(|model| model.fixed_us.is_none_or(|us| us.len() == model.sizes.len() - 1)));
    }

    #[test]
    fn numbers_are_those_of_the_program_for_pytorch() {
        // Printed by `numbers(torch, 3, 7)` in xtask/peers/ddp.py.
        assert_eq!([0, 1, 2].map(|index| number(index, 7)), [-0.034_256_46, -0.131_552_22, -0.911_773_8]);
    }
}
