//! Trains a candle model with two ranks, one of them lost and replaced, to the bits that a single
//! process gets.
//!
//! Both ranks take the whole batch, so that the average of their gradients is that of one process.
//! A program that trains faster with more ranks gives each its own part, and gets other bits.
//!
//! ```sh
//! commctl run -n 2 --elastic 1:2 -- target/debug/examples/elastic
//! ```
#![allow(clippy::expect_used, clippy::print_stdout, reason = "an example is short, and prints its result")]

use std::thread::sleep;
use std::time::Duration;

use candle_core::backprop::GradStore;
use candle_core::{Device, Tensor, Var};
use candle_nn::{Linear, Module, VarMap, loss};
use comm::ddp::AdamW;
use comm::{Config, ElasticGroup, GrowOptions, ShrinkOptions};
use comm_candle::{DataParallel, ReplicatedOptimizer, Result};
use digits::data::{Batch, CLASSES, Images, PIXELS};
use rustix::process::{Signal, getpid, kill_process};

const STEPS: u64 = 60;
/// The step in which the last rank kills itself.
const LOSS: u64 = 20;
/// The number of steps after which the others wait for another process.
const REGROWTH: u64 = 40;
const BATCH_SIZE: usize = 32;
const HIDDEN: usize = 64;

struct Trainer {
    images: Images,
    variables: VarMap,
    layers: [Linear; 2],
    /// Has the state of the optimizer, and the number of steps, from which the position in the data
    /// follows.
    optimizer: ReplicatedOptimizer<AdamW>,
}

impl Trainer {
    fn new() -> Result<Self> {
        let variables = VarMap::new();
        let layers =
            [linear(&variables, "hidden", PIXELS, HIDDEN)?, linear(&variables, "output", HIDDEN, CLASSES)?];
        let optimizer = ReplicatedOptimizer::new(&variables, |_| AdamW::new(4e-3))?;
        Ok(Self { images: Images::training(), variables, layers, optimizer })
    }

    /// Computes the gradients of the next step.
    fn gradients(&self) -> Result<GradStore> {
        let first = self.optimizer.steps() as usize * BATCH_SIZE;
        let mut batch = Batch::<f32>::default();
        self.images.fill(&mut batch, (first..first + BATCH_SIZE).map(|at| at % self.images.len()));
        let labels: Vec<u32> = batch.labels.into_iter().map(u32::from).collect();
        let pixels = Tensor::from_vec(batch.pixels, (BATCH_SIZE, PIXELS), &Device::Cpu)?;
        let [hidden, output] = &self.layers;
        let output = output.forward(&hidden.forward(&pixels)?.relu()?)?;
        Ok(loss::cross_entropy(&output, &Tensor::from_vec(labels, BATCH_SIZE, &Device::Cpu)?)?.backward()?)
    }

    /// Returns the bits of all weights.
    fn bits(&self) -> Result<Vec<u32>> {
        let tensors = self.layers.iter().flat_map(|layer| [Some(layer.weight()), layer.bias()]);
        let bits =
            |tensor: &Tensor| Ok(tensor.flatten_all()?.to_vec1::<f32>()?.into_iter().map(f32::to_bits));
        Ok(tensors.flatten().map(bits).collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
    }
}

/// Creates a layer whose weights are the same in every process.
fn linear(variables: &VarMap, name: &str, inputs: usize, outputs: usize) -> Result<Linear> {
    let values = Tensor::arange(0_f32, (inputs * outputs) as f32, &Device::Cpu)?.sin()?;
    let weight = Var::from_tensor(&(values * (inputs as f64).sqrt().recip())?.reshape((outputs, inputs))?)?;
    let bias = Var::zeros(outputs, candle_core::DType::F32, &Device::Cpu)?;
    let mut map = variables.data().lock().expect("no thread panics");
    map.insert(format!("{name}.weight"), weight.clone());
    map.insert(format!("{name}.bias"), bias.clone());
    Ok(Linear::new(weight.as_tensor().clone(), Some(bias.as_tensor().clone())))
}

/// Trains with a group until it grows, a call fails, or all steps are done.
fn train(group: &mut ElasticGroup, trainer: &mut Trainer, full_size: usize) -> Result<()> {
    // A rank that is new, or lacks the last step, gets the weights and the state of another one.
    trainer.optimizer.rejoin(group.comm())?;
    let mut replicas = DataParallel::new(&trainer.variables, group.comm())?;
    while trainer.optimizer.steps() < STEPS {
        let (rank, step) = (group.comm().rank(), trainer.optimizer.steps());
        if step == LOSS && rank > 0 && rank + 1 == full_size {
            kill_process(getpid(), Signal::KILL).expect("a process may kill itself");
        }
        let mut gradients = trainer.gradients()?;
        replicas.sync_gradients(&mut gradients)?;
        trainer.optimizer.step(&gradients)?;
        if grow(group, step + 1, full_size)? {
            return Ok(());
        }
    }
    Ok(())
}

/// Admits a process that waits, and at one step waits for it, for a minute at most. All ranks call
/// this equally often.
fn grow(group: &mut ElasticGroup, step: u64, full_size: usize) -> Result<bool> {
    let tries = if step == REGROWTH && group.comm().size() < full_size { 6000 } else { 1 };
    for _ in 0..tries {
        if group.grow(&GrowOptions::default())? > 0 {
            return Ok(true);
        }
        if tries > 1 {
            sleep(Duration::from_millis(10));
        }
    }
    Ok(false)
}

pub(crate) fn main() -> Result<()> {
    let config = Config::from_env()?;
    let mut trainer = Trainer::new()?;
    let mut group = ElasticGroup::join(&config)?;
    while trainer.optimizer.steps() < STEPS {
        match train(&mut group, &mut trainer, config.world_size) {
            Err(error) if error.is_fatal() => {
                let shrunk = group.shrink(&ShrinkOptions::default())?;
                if shrunk.comm.rank() == 0 {
                    println!("{error}; ranks {:?} go on", shrunk.ranks);
                }
            }
            outcome => outcome?,
        }
    }
    let mut alone = Trainer::new()?;
    for _ in 0..STEPS {
        alone.optimizer.step(&alone.gradients()?)?;
    }
    assert_eq!(trainer.bits()?, alone.bits()?);
    if group.comm().rank() == 0 {
        let ranks = group.comm().size();
        println!(
            "{STEPS} steps are complete, the last one with {ranks} ranks; the bits are those of one process"
        );
    }
    Ok(group.comm().clone().finalize()?)
}
