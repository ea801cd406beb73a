//! Trains one replica together with all others.

use std::hash::{DefaultHasher, Hasher};
use std::time::{Duration, Instant};

use comm::ddp::{DistributedSampler, LocalOptions, Parameter, ParameterSet, Remainder, Timeline};
use comm::{Comm, ReduceOp};

use crate::data::{Batch, CLASSES, Images, PIXELS};
use crate::error::{Error, Result};
use crate::model::{Mlp, Pass, count_correct};
use crate::optimizer::{Optimizer, Rule};
use crate::real::Real;
use crate::replicas::{Replica, Replicas, StepReport};

/// The numbers of inputs, hidden units and outputs.
const SIZES: [usize; 4] = [PIXELS, 128, 128, CLASSES];

/// The settings of a run. Equal settings and world sizes give equal weights, bit for bit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// Images per rank and step.
    pub batch_size: usize,
    /// The learning rate.
    pub learning_rate: f64,
    /// The update rule.
    pub rule: Rule,
    /// The seed of initial weights and of the order of images.
    pub seed: u64,
    /// Local training with these options, instead of averaged gradients.
    pub local: Option<LocalOptions>,
}

/// The results of one epoch. Loss and accuracy are the same on every rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EpochReport {
    /// The epoch, from 1.
    pub epoch: usize,
    /// The mean training loss over all steps and ranks.
    pub loss: f64,
    /// The share of held-out images that are recognised.
    pub accuracy: f64,
    /// The training images of all ranks per second.
    pub images_per_second: f64,
    /// The duration of training.
    pub elapsed: Duration,
    /// The time of collectives of this rank, including the time that overlapped with backward.
    pub communicating: Duration,
    /// The time in which this rank waited for collectives.
    pub waiting: Duration,
}

/// A replica of the model with its optimizer and data.
#[derive(Debug)]
pub struct Trainer<T: Real> {
    comm: Comm,
    settings: Settings,
    images: Images,
    held_out: Images,
    sampler: DistributedSampler,
    replica: Replica<T>,
    replicas: Replicas<T>,
    batch: Batch<T>,
}

impl<T: Real> Trainer<T> {
    /// Creates a replica with the weights of rank 0. Collective: every rank calls it.
    ///
    /// # Errors
    /// [`Error::BatchTooLarge`] if an epoch has no full step; otherwise if the ranks cannot
    /// communicate.
    pub fn new(comm: &Comm, settings: Settings) -> Result<Self> {
        let images = Images::training();
        let sampler = DistributedSampler::new(images.len(), comm.group())
            .shuffle(settings.seed)
            .remainder(Remainder::Drop);
        let (ranks, batch_size) = (comm.size(), settings.batch_size);
        if batch_size == 0 || sampler.len() < batch_size {
            return Err(Error::BatchTooLarge { ranks, batch_size, images: images.len() });
        }
        // Every rank draws different weights: equal replicas come from the broadcast, not from the
        // seed.
        let mut model = Mlp::new(&SIZES, settings.seed.wrapping_add(comm.rank() as u64));
        let parameters = ParameterSet::new(model.parameters().map(|p| Parameter::new::<T>(p.name, p.shape)))?;
        let replicas = Replicas::new(comm, parameters, settings.local, &mut model)?;
        let lengths = model.parameters().map(|parameter| parameter.numbers.len());
        let optimizer = Optimizer::new(settings.rule, settings.learning_rate, lengths);
        Ok(Self {
            comm: comm.clone(),
            settings,
            images,
            held_out: Images::held_out(),
            sampler,
            replica: Replica { model, optimizer, pass: Pass::default() },
            replicas,
            batch: Batch::default(),
        })
    }

    /// Returns the steps per epoch. Images that do not fill a last step are not used in that epoch;
    /// the next epoch shuffles again.
    #[must_use]
    pub fn steps(&self) -> usize {
        self.sampler.len() / self.settings.batch_size
    }

    /// Trains on all images once, then evaluates the held-out ones. `epoch` counts from 1;
    /// `after_step` is called after each step.
    ///
    /// # Errors
    /// If the ranks cannot communicate.
    pub fn epoch(&mut self, epoch: usize, mut after_step: impl FnMut()) -> Result<EpochReport> {
        self.sampler.set_epoch(epoch as u64);
        let indices = self.sampler.indices();
        let (began, steps) = (Instant::now(), self.steps());
        let (mut loss, mut communicating, mut waiting) = (0.0, Duration::ZERO, Duration::ZERO);
        for batch in indices.chunks_exact(self.settings.batch_size) {
            self.images.fill(&mut self.batch, batch.iter().copied());
            let step: StepReport = self.replicas.step(&mut self.replica, &self.batch)?;
            loss += step.loss / steps as f64;
            communicating += step.communicating;
            waiting += step.waiting;
            after_step();
        }
        let elapsed = began.elapsed();
        let images = steps * self.settings.batch_size * self.comm.size();
        Ok(EpochReport {
            epoch,
            loss: self.mean(loss)?,
            accuracy: self.accuracy()?,
            images_per_second: images as f64 / elapsed.as_secs_f64(),
            elapsed,
            communicating,
            waiting,
        })
    }

    /// Makes the weights of all ranks equal at the end of local training; with averaged gradients
    /// they always are.
    ///
    /// # Errors
    /// If the ranks cannot communicate.
    pub fn synchronize(&mut self) -> Result<()> {
        self.replicas.synchronize(&mut self.replica.model)
    }

    /// Returns the share of held-out images that are recognised with the weights that all ranks
    /// share. Each rank evaluates a part of the images.
    ///
    /// # Errors
    /// If the ranks cannot communicate.
    pub fn accuracy(&mut self) -> Result<f64> {
        let part = (self.comm.rank()..self.held_out.len()).step_by(self.comm.size());
        self.held_out.fill(&mut self.batch, part);
        let batch = &self.batch;
        let correct = self.replicas.evaluate(&mut self.replica, |Replica { model, pass, .. }| {
            count_correct(model.forward(pass, batch), &batch.labels)
        })?;
        let mut counts = [correct, batch.labels.len() as u64];
        self.comm.all_reduce(&mut counts, ReduceOp::Sum)?;
        Ok(counts[0] as f64 / counts[1] as f64)
    }

    /// Returns whether the weights of all ranks are equal bit for bit.
    ///
    /// # Errors
    /// If the ranks cannot communicate.
    pub fn replicas_identical(&self) -> Result<bool> {
        let mut hasher = DefaultHasher::new();
        for number in self.replica.model.parameters().flat_map(|parameter| parameter.numbers) {
            // Widening is exact, so bits are equal after it exactly if they were equal before.
            hasher.write_u64(number.widen().to_bits());
        }
        let mut hashes = vec![0_u64; self.comm.size()];
        self.comm.all_gather(&[hasher.finish()], &mut hashes)?;
        Ok(hashes.iter().all(|hash| *hash == hashes[0]))
    }

    /// Returns the current model.
    #[must_use]
    pub const fn model(&self) -> &Mlp<T> {
        &self.replica.model
    }

    /// Returns the timelines of all steps with averaged gradients so far.
    #[must_use]
    pub fn timelines(&self) -> &[Timeline] {
        self.replicas.timelines()
    }

    /// Returns the bytes that this rank has sent for training, without those of broadcasts and
    /// evaluations.
    #[must_use]
    pub fn bytes_sent(&self) -> u64 {
        self.replicas.bytes_sent(self.comm.size())
    }

    /// Returns the mean of a number over all ranks.
    fn mean(&self, number: f64) -> Result<f64> {
        let mut mean = [number];
        self.comm.all_reduce(&mut mean, ReduceOp::Avg)?;
        Ok(mean[0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: Settings =
        Settings { batch_size: 100, learning_rate: 0.05, rule: Rule::SGD, seed: 3, local: None };

    #[test]
    fn one_bit_on_one_rank_is_a_difference() {
        let found = comm::threads::run(3, |comm| {
            let mut trainer = Trainer::<f32>::new(&comm, SETTINGS).unwrap();
            trainer.epoch(1, || ()).unwrap();
            let before = trainer.replicas_identical().unwrap();
            if comm.rank() == 2 {
                let bias = trainer.replica.model.parameters_mut().last().unwrap();
                bias[9] = f32::from_bits(bias[9].to_bits() ^ 1);
            }
            (before, trainer.replicas_identical().unwrap())
        });
        assert_eq!(found.unwrap(), [(true, false); 3]);
    }

    #[test]
    fn every_held_out_image_counts_once() {
        let accuracies = |ranks| {
            let rank_main = |comm: Comm| Trainer::<f64>::new(&comm, SETTINGS).unwrap().accuracy().unwrap();
            comm::threads::run(ranks, rank_main).unwrap()
        };
        let alone = accuracies(1)[0];
        assert!((alone * 360.0 - (alone * 360.0).round()).abs() < 1e-9);
        assert_eq!(accuracies(7), [alone; 7]);
    }

    #[test]
    fn there_must_be_a_full_step() {
        let refused = comm::threads::run(2, |comm| {
            let most = Trainer::<f32>::new(&comm, Settings { batch_size: 718, ..SETTINGS });
            let settings = Settings { batch_size: 719, ..SETTINGS };
            (most.unwrap().steps(), Trainer::<f32>::new(&comm, settings).unwrap_err().to_string())
        });
        let reason = "2 ranks x 719 images per step are more than the 1437 training images";
        assert_eq!(refused.unwrap(), [(1, reason.to_owned()), (1, reason.to_owned())]);
    }
}
