//! Ranks that each see a part of every batch follow one process that sees whole batches, which they
//! would not do if they averaged weights instead of gradients.

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Result, Tensor};
use candle_nn::{AdamW, Linear, Module, Optimizer, ParamsAdamW, VarBuilder, VarMap, linear, loss};
use comm_candle::{DataParallel, sync_gradients, sync_model};
use comm_core::{Comm, ReduceOp};

use crate::ranks::{WORLDS, elements, on_ranks};

const STEPS: usize = 50;
/// Divisible by every world size.
const BATCH: usize = 60;
const INPUTS: usize = 8;
const HIDDEN: usize = 16;
const CLASSES: usize = 3;

struct Model {
    variables: VarMap,
    hidden: Linear,
    output: Linear,
}

impl Model {
    /// Weights are random, and different on every rank and in every run.
    fn new(dtype: DType) -> Result<Self> {
        let variables = VarMap::new();
        let builder = VarBuilder::from_varmap(&variables, dtype, &Device::Cpu);
        let hidden = linear(INPUTS, HIDDEN, builder.pp("hidden"))?;
        let output = linear(HIDDEN, CLASSES, builder.pp("output"))?;
        Ok(Self { variables, hidden, output })
    }

    /// Weights that are the same in every run.
    fn start(&self) -> Result<()> {
        for (name, var) in self.variables.data().lock().unwrap().iter() {
            let seed = name.bytes().map(f64::from).sum::<f64>();
            let value = |at: usize| (seed + at as f64 * 1.7).sin() / 3.0;
            let values: Vec<f64> = (0..var.elem_count()).map(value).collect();
            var.set(&Tensor::from_vec(values, var.shape(), &Device::Cpu)?.to_dtype(var.dtype())?)?;
        }
        Ok(())
    }

    fn optimizer(&self) -> Result<AdamW> {
        AdamW::new(self.variables.all_vars(), ParamsAdamW { lr: 0.02, ..ParamsAdamW::default() })
    }

    /// Gradients of the mean loss over some samples of a step.
    fn backward(&self, step: usize, samples: impl Iterator<Item = usize>) -> Result<GradStore> {
        let (inputs, labels): (Vec<[f64; INPUTS]>, Vec<u32>) =
            samples.map(|sample| draw(step, sample)).unzip();
        let shape = (inputs.len(), INPUTS);
        let inputs = Tensor::from_vec(inputs.concat(), shape, &Device::Cpu)?;
        let inputs = inputs.to_dtype(self.hidden.weight().dtype())?;
        let labels = Tensor::new(labels, &Device::Cpu)?;
        let logits = self.output.forward(&self.hidden.forward(&inputs)?.tanh()?)?;
        loss::cross_entropy(&logits, &labels)?.backward()
    }

    /// All weights, by name.
    fn weights(&self) -> Vec<f64> {
        let map = self.variables.data().lock().unwrap();
        let mut names: Vec<&String> = map.keys().collect();
        names.sort();
        names.into_iter().flat_map(|name| elements(&map[name])).collect()
    }
}

/// A sample. Those of different ranks have different magnitudes, so that ranks find different
/// gradients.
fn draw(step: usize, sample: usize) -> ([f64; INPUTS], u32) {
    let size = 0.2 + 2.0 * (sample % 4) as f64;
    let input = |at: usize| size * ((step * 131 + sample * 17 + at * 5) as f64 * 0.37).sin();
    let inputs = std::array::from_fn(input);
    (inputs, (inputs[0] > inputs[1]) as u32 + (inputs[2] > 0.3) as u32)
}

/// One process that sees all samples.
fn alone(dtype: DType) -> Result<Vec<f64>> {
    let model = Model::new(dtype)?;
    model.start()?;
    let mut optimizer = model.optimizer()?;
    for step in 0..STEPS {
        optimizer.step(&model.backward(step, 0..BATCH)?)?;
    }
    Ok(model.weights())
}

/// Updates the weights of a rank from its gradients.
type Update = fn(&Comm, &Model, &mut DataParallel, &mut AdamW, GradStore) -> comm_candle::Result<()>;

fn keeping_the_plan(
    _: &Comm,
    _: &Model,
    replicas: &mut DataParallel,
    optimizer: &mut AdamW,
    mut gradients: GradStore,
) -> comm_candle::Result<()> {
    let report = replicas.sync_gradients(&mut gradients)?;
    assert!(report.without_gradient().is_empty());
    Ok(optimizer.step(&gradients)?)
}

fn planning_each_step(
    comm: &Comm,
    model: &Model,
    _: &mut DataParallel,
    optimizer: &mut AdamW,
    mut gradients: GradStore,
) -> comm_candle::Result<()> {
    sync_gradients(&model.variables, &mut gradients, comm)?;
    Ok(optimizer.step(&gradients)?)
}

/// The wrong algorithm: each rank makes its own step, and then weights are averaged.
fn averaging_weights(
    comm: &Comm,
    model: &Model,
    _: &mut DataParallel,
    optimizer: &mut AdamW,
    gradients: GradStore,
) -> comm_candle::Result<()> {
    optimizer.step(&gradients)?;
    let map = model.variables.data().lock().unwrap();
    let mut names: Vec<&String> = map.keys().collect();
    names.sort();
    for name in names {
        let mut values = elements(&map[name]);
        comm.all_reduce(&mut values, ReduceOp::Avg)?;
        let mean = Tensor::from_vec(values, map[name].shape(), &Device::Cpu)?;
        map[name].set(&mean.to_dtype(map[name].dtype())?)?;
    }
    Ok(())
}

fn rank_main(comm: &Comm, dtype: DType, update: Update) -> comm_candle::Result<Vec<f64>> {
    let model = Model::new(dtype)?;
    if comm.rank() == 0 {
        model.start()?;
    }
    sync_model(&model.variables, comm)?;
    let (mut replicas, mut optimizer) = (DataParallel::new(&model.variables, comm)?, model.optimizer()?);
    for step in 0..STEPS {
        let gradients = model.backward(step, (comm.rank()..BATCH).step_by(comm.size()))?;
        update(comm, &model, &mut replicas, &mut optimizer, gradients)?;
    }
    Ok(model.weights())
}

fn together(size: usize, dtype: DType, update: Update) -> Vec<f64> {
    let replicas = on_ranks(size, |comm| rank_main(&comm, dtype, update).unwrap());
    assert!(replicas.iter().all(|weights| *weights == replicas[0]), "replicas differ");
    replicas[0].clone()
}

/// Norm of the difference over norm of the reference.
fn distance(found: &[f64], expected: &[f64]) -> f64 {
    let length =
        |numbers: &mut dyn Iterator<Item = f64>| numbers.map(|number| number * number).sum::<f64>().sqrt();
    length(&mut found.iter().zip(expected).map(|(a, b)| a - b)) / length(&mut expected.iter().copied())
}

fn check(dtype: DType, tolerance: f64) {
    let expected = alone(dtype).unwrap();
    for size in WORLDS {
        for update in [keeping_the_plan as Update, planning_each_step] {
            let distance = distance(&together(size, dtype, update), &expected);
            assert!(distance <= tolerance, "{size} ranks are {distance:e} away from one");
        }
    }
    for size in [2, 4] {
        let distance = distance(&together(size, dtype, averaging_weights), &expected);
        assert!(distance > 1e-2, "averaged weights are only {distance:e} away");
    }
}

#[test]
fn adam_w_in_f32_matches_a_single_process() {
    check(DType::F32, 1e-5);
}

#[test]
fn adam_w_in_f64_matches_a_single_process() {
    check(DType::F64, 1e-10);
}
