//! Ranks with devices that each see a part of every batch follow one process that trains on whole
//! batches in host memory.

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::{AdamW, Linear, Module, Optimizer, ParamsAdamW, VarBuilder, VarMap, linear, loss};
use comm_candle::DataParallel;

use crate::ranks::{RankContext, on_cpu, on_ranks};
use crate::tensors::elements;

const STEPS: usize = 60;
/// Divisible by the number of ranks.
const BATCH: usize = 48;
const INPUTS: usize = 8;
const HIDDEN: usize = 32;
const CLASSES: usize = 3;

struct Model {
    variables: VarMap,
    hidden: Linear,
    output: Linear,
    device: Device,
}

impl Model {
    /// Weights are random, and different on every rank.
    fn new(dtype: DType, device: &Device) -> Result<Self> {
        let variables = VarMap::new();
        let builder = VarBuilder::from_varmap(&variables, dtype, device);
        let hidden = linear(INPUTS, HIDDEN, builder.pp("hidden"))?;
        let output = linear(HIDDEN, CLASSES, builder.pp("output"))?;
        Ok(Self { variables, hidden, output, device: device.clone() })
    }

    /// Sets weights that are the same in every run.
    fn start(&self) -> Result<()> {
        for (name, var) in self.variables.data().lock().unwrap().iter() {
            let seed = name.bytes().map(f64::from).sum::<f64>();
            let value = |at: usize| (seed + at as f64 * 1.7).sin() / 3.0;
            let values: Vec<f64> = (0..var.elem_count()).map(value).collect();
            let values = Tensor::from_vec(values, var.shape(), &Device::Cpu)?.to_dtype(var.dtype())?;
            var.set(&values.to_device(&self.device)?)?;
        }
        Ok(())
    }

    fn optimizer(&self) -> Result<AdamW> {
        AdamW::new(self.variables.all_vars(), ParamsAdamW { lr: 0.02, ..ParamsAdamW::default() })
    }

    /// The mean loss of some samples of a step.
    fn loss(&self, step: usize, samples: impl Iterator<Item = usize>) -> Result<Tensor> {
        let (inputs, labels): (Vec<[f64; INPUTS]>, Vec<u32>) =
            samples.map(|sample| draw(step, sample)).unzip();
        let inputs = Tensor::from_vec(inputs.concat(), (labels.len(), INPUTS), &Device::Cpu)?;
        let inputs = inputs.to_dtype(self.hidden.weight().dtype())?.to_device(&self.device)?;
        let labels = Tensor::new(labels, &self.device)?;
        loss::cross_entropy(&self.output.forward(&self.hidden.forward(&inputs)?.tanh()?)?, &labels)
    }

    /// All weights, in the order of their names.
    fn weights(&self) -> Vec<f64> {
        let map = self.variables.data().lock().unwrap();
        let mut names: Vec<&String> = map.keys().collect();
        names.sort();
        names.into_iter().flat_map(|name| elements(&on_cpu(&map[name]))).collect()
    }
}

/// A sample. Those of different ranks have different magnitudes, and so have their gradients.
fn draw(step: usize, sample: usize) -> ([f64; INPUTS], u32) {
    let size = 0.2 + 2.0 * (sample % 2) as f64;
    let inputs = std::array::from_fn(|at| size * ((step * 131 + sample * 17 + at * 5) as f64 * 0.37).sin());
    (inputs, u32::from(inputs[0] > inputs[1]) + u32::from(inputs[2] > 0.3))
}

/// The losses of all steps, and the weights at the end.
type Course = (Vec<f64>, Vec<f64>);

fn alone(dtype: DType) -> Result<Course> {
    let model = Model::new(dtype, &Device::Cpu)?;
    model.start()?;
    let (mut optimizer, mut losses) = (model.optimizer()?, Vec::new());
    for step in 0..STEPS {
        let loss = model.loss(step, 0..BATCH)?;
        optimizer.step(&loss.backward()?)?;
        losses.extend(elements(&loss));
    }
    Ok((losses, model.weights()))
}

fn together(ctx: &RankContext, dtype: DType) -> comm_candle::Result<Course> {
    let model = Model::new(dtype, &ctx.device)?;
    if ctx.rank() == 0 {
        model.start()?;
    }
    let mut replicas = DataParallel::new(&model.variables, ctx.cuda())?;
    replicas.sync_model()?;
    let (mut optimizer, mut losses) = (model.optimizer()?, Vec::new());
    for step in 0..STEPS {
        let loss = model.loss(step, (ctx.rank()..BATCH).step_by(ctx.size()))?;
        let mut gradients = loss.backward()?;
        let report = replicas.sync_gradients(&mut gradients)?;
        assert!(report.without_gradient().is_empty(), "{report:?}");
        optimizer.step(&gradients)?;
        let sum = ctx.host().all_reduce_scalar(elements(&on_cpu(&loss))[0], comm_core::ReduceOp::Sum);
        losses.push(sum.map_err(comm_ddp::Error::from)? / ctx.size() as f64);
    }
    Ok((losses, model.weights()))
}

/// Norm of the difference over norm of the reference.
fn distance(found: &[f64], expected: &[f64]) -> f64 {
    let norm =
        |numbers: &mut dyn Iterator<Item = f64>| numbers.map(|number| number * number).sum::<f64>().sqrt();
    norm(&mut found.iter().zip(expected).map(|(a, b)| a - b)) / norm(&mut expected.iter().copied())
}

fn check(ctx: &RankContext, dtype: DType, tolerance: f64) {
    let (expected, found) = (alone(dtype).unwrap(), together(ctx, dtype).unwrap());
    ctx.assert_same(&found.1);
    let apart = [distance(&found.0, &expected.0), distance(&found.1, &expected.1)];
    assert!(apart.iter().all(|apart| *apart <= tolerance), "{dtype:?}: {apart:?} away from the host");
    let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
    let [first, last] = [mean(&found.0[..10]), mean(&found.0[STEPS - 10..])];
    assert!(last < 0.7 * first, "the loss was {first}, and is {last}");
}

#[test]
fn training_on_devices_follows_a_single_process_in_host_memory() {
    on_ranks("training::training_on_devices_follows_a_single_process_in_host_memory", |ctx| {
        check(ctx, DType::F64, 1e-9);
        check(ctx, DType::F32, 1e-4);
    });
}
