//! Trains one replica together with all others.

use std::f64::consts::LN_2;
use std::fmt;
use std::path::Path;
use std::sync::PoisonError;

use candle_core::backprop::GradStore;
use candle_core::{Tensor, Var};
use candle_nn::{VarMap, loss};
use comm::checkpoint::State;
use comm::ddp::{AdamW, DistributedSampler, Parameter, Remainder};
use comm::{Comm, ReduceOp, ReduceOrder};
use comm_candle::{Options, ZeroOptimizer, check_replicas, checkpoint};

use crate::data::{Text, Windows};
use crate::history::History;
use crate::initial;
use crate::model::Gpt;
use crate::outer::{self, Outer};
use crate::settings::Settings;
use crate::store::Store;
use crate::{Error, Result};

/// A replica of the model with its optimizer and data.
///
/// All methods that return a [`Result`] are collectives: every rank calls them.
pub struct Trainer {
    /// Its reductions have the same bits whatever the length and the algorithm.
    comm: Comm,
    /// The ranks that average gradients: all, or this one alone between outer steps.
    inner: Comm,
    settings: Settings,
    training: Windows,
    validation: Windows,
    sampler: DistributedSampler,
    variables: VarMap,
    model: Gpt,
    optimizer: ZeroOptimizer<AdamW>,
    outer: Option<Outer>,
    steps: u64,
    /// The step from which this process continued.
    first: u64,
    history: History,
    /// This rank's losses of the last steps, which are not in the history yet.
    losses: Vec<f64>,
}

impl Trainer {
    /// Creates a replica, with the same parameters on every rank.
    ///
    /// # Errors
    /// [`Error::Batch`] and [`Error::TextTooShort`]; otherwise if the ranks cannot communicate.
    pub fn new(comm: &Comm, text: &Text, settings: Settings) -> Result<Self> {
        let comm = comm.with_reduce_order(ReduceOrder::Deterministic);
        let length = settings.size.context;
        let training = Windows::new(text, text.training(), length);
        let validation = Windows::new(text, text.validation(), length);
        settings.check(comm.size(), training.count(), validation.count())?;
        let sampler = DistributedSampler::new(training.count(), comm.group())
            .shuffle(settings.seed)
            .remainder(Remainder::Drop);
        let variables = VarMap::new();
        let model = Gpt::new(settings.size, &initial::builder(&variables, settings.seed))?;
        // Matrices decay, weights of norms do not.
        let rule = |parameter: &Parameter| {
            let decay = if parameter.shape().len() > 1 { Settings::WEIGHT_DECAY } else { 0.0 };
            AdamW::new(settings.learning_rate).beta2(0.95).weight_decay(decay)
        };
        let options = Options::DEFAULT.max_norm(Some(Settings::NORM_MAX));
        let alone = settings.local.map(|_| comm.split(Some(comm.rank() as u64), 0)).transpose()?.flatten();
        let inner = alone.unwrap_or_else(|| comm.clone());
        let optimizer = ZeroOptimizer::with_options(&variables, &inner, options, rule)?;
        let outer =
            settings.local.map(|local| Outer::new(&comm, local, parameters(&variables))).transpose()?;
        Ok(Self {
            comm,
            inner,
            settings,
            training,
            validation,
            sampler,
            variables,
            model,
            optimizer,
            outer,
            steps: 0,
            first: 0,
            history: History::default(),
            losses: Vec::new(),
        })
    }

    /// Trains on one batch. Returns the loss of this rank in bits per byte.
    ///
    /// # Errors
    /// [`Error::Untrained`] in the first step; [`Error::Diverged`]; otherwise if the ranks cannot
    /// communicate.
    pub fn step(&mut self) -> Result<f64> {
        let share = self.settings.batch / self.comm.size();
        if self.sampler.len() < share {
            self.sampler.set_epoch(self.sampler.state().epoch + 1);
        }
        let windows = self.training.tensors(&self.sampler.next_batch(share))?;
        let loss = self.loss(&windows)?;
        let gradients = loss.backward()?;
        self.steps += 1;
        if self.steps == 1 {
            self.check_gradients(&gradients)?;
        }
        let rate = self.settings.learning_rate(self.steps);
        self.optimizer.settings_mut().for_each(|(_, rule)| rule.learning_rate = rate);
        let report = self.optimizer.step(&gradients)?;
        if report.norm().is_some_and(|norm| !norm.is_finite()) {
            return Err(Error::Diverged { step: self.steps });
        }
        if let Some(outer) = &mut self.outer {
            outer.step()?;
        }
        let bits = bits(&loss)?;
        self.losses.push(bits);
        Ok(bits)
    }

    /// Returns an error if a parameter has no gradient, or only zeros: candle loses gradients in
    /// silence.
    fn check_gradients(&self, gradients: &GradStore) -> Result<()> {
        let mut names = Vec::new();
        for (name, parameter) in parameters(&self.variables) {
            let square =
                gradients.get(&parameter).map(|gradient| gradient.sqr()?.sum_all()?.to_scalar::<f32>());
            // NaN is not above 0 either.
            if square.transpose()?.is_none_or(|square| square.partial_cmp(&0.0).is_none_or(|it| it.is_le())) {
                names.push(name);
            }
        }
        if names.is_empty() { Ok(()) } else { Err(Error::Untrained { names }) }
    }

    /// Returns the mean loss in nats of windows and the bytes to predict.
    fn loss(&self, (inputs, targets): &(Tensor, Tensor)) -> Result<Tensor> {
        Ok(loss::cross_entropy(&self.model.forward(inputs)?, targets)?)
    }

    /// Validates the model on a sample of the validation part, and adds this loss and the losses of
    /// the last steps to the history. Returns the loss in bits per byte.
    ///
    /// # Errors
    /// If the ranks cannot communicate.
    pub fn validate(&mut self) -> Result<f64> {
        let stride = self.validation.count().div_ceil(Settings::SAMPLE);
        let loss = self.validation_loss(stride)?;
        self.history.validated.push(self.steps);
        self.history.validation.push(loss as f32);
        self.average_losses()?;
        Ok(loss)
    }

    /// Makes the parameters of all ranks equal, if they are not, and returns the loss on the whole
    /// validation part in bits per byte.
    ///
    /// # Errors
    /// If the ranks cannot communicate.
    pub fn finish(&mut self) -> Result<f64> {
        self.outer.as_mut().map_or(Ok(()), Outer::synchronize)?;
        self.validation_loss(1)
    }

    /// Returns the loss of the global parameters on every `stride`-th window of the validation part
    /// in bits per byte. Each rank evaluates a part of them.
    fn validation_loss(&self, stride: usize) -> Result<f64> {
        let windows: Vec<usize> = (0..self.validation.count()).step_by(stride).collect();
        let own: Vec<usize> =
            windows.iter().copied().skip(self.comm.rank()).step_by(self.comm.size()).collect();
        let sum = || -> Result<f64> {
            let batches = own.chunks(self.settings.batch / self.comm.size());
            let losses = batches
                .map(|batch| Ok(bits(&self.loss(&self.validation.tensors(batch)?)?)? * batch.len() as f64));
            losses.sum()
        };
        let sum = self.outer.as_ref().map_or_else(sum, |outer| outer.with_global(sum))?;
        Ok(self.comm.all_reduce_scalar(sum, ReduceOp::Sum)? / windows.len() as f64)
    }

    /// Adds the losses of the last steps, averaged over all ranks, to the history.
    fn average_losses(&mut self) -> Result<()> {
        self.comm.all_reduce(&mut self.losses, ReduceOp::Avg)?;
        self.history.training.extend(self.losses.drain(..).map(|loss| loss as f32));
        Ok(())
    }

    /// Opens a folder for checkpoints.
    ///
    /// # Errors
    /// If it cannot be used.
    pub fn open_store(&self, folder: &Path) -> Result<Store> {
        Store::open(&self.comm, self.settings.local.map(|_| &self.inner), folder)
    }

    /// Saves a checkpoint of this step, from which a run continues with the same losses.
    ///
    /// # Errors
    /// If it cannot be saved.
    pub fn save(&mut self, store: &mut Store) -> Result<()> {
        self.average_losses()?;
        let residual = self.outer.as_mut().map_or_else(|| Ok(Vec::new()), Outer::residual)?;
        let mut state = State::new();
        self.optimizer.save_to(&mut state)?;
        if !residual.is_empty() {
            state.tensor(outer::RESIDUAL, &[residual.len()], &residual)?;
        }
        store.save(self.steps, &self.variables, state, |state| {
            state.value("settings", &self.settings)?;
            state.value("sampler", &self.sampler.state())?;
            self.history.save(state)?;
            self.outer.as_mut().map_or(Ok(()), |outer| outer.save_to(state))
        })
    }

    /// Continues from the newest checkpoint. Returns whether there is one.
    ///
    /// # Errors
    /// [`Error::OtherSettings`]; otherwise if it cannot be loaded.
    pub fn restore(&mut self, store: &mut Store) -> Result<bool> {
        let Some((shared, own)) = store.load_latest()? else { return Ok(false) };
        let saved: Settings = shared.value("settings")?;
        if saved != self.settings {
            return Err(Error::OtherSettings { saved: format!("{saved:?}") });
        }
        checkpoint::load(&own, &self.variables)?;
        self.optimizer.load_from(&own)?;
        self.outer.as_mut().map_or(Ok(()), |outer| outer.load_from(&shared, &own))?;
        self.sampler.restore(shared.value("sampler")?)?;
        self.history = History::load(&shared)?;
        (self.steps, self.first) = (shared.step(), shared.step());
        Ok(true)
    }

    /// Returns an error that names a parameter that differs in any bit between ranks.
    ///
    /// # Errors
    /// [`comm::ddp::Error::Diverged`]; otherwise if the ranks cannot communicate.
    pub fn check_replicas(&self) -> Result<()> {
        Ok(check_replicas(&self.variables, &self.comm)?)
    }

    /// The number of steps so far.
    #[must_use]
    pub const fn steps(&self) -> u64 {
        self.steps
    }

    /// The losses up to the last validation or checkpoint.
    #[must_use]
    pub const fn history(&self) -> &History {
        &self.history
    }

    /// The number of bytes in the windows of the validation part.
    #[must_use]
    pub fn validated_bytes(&self) -> usize {
        self.validation.len()
    }

    /// The number of elements of all parameters.
    #[must_use]
    pub fn parameter_count(&self) -> usize {
        parameters(&self.variables).iter().map(|(_, parameter)| parameter.elem_count()).sum()
    }

    /// The bytes that this rank has sent per step to train, on average.
    #[must_use]
    pub fn bytes_per_step(&self) -> f64 {
        let steps = (self.steps - self.first).max(1) as f64;
        self.outer
            .as_ref()
            .map_or_else(|| self.data_parallel_bytes(), |outer| outer.bytes_sent() as f64 / steps)
    }

    /// The bytes that a rank sends in a step of data parallel training: those of a reduce-scatter
    /// of the gradients and an all-gather of the parameters.
    #[must_use]
    pub fn data_parallel_bytes(&self) -> f64 {
        let ranks = self.comm.size() as f64;
        2.0 * 4.0 * self.parameter_count() as f64 * (ranks - 1.0) / ranks
    }
}

impl fmt::Debug for Trainer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trainer")
            .field("settings", &self.settings)
            .field("steps", &self.steps)
            .field("history", &self.history)
            .finish_non_exhaustive()
    }
}

/// Returns the parameters in the order of their names, which is the same on every rank.
fn parameters(variables: &VarMap) -> Vec<(String, Var)> {
    let map = variables.data().lock().unwrap_or_else(PoisonError::into_inner);
    let mut parameters: Vec<_> = map.iter().map(|(name, var)| (name.clone(), var.clone())).collect();
    parameters.sort_by(|(one, _), (other, _)| one.cmp(other));
    parameters
}

/// Converts a loss in nats to bits.
fn bits(loss: &Tensor) -> Result<f64> {
    Ok(f64::from(loss.to_scalar::<f32>()?) / LN_2)
}

#[cfg(test)]
mod tests {
    use comm::ddp::LocalOptions;

    use super::*;

    fn train(ranks: usize, steps: usize) -> Vec<History> {
        let rank = |comm: Comm| {
            let text = Text::first(Settings::TINY.text).unwrap();
            let mut trainer = Trainer::new(&comm, &text, Settings::TINY).unwrap();
            for _ in 0..steps {
                trainer.step().unwrap();
            }
            trainer.validate().unwrap();
            trainer.check_replicas().unwrap();
            trainer.history().clone()
        };
        comm::threads::run(ranks, rank).unwrap()
    }

    #[test]
    fn every_number_of_ranks_has_the_losses_of_one_process() {
        let alone = train(1, 6).remove(0);
        // A model that has learned nothing predicts all bytes alike.
        assert!((alone.training[0] - 8.0).abs() < 0.1 && alone.validation[0] < 7.8, "{alone:?}");
        for ranks in [2, 3] {
            let histories = train(ranks, 6);
            assert!(histories.iter().all(|history| *history == histories[0]));
            let near = |one: &[f32], other: &[f32]| {
                one.len() == other.len() && one.iter().zip(other).all(|(a, b)| (a - b).abs() < 1e-4)
            };
            assert!(near(&histories[0].training, &alone.training), "{histories:?}");
            assert!(near(&histories[0].validation, &alone.validation), "{histories:?}");
        }
    }

    #[test]
    fn ranks_train_alone_between_outer_steps() {
        let local = Some(LocalOptions::new(4).fragments(2));
        let settings = Settings { local, ..Settings::TINY };
        let run = |comm: Comm| {
            let text = Text::first(Settings::TINY.text).unwrap();
            let mut trainer = Trainer::new(&comm, &text, settings).unwrap();
            trainer.check_replicas().unwrap();
            for _ in 0..5 {
                trainer.step().unwrap();
            }
            let between = trainer.check_replicas();
            let Err(Error::Update(comm_candle::Error::Ranks(error))) = between else { panic!("{between:?}") };
            assert!(matches!(error, comm::ddp::Error::Diverged { .. }), "{error}");
            let (global, again) = (trainer.validation_loss(1).unwrap(), trainer.validation_loss(1).unwrap());
            assert_eq!(global, again, "validation has changed the parameters");
            let after = trainer.finish().unwrap();
            trainer.check_replicas().unwrap();
            assert_ne!(after, global);
            after
        };
        let losses = comm::threads::run(3, run).unwrap();
        assert_eq!(losses, [losses[0]; 3]);
    }

    #[test]
    fn parameters_that_no_gradient_reaches_are_named() {
        let refused = comm::threads::run(2, |comm| {
            let text = Text::first(Settings::TINY.text).unwrap();
            let mut trainer = Trainer::new(&comm, &text, Settings::TINY).unwrap();
            // Nothing flows back through zeros.
            let (_, down) = parameters(&trainer.variables)
                .into_iter()
                .find(|(name, _)| name == "block1.down.weight")
                .unwrap();
            down.set(&down.zeros_like().unwrap()).unwrap();
            trainer.step().map_err(|error| error.to_string())
        });
        let expected =
            "no gradient arrives at block1.mlp_norm.weight, block1.up.weight: an operation without backward?";
        assert_eq!(refused.unwrap(), [Err(expected.to_owned()), Err(expected.to_owned())]);
    }

    #[test]
    fn a_batch_that_ranks_cannot_share_is_refused() {
        let refused = comm::threads::run(5, |comm| {
            let text = Text::first(Settings::TINY.text).unwrap();
            Trainer::new(&comm, &text, Settings::TINY).map(drop).map_err(|error| error.to_string())
        });
        let expected = "12 windows per step cannot be shared by 5 ranks equally";
        assert!(refused.unwrap().into_iter().all(|refused| refused == Err(expected.to_owned())));
    }
}
