//! Trains one replica together with all others.

use candle_core::{DType, Device, Tensor};
use candle_nn::{AdamW, Linear, Module, Optimizer, VarBuilder, VarMap, linear, loss};
use comm::ddp::{DistributedSampler, Remainder};
use comm::{Comm, ReduceOp};
use comm_candle::{DataParallel, check_replicas};
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
    /// Gradients could not be averaged, or the replicas differ.
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
}

/// A replica of the model with its optimizer and data.
pub(crate) struct Trainer {
    comm: Comm,
    images: Images,
    held_out: Images,
    sampler: DistributedSampler,
    batch_size: usize,
    variables: VarMap,
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
        Ok(Self {
            comm,
            images,
            held_out,
            sampler,
            batch_size,
            variables,
            layers,
            replicas,
            optimizer,
            untrained,
        })
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

    /// Returns an error that names a weight that differs in any bit between ranks.
    pub(crate) fn check_replicas(&self) -> Result<(), Error> {
        Ok(check_replicas(&self.variables, &self.comm)?)
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
