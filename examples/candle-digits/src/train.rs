//! Trains one replica together with all others.

use std::hash::{DefaultHasher, Hasher};

use candle_core::{DType, Device, Tensor};
use candle_nn::{AdamW, Linear, Module, Optimizer, VarBuilder, VarMap, linear, loss};
use comm::ddp::{DistributedSampler, Remainder};
use comm::{Comm, ReduceOp};
use comm_candle::DataParallel;
use digits::data::{Batch, CLASSES, Images, PIXELS};

/// Units of the hidden layer.
const HIDDEN: usize = 128;

const LEARNING_RATE: f64 = 0.004;

/// The error of a run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The ranks could not communicate.
    #[error(transparent)]
    Comm(#[from] comm::Error),
    /// Gradients could not be averaged.
    #[error(transparent)]
    DataParallel(#[from] comm_candle::Error),
    /// The model could not be computed.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
    /// There are too few images for a single step.
    #[error("{ranks} ranks x {batch_size} images per step are more than the training images")]
    BatchTooLarge {
        /// The number of ranks.
        ranks: usize,
        /// Images per rank and step.
        batch_size: usize,
    },
    /// The result could not be printed.
    #[error("cannot print: {0}")]
    Print(std::io::Error),
    /// The parameters of the ranks differ.
    #[error("the replicas differ")]
    ReplicasDiffer,
}

/// A replica of the model with its optimizer and data.
pub(crate) struct Trainer {
    comm: Comm,
    images: Images,
    held_out: Images,
    sampler: DistributedSampler,
    batch_size: usize,
    layers: [Linear; 2],
    replicas: DataParallel,
    optimizer: AdamW,
    untrained: Vec<String>,
}

impl Trainer {
    /// Creates a replica with the weights of rank 0. Collective: every rank calls it.
    pub(crate) fn new(comm: &Comm, batch_size: usize) -> Result<Self, Error> {
        let images = Images::training();
        let sampler =
            DistributedSampler::new(images.len(), comm.group()).shuffle(0).remainder(Remainder::Drop);
        if sampler.len() < batch_size {
            return Err(Error::BatchTooLarge { ranks: comm.size(), batch_size });
        }
        let variables = VarMap::new();
        let builder = VarBuilder::from_varmap(&variables, DType::F32, &Device::Cpu);
        let layers =
            [linear(PIXELS, HIDDEN, builder.pp("hidden"))?, linear(HIDDEN, CLASSES, builder.pp("output"))?];
        let mut replicas = DataParallel::new(&variables, comm)?;
        replicas.sync_model()?;
        let optimizer = AdamW::new_lr(variables.all_vars(), LEARNING_RATE)?;
        let held_out = Images::held_out();
        let (comm, untrained) = (comm.clone(), Vec::new());
        Ok(Self { comm, images, held_out, sampler, batch_size, layers, replicas, optimizer, untrained })
    }

    /// Trains on all images once. Returns the mean loss, which is the same on every rank.
    pub(crate) fn epoch(&mut self, epoch: usize) -> Result<f64, Error> {
        self.sampler.set_epoch(epoch as u64);
        let indices = self.sampler.indices();
        let steps = indices.chunks_exact(self.batch_size);
        let (mut sum, count) = (0.0, steps.len() as f64);
        for batch in steps {
            sum += f64::from(self.step(batch)?);
        }
        let mut mean = [sum / count];
        self.comm.all_reduce(&mut mean, ReduceOp::Avg)?;
        Ok(mean[0])
    }

    /// Runs forward and backward, averages the gradients, and updates the weights. Returns the loss
    /// of this rank's batch.
    fn step(&mut self, indices: &[usize]) -> Result<f32, Error> {
        let (pixels, labels) = tensors(&self.images, indices.iter().copied())?;
        let loss = loss::cross_entropy(&self.forward(&pixels)?, &labels)?;
        let mut gradients = loss.backward()?;
        let report = self.replicas.sync_gradients(&mut gradients)?;
        self.untrained = report.without_gradient().to_vec();
        self.optimizer.step(&gradients)?;
        Ok(loss.to_scalar()?)
    }

    fn forward(&self, pixels: &Tensor) -> Result<Tensor, Error> {
        let [hidden, output] = &self.layers;
        Ok(output.forward(&hidden.forward(pixels)?.relu()?)?)
    }

    /// Returns the variables without a gradient in the last step.
    pub(crate) fn untrained(&self) -> &[String] {
        &self.untrained
    }

    /// Returns the share of held-out images that are recognised. Each rank evaluates a part of
    /// them.
    pub(crate) fn accuracy(&self) -> Result<f64, Error> {
        let part: Vec<usize> = (self.comm.rank()..self.held_out.len()).step_by(self.comm.size()).collect();
        let mut counts = [0, part.len() as u64];
        if !part.is_empty() {
            let (pixels, labels) = tensors(&self.held_out, part)?;
            let hits = self.forward(&pixels)?.argmax(1)?.eq(&labels)?.to_dtype(DType::U32)?;
            counts[0] = u64::from(hits.sum_all()?.to_scalar::<u32>()?);
        }
        self.comm.all_reduce(&mut counts, ReduceOp::Sum)?;
        Ok(counts[0] as f64 / counts[1] as f64)
    }

    /// Returns whether the weights of all ranks are equal bit for bit.
    pub(crate) fn replicas_identical(&self) -> Result<bool, Error> {
        let mut hasher = DefaultHasher::new();
        for layer in &self.layers {
            for weight in [Some(layer.weight()), layer.bias()].into_iter().flatten() {
                for number in weight.flatten_all()?.to_vec1::<f32>()? {
                    hasher.write_u32(number.to_bits());
                }
            }
        }
        let mut hashes = vec![0_u64; self.comm.size()];
        self.comm.all_gather(&[hasher.finish()], &mut hashes)?;
        Ok(hashes.iter().all(|hash| *hash == hashes[0]))
    }
}

/// Returns images as tensors of pixels and labels.
fn tensors(images: &Images, indices: impl IntoIterator<Item = usize>) -> Result<(Tensor, Tensor), Error> {
    let mut batch = Batch::<f32>::default();
    images.fill(&mut batch, indices);
    let count = batch.labels.len();
    let labels: Vec<u32> = batch.labels.into_iter().map(u32::from).collect();
    let pixels = Tensor::from_vec(batch.pixels, (count, PIXELS), &Device::Cpu)?;
    Ok((pixels, Tensor::from_vec(labels, count, &Device::Cpu)?))
}
