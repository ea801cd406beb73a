//! The handle for training loops.

use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::TensorData;
use comm_core::{Comm, ReduceOp};
use comm_ddp::BucketLimits;

use crate::agreement::agree_to_continue;
use crate::averager::Averager;
use crate::error::or_abort;
use crate::gradients::{self, Presence};
use crate::parameters::Parameters;
use crate::values::{self, Values, flush_statistics};
use crate::{Error, Report, Result};

/// Options of [`DataParallel`]. All ranks use those of rank 0.
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct Options {
    /// The sizes at which buckets of gradients are full: 1 MiB, then 25 MiB.
    pub limits: BucketLimits,
    /// Whether parameters that require gradients may have none on any rank in the first step.
    pub allow_unused: bool,
}

/// Setters, as in `Options::default().allow_unused(true)`.
impl Options {
    comm_core::setters!(limits: BucketLimits, allow_unused: bool);
}

/// A replica of a module that is trained together with the replicas of all other ranks.
///
/// Parameters are identified by their path in the module, as in `encoder.0.weight`, because burn's
/// ids are different in every process.
///
/// Gradients are packed into buckets, which are allocated once and sent by another thread while the
/// next one is packed. Communication begins when backward has ended, because burn's backward does
/// not report single gradients. Tensors on other devices are copied to host memory and back.
#[derive(Debug)]
pub struct DataParallel {
    comm: Comm,
    parameters: Parameters,
    averager: Averager,
    /// Whether parameters may have no gradient on any rank. The options decide for the first step;
    /// in later steps they may.
    allow_unused: bool,
}

impl DataParallel {
    /// Prepares to train a module. This is a collective: every rank calls it with the same module.
    ///
    /// Parameters that require gradients on any rank are trained; later changes of `require_grad`
    /// have no effect on the replicas. While a call runs, the communicator must not be used for
    /// anything else.
    ///
    /// # Errors
    /// [`Error::Ranks`] with a [`Mismatch`](crate::Mismatch) if paths, shapes or types of
    /// parameters are not the same on all ranks, or if communication fails; [`Error::Type`] for
    /// parameters that cannot be communicated, and [`Error::Refused`] on the other ranks.
    pub fn new<M: Module>(module: &M, comm: &Comm) -> Result<Self> {
        Self::with_options(module, comm, Options::default())
    }

    /// Does the same as [`DataParallel::new`] with other options.
    ///
    /// # Errors
    /// As [`DataParallel::new`].
    pub fn with_options<M: Module>(module: &M, comm: &Comm, options: Options) -> Result<Self> {
        let parameters = Parameters::agree(module, comm)?;
        let averager = Averager::new(comm, &parameters, options.limits)?;
        let mut allow_unused = [u8::from(options.allow_unused)];
        comm.broadcast(0, &mut allow_unused)?;
        let allow_unused = allow_unused != [0];
        Ok(Self { comm: comm.clone(), parameters, averager, allow_unused })
    }

    /// Returns the module with the values of rank 0. This is a collective.
    ///
    /// All parameters are copied, including integers, booleans, frozen ones and running statistics.
    /// They keep their ids, so an optimizer may be created and used before or after. They also keep
    /// their devices and whether they require gradients.
    ///
    /// # Errors
    /// [`Error::Changed`], and [`Error::Refused`] on the other ranks, before any value is sent;
    /// [`Error::Ranks`] if communication fails; [`Error::Read`] if burn cannot read a tensor, which
    /// aborts the communicator.
    pub fn sync_module<M: Module>(&mut self, module: M) -> Result<M> {
        let all = vec![true; self.parameters.sorted.len()];
        self.broadcast(module, &all)
    }

    /// Replaces gradients with their averages over all ranks, which have the same bits on every
    /// rank. This is a collective, called between backward and the step of the optimizer.
    ///
    /// Afterwards, a parameter for which any rank had a gradient has one on every rank, and the
    /// others have none.
    ///
    /// # Errors
    /// [`Error::Gradient`], [`Error::NotTrained`] or [`Error::Changed`] before any gradient is
    /// sent, and [`Error::Refused`] on the other ranks; [`Error::LostGradients`] on all ranks in
    /// the first step: gradients are unchanged, and all ranks may call again. [`Error::Ranks`] if
    /// communication fails, and [`Error::Read`], which aborts the communicator; then the gradients
    /// are unspecified, and every later call fails.
    pub fn sync_gradients<M: Module>(
        &mut self,
        module: &M,
        gradients: &mut GradientsParams,
    ) -> Result<Report> {
        let presence = Presence::agree(&self.comm, &self.parameters, module, gradients)?;
        let report = presence.report(&self.parameters);
        if !self.allow_unused && !report.without_gradient.is_empty() {
            return Err(Error::LostGradients { names: report.without_gradient });
        }
        let averaged = self.average(module, gradients, &presence.anywhere);
        or_abort(&self.comm, averaged)?;
        self.allow_unused = true;
        Ok(report)
    }

    fn average<M: Module>(
        &mut self,
        module: &M,
        gradients: &mut GradientsParams,
        anywhere: &[bool],
    ) -> Result<()> {
        let mut values = gradients::take(&self.parameters, module, gradients)?;
        self.averager.average(&self.parameters, &mut values, anywhere)?;
        gradients::put(&self.parameters, module, gradients, values);
        Ok(())
    }

    /// Returns the module with the buffers of rank 0: running statistics, integers and booleans.
    /// This is a collective.
    ///
    /// Every rank computes the statistics of its own samples. Call this before validation, or
    /// before a checkpoint is saved.
    ///
    /// # Errors
    /// As [`DataParallel::sync_module`].
    pub fn broadcast_buffers<M: Module>(&mut self, module: M) -> Result<M> {
        let buffer = self.parameters.buffer.clone();
        self.broadcast(module, &buffer)
    }

    /// Returns the module with its running statistics averaged over all ranks, computed in `f64`.
    /// This is a collective.
    ///
    /// Integers and booleans keep their values. An average of variances does not include the
    /// variance between the means of the ranks.
    ///
    /// # Errors
    /// As [`DataParallel::sync_module`].
    pub fn average_buffers<M: Module>(&mut self, module: M) -> Result<M> {
        agree_to_continue(&self.comm, self.parameters.check_unchanged(&module), &mut Vec::new())?;
        flush_statistics(&module);
        let is_statistic =
            |at: usize| self.parameters.buffer[at] && self.parameters.sorted[at].dtype.is_float();
        let selected: Vec<bool> = (0..self.parameters.buffer.len()).map(is_statistic).collect();
        let read = values::read(&module, &self.parameters, &selected);
        let mut values = or_abort(&self.comm, read)?;
        self.average_in_f64(&mut values)?;
        Ok(values::put(module, &self.parameters, values))
    }

    fn average_in_f64(&self, values: &mut Values) -> Result<()> {
        let mut values: Vec<&mut TensorData> = values.iter_mut().flatten().collect();
        let mut numbers: Vec<Vec<f64>> = values.iter().map(|value| value.iter().collect()).collect();
        self.comm.all_reduce_coalesced(&mut numbers, ReduceOp::Avg)?;
        for (value, average) in values.iter_mut().zip(numbers) {
            **value = TensorData::new(average, value.shape().clone()).convert_dtype(value.dtype());
        }
        Ok(())
    }

    fn broadcast<M: Module>(&self, module: M, selected: &[bool]) -> Result<M> {
        agree_to_continue(&self.comm, self.parameters.check_unchanged(&module), &mut Vec::new())?;
        broadcast(&self.comm, module, &self.parameters, selected)
    }
}

/// Replaces the selected values of a module with the values of rank 0. This is a collective.
pub(crate) fn broadcast<M: Module>(
    comm: &Comm,
    module: M,
    parameters: &Parameters,
    selected: &[bool],
) -> Result<M> {
    flush_statistics(&module);
    or_abort(comm, values::broadcast(comm, module, parameters, selected))
}
