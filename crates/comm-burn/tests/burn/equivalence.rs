//! Ranks that each see a part of every batch follow one process that sees whole batches.

use burn::module::{Module, Param};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::activation::tanh;
use burn::tensor::{DType, Device, Tensor, TensorData};
use comm_burn::DataParallel;
use comm_core::Comm;

use crate::ranks::{WORLDS, elements, flex, ndarray, on_ranks, parameters};

const STEPS: usize = 25;
/// Divisible by every world size.
const BATCH: usize = 12;
const INPUTS: usize = 5;
const HIDDEN: usize = 16;
const OUTPUTS: usize = 3;

#[derive(Module, Debug)]
struct Layer {
    weight: Param<Tensor<2>>,
    bias: Param<Tensor<1>>,
}

#[derive(Module, Debug)]
struct Mlp {
    layers: Vec<Layer>,
}

impl Layer {
    fn new(seed: usize, shape: [usize; 2], options: (&Device, DType)) -> Self {
        let value = |at: usize| ((seed + 31 * at) as f64).sin() / 3.0;
        let weight = TensorData::new((0..shape[0] * shape[1]).map(value).collect::<Vec<_>>(), shape);
        let bias = TensorData::new((7..7 + shape[1]).map(value).collect::<Vec<_>>(), [shape[1]]);
        Self {
            weight: Param::from_tensor(Tensor::from_data(weight, options)),
            bias: Param::from_tensor(Tensor::from_data(bias, options)),
        }
    }

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        input.matmul(self.weight.val()) + self.bias.val().unsqueeze()
    }
}

impl Mlp {
    /// Different weights for each seed.
    fn new(seed: usize, options: (&Device, DType)) -> Self {
        let layer = |seed, shape| Layer::new(seed, shape, options);
        Self { layers: vec![layer(seed, [INPUTS, HIDDEN]), layer(seed + 1, [HIDDEN, OUTPUTS])] }
    }

    /// The gradients of the mean loss over some samples of a step.
    fn gradients(
        &self,
        step: usize,
        samples: std::ops::Range<usize>,
        options: (&Device, DType),
    ) -> GradientsParams {
        let count = samples.len();
        let input = |sample: usize, at: usize| {
            // Samples of different magnitudes, so that the ranks have different gradients.
            (1 + sample) as f64 / 4.0 * ((step * 131 + sample * 17 + at * 5) as f64 * 0.37).sin()
        };
        let draw = |width: usize, first: usize| {
            let rows =
                samples.clone().flat_map(|sample| (first..first + width).map(move |at| input(sample, at)));
            let data = TensorData::new(rows.collect::<Vec<f64>>(), [count, width]);
            Tensor::<2>::from_data(data, options)
        };
        let outputs = self.layers[1].forward(tanh(self.layers[0].forward(draw(INPUTS, 0))));
        let loss = (outputs - tanh(draw(OUTPUTS, 90))).powi_scalar(2).mean();
        GradientsParams::from_grads(loss.backward(), self)
    }
}

fn momentum() -> ModuleOptimizer {
    SgdConfig::new().with_momentum(Some(MomentumConfig::new())).init()
}

fn adam_w() -> ModuleOptimizer {
    AdamWConfig::new().init()
}

/// One process that sees all samples.
fn alone(mut optimizer: ModuleOptimizer, options: (&Device, DType)) -> Vec<f64> {
    let mut module = Mlp::new(0, options);
    for step in 0..STEPS {
        let gradients = module.gradients(step, 0..BATCH, options);
        module = optimizer.step(0.02, module, gradients);
    }
    elements(&module)
}

fn rank_main(comm: &Comm, mut optimizer: ModuleOptimizer, options: (&Device, DType)) -> Mlp {
    let mut module = Mlp::new(comm.rank(), options);
    let mut replicas = DataParallel::new(&module, comm).unwrap();
    module = replicas.sync_module(module).unwrap();
    let share = BATCH / comm.size();
    for step in 0..STEPS {
        let samples = share * comm.rank()..share * (comm.rank() + 1);
        let mut gradients = module.gradients(step, samples, options);
        let report = replicas.sync_gradients(&module, &mut gradients).unwrap();
        assert!(report.without_gradient().is_empty() && report.counted_as_zero().is_empty());
        module = optimizer.step(0.02, module, gradients);
    }
    module
}

/// The length of the difference, relative to the length of `expected`.
fn deviation(found: &[f64], expected: &[f64]) -> f64 {
    let norm = |of: &mut dyn Iterator<Item = f64>| of.map(|x| x * x).sum::<f64>().sqrt();
    let difference = norm(&mut found.iter().zip(expected).map(|(found, expected)| found - expected));
    difference / norm(&mut expected.iter().copied())
}

fn assert_matches_a_single_process(
    optimizer: fn() -> ModuleOptimizer,
    device: &Device,
    dtype: DType,
    limit: f64,
) {
    let expected = alone(optimizer(), (device, dtype));
    let start = elements(&Mlp::new(0, (device, dtype)));
    assert!(deviation(&start, &expected) > 0.05, "training did not change the parameters");
    for size in WORLDS {
        let modules = on_ranks(size, |comm| rank_main(&comm, optimizer(), (device, dtype)));
        for module in &modules {
            assert_eq!(parameters(module), parameters(&modules[0]), "replicas differ");
        }
        let deviation = deviation(&elements(&modules[0]), &expected);
        assert!(deviation <= limit, "{size} ranks are off by {deviation:e}");
    }
}

#[test]
fn momentum_on_flex_matches_a_single_process() {
    assert_matches_a_single_process(momentum, &flex(), DType::F32, 1e-5);
}

#[test]
fn adam_w_on_flex_matches_a_single_process() {
    assert_matches_a_single_process(adam_w, &flex(), DType::F32, 1e-5);
}

#[test]
fn momentum_on_ndarray_matches_a_single_process() {
    assert_matches_a_single_process(momentum, &ndarray(), DType::F32, 1e-5);
}

#[test]
fn adam_w_on_ndarray_matches_a_single_process() {
    assert_matches_a_single_process(adam_w, &ndarray(), DType::F32, 1e-5);
}

#[test]
fn double_precision_matches_a_single_process_more_closely() {
    assert_matches_a_single_process(momentum, &flex(), DType::F64, 1e-12);
    assert_matches_a_single_process(adam_w, &flex(), DType::F64, 1e-12);
}
