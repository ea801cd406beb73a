//! Trains one replica together with all others.

use std::hash::{DefaultHasher, Hasher};
use std::time::{Duration, Instant};

use comm::ddp::{
    DistributedSampler, LocalOptions, Parameter, ParameterSet, Remainder, SamplerState, Timeline,
};
use comm::{Comm, ReduceOp};

use crate::agreement::{Agreement, agree_on_position, copy_state};
use crate::data::{Batch, CLASSES, Images, PIXELS};
use crate::error::{Error, Result};
use crate::model::{Mlp, Pass, count_correct};
use crate::optimizer::{Optimizer, Rule, Update};
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
    /// The ranks that hold the state of the optimizer. Local training ignores this.
    pub state: StateLayout,
}

/// The ranks that hold the state of the optimizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateLayout {
    /// Each rank holds all of it.
    Replicated,
    /// Each rank holds a part (ZeRO).
    Sharded,
    /// Each rank holds a part, and a copy of the part of the rank before it.
    ShardedWithCopies,
}

impl StateLayout {
    /// Returns whether a rank holds only a part.
    #[must_use]
    pub const fn is_sharded(self) -> bool {
        !matches!(self, Self::Replicated)
    }
}

impl Settings {
    /// Returns the update rule with its learning rate.
    #[must_use]
    pub const fn update(&self) -> Update {
        Update::new(self.rule, self.learning_rate)
    }
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
    /// The position in the data after the last complete step.
    position: SamplerState,
    /// The number of steps of all epochs up to that position.
    updates: u64,
    /// The results of this rank in the current epoch.
    sums: Sums,
}

/// The results of a rank's steps in an epoch.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    epoch: u64,
    loss: f64,
    steps: usize,
    images: usize,
    elapsed: Duration,
    communicating: Duration,
    waiting: Duration,
}

impl Sums {
    fn add(&mut self, step: &StepReport, images: usize) {
        self.loss += step.loss;
        self.steps += 1;
        self.images += images;
        self.communicating += step.communicating;
        self.waiting += step.waiting;
    }
}

fn sampler(images: usize, comm: &Comm, seed: u64) -> DistributedSampler {
    DistributedSampler::new(images, comm.group()).shuffle(seed).remainder(Remainder::Drop)
}

fn parameter_set<T: Real>(model: &Mlp<T>) -> Result<ParameterSet> {
    Ok(ParameterSet::new(model.parameters().map(|p| Parameter::new::<T>(p.name, p.shape)))?)
}

impl<T: Real> Trainer<T> {
    /// Creates a replica with the weights of rank 0. Collective: every rank calls it.
    ///
    /// # Errors
    /// [`Error::BatchTooLarge`] if an epoch has no full step; otherwise if the ranks cannot
    /// communicate.
    pub fn new(comm: &Comm, settings: Settings) -> Result<Self> {
        Self::create(comm, settings, |replica| {
            let parameters = parameter_set(&replica.model)?;
            let replicas = Replicas::new(comm, parameters, &settings, &mut replica.model)?;
            Ok((replicas, Agreement { root: 0, steps: 0, position: SamplerState::default() }))
        })
    }

    /// Creates a replica with the state of the rank that has completed the most steps, while the
    /// other ranks call this or [`Trainer::continue_with`]. Returns the epoch to continue with.
    ///
    /// # Errors
    /// As [`Trainer::new`].
    pub fn join(comm: &Comm, settings: Settings) -> Result<(Self, usize)> {
        let trainer = Self::create(comm, settings, |replica| {
            let agreed = agree_on_position(comm, SamplerState::default(), 0, Images::training().len())?;
            if !settings.state.is_sharded() {
                copy_state(comm, replica, &agreed)?;
            }
            let parameters = parameter_set(&replica.model)?;
            let replicas = Replicas::join(comm, parameters, &settings, &mut replica.model)?;
            Ok((replicas, agreed))
        })?;
        let epoch = trainer.position.epoch as usize;
        Ok((trainer, epoch))
    }

    fn create(
        comm: &Comm,
        settings: Settings,
        begin: impl FnOnce(&mut Replica<T>) -> Result<(Replicas<T>, Agreement)>,
    ) -> Result<Self> {
        let images = Images::training();
        let mut sampler = sampler(images.len(), comm, settings.seed);
        let (ranks, batch_size) = (comm.size(), settings.batch_size);
        if batch_size == 0 || sampler.len() < batch_size {
            return Err(Error::BatchTooLarge { ranks, batch_size, images: images.len() });
        }
        // Every rank draws different weights: equal replicas come from the broadcast, not from the
        // seed.
        let model = Mlp::new(&SIZES, settings.seed.wrapping_add(comm.rank() as u64));
        let lengths = model.parameters().map(|parameter| parameter.numbers.len());
        // Without parameters if the state is sharded.
        let lengths = lengths.filter(|_| settings.local.is_some() || !settings.state.is_sharded());
        let optimizer = Optimizer::new(settings.update(), lengths);
        let mut replica = Replica { model, optimizer, pass: Pass::default() };
        let (replicas, Agreement { position, steps, .. }) = begin(&mut replica)?;
        sampler.restore(position)?;
        Ok(Self {
            comm: comm.clone(),
            settings,
            images,
            held_out: Images::held_out(),
            sampler,
            replica,
            replicas,
            batch: Batch::default(),
            position,
            updates: steps,
            sums: Sums::default(),
        })
    }

    /// Returns this rank's number in the present group.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.comm.rank()
    }

    /// Returns the steps per epoch. Images that do not fill a last step are not used in that epoch;
    /// the next epoch shuffles again.
    #[must_use]
    pub fn steps(&self) -> usize {
        self.sampler.len() / self.settings.batch_size
    }

    /// Trains on all images once, then evaluates the held-out ones. `epoch` counts from 1;
    /// `before_step` is called with the images of each step. Continues in the middle of an epoch
    /// that failed, after [`Trainer::continue_with`].
    ///
    /// # Errors
    /// If the ranks cannot communicate.
    pub fn epoch(&mut self, epoch: usize, mut before_step: impl FnMut(&[usize])) -> Result<EpochReport> {
        if self.position.epoch != epoch as u64 {
            self.sampler.set_epoch(epoch as u64);
            self.position = self.sampler.state();
        }
        let began = Instant::now();
        while self.sampler.len() >= self.settings.batch_size {
            let batch = self.sampler.next_batch(self.settings.batch_size);
            before_step(&batch);
            self.images.fill(&mut self.batch, batch);
            let step: StepReport = self.replicas.step(&mut self.replica, &self.batch)?;
            self.position = self.sampler.state();
            self.updates += 1;
            if self.sums.epoch != self.position.epoch {
                self.sums = Sums { epoch: self.position.epoch, ..Sums::default() };
            }
            self.sums.add(&step, self.settings.batch_size * self.comm.size());
        }
        self.sums.elapsed += began.elapsed();
        let Sums { loss, steps, images, elapsed, communicating, waiting, .. } = self.sums;
        Ok(EpochReport {
            epoch,
            loss: self.mean(loss / steps.max(1) as f64)?,
            accuracy: self.accuracy()?,
            images_per_second: images as f64 / elapsed.as_secs_f64(),
            elapsed,
            communicating,
            waiting,
        })
    }

    /// Continues with another group of ranks, from the last step that any of them has completed,
    /// with its weights, optimizer state and position in the data. Every rank of the group calls
    /// this, or [`Trainer::join`] if it is new. Returns the epoch to continue with.
    ///
    /// # Errors
    /// If the ranks cannot communicate: then this may be called again with those that remain.
    pub fn continue_with(&mut self, comm: &Comm) -> Result<usize> {
        self.comm = comm.clone();
        let agreed = agree_on_position(comm, self.position, self.updates, self.images.len())?;
        if !self.settings.state.is_sharded() {
            copy_state(comm, &mut self.replica, &agreed)?;
            (self.position, self.updates) = (agreed.position, agreed.steps);
        }
        let model = &mut self.replica.model;
        self.replicas.replace(comm, parameter_set(model)?, &self.settings, model)?;
        // Sharded state changes only when all ranks have it, and the position with it.
        (self.position, self.updates) = (agreed.position, agreed.steps);
        self.sampler = sampler(self.images.len(), comm, self.settings.seed);
        self.sampler.restore(self.position)?;
        Ok(self.position.epoch as usize)
    }

    /// Returns the position in the data after the last complete step.
    #[must_use]
    pub const fn position(&self) -> SamplerState {
        self.position
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

    /// Returns the bytes that this rank has sent for training, without broadcasts and evaluations.
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
    use comm::ShrinkOptions;

    use super::*;

    const SETTINGS: Settings = Settings {
        batch_size: 100,
        learning_rate: 0.05,
        rule: Rule::SGD,
        seed: 3,
        local: None,
        state: StateLayout::Replicated,
    };

    const SMALL_STEPS: Settings = Settings { batch_size: 20, ..SETTINGS };

    #[test]
    fn one_bit_on_one_rank_is_a_difference() {
        let found = comm::threads::run(3, |comm| {
            let mut trainer = Trainer::<f32>::new(&comm, SETTINGS).unwrap();
            trainer.epoch(1, |_| ()).unwrap();
            let before = trainer.replicas_identical().unwrap();
            if comm.rank() == 2 {
                let bias = trainer.replica.model.parameters_mut().last().unwrap();
                bias[9] = f32::from_bits(bias[9].to_bits() ^ 1);
            }
            (before, trainer.replicas_identical().unwrap())
        });
        assert_eq!(found.unwrap(), [(true, false); 3]);
    }

    /// The images of a step that a rank has begun: those of its group with this number, and the
    /// position before the step.
    type Begun = (usize, SamplerState, Vec<usize>);

    /// Trains until an epoch. Leaves in the middle of one, if a rank is to. Goes on after others
    /// have left. Returns the images of every step that was begun.
    fn train_until(
        epochs: usize,
        leaves_after: Option<usize>,
        comm: &Comm,
        state: StateLayout,
    ) -> Vec<Begun> {
        let (mut comm, mut group, mut begun) = (comm.clone(), 0, Vec::new());
        let (mut trainer, mut epoch) =
            Trainer::<f32>::join(&comm, Settings { state, ..SMALL_STEPS }).unwrap();
        let mut position = trainer.position();
        while epoch <= epochs {
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                trainer.epoch(epoch, |images| {
                    if position.epoch != epoch as u64 {
                        (position.epoch, position.consumed) = (epoch as u64, 0);
                    }
                    begun.push((group, position, images.to_vec()));
                    position.consumed += images.len() * comm.size();
                    if leaves_after == Some(begun.len()) {
                        std::panic::resume_unwind(Box::new("leaves"));
                    }
                })
            }));
            match outcome {
                Err(_) => return begun,
                Ok(Ok(_)) => epoch += 1,
                Ok(Err(error)) => {
                    assert!(error.is_failure_of_ranks(), "{error}");
                    comm = comm.shrink(&ShrinkOptions::default()).unwrap().comm;
                    (group, epoch) = (group + 1, trainer.continue_with(&comm).unwrap());
                    position = trainer.position();
                    // Marks where the group begins.
                    begun.push((group, position, Vec::new()));
                }
            }
        }
        begun
    }

    #[test]
    fn every_image_of_an_epoch_is_used_once_when_ranks_leave() {
        check_images(StateLayout::Replicated);
        check_images(StateLayout::ShardedWithCopies);
    }

    fn check_images(state: StateLayout) {
        let leaves = [Some(7), None, Some(40), None];
        let found = comm::threads::run(4, |comm| train_until(3, leaves[comm.rank()], &comm, state)).unwrap();
        let begins: Vec<SamplerState> = found[1]
            .iter()
            .filter(|(_, _, images)| images.is_empty())
            .map(|(_, position, _)| *position)
            .collect();
        assert_eq!(begins.len(), 2, "two groups after the first");
        let is_before = |a: &SamplerState, b: &SamplerState| (a.epoch, a.consumed) < (b.epoch, b.consumed);
        for epoch in 1..=3 {
            let mut used = vec![0; Images::training().len()];
            for (group, position, images) in found.iter().flatten() {
                let is_redone = begins.get(*group).is_some_and(|begin| !is_before(position, begin));
                if position.epoch == epoch && !is_redone {
                    images.iter().for_each(|image| used[*image] += 1);
                }
            }
            assert!(used.iter().all(|times| *times <= 1), "epoch {epoch}");
            // The last group of the epoch has dropped what is not enough for a step.
            let groups = begins.iter().take_while(|begin| begin.epoch <= epoch).count();
            let last = begins[..groups].last().filter(|begin| begin.epoch == epoch);
            let left = used.len() - last.map_or(0, |begin| begin.consumed);
            let unused = used.iter().filter(|times| **times == 0).count();
            let step = (4 - groups) * SMALL_STEPS.batch_size;
            assert_eq!(unused, left % step, "epoch {epoch}");
        }
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
