//! The handle for training loops.

use candle_core::Tensor;
use candle_core::backprop::GradStore;
use candle_nn::VarMap;
use comm_core::{Comm, Host};

use crate::agreement::agree_to_continue;
use crate::call::StepGradients;
use crate::error::or_abort;
use crate::host::Buckets;
use crate::lost::trained;
use crate::place::Average;
use crate::variables::Variables;
use crate::{LostGradients, Options, Place, Report, Result, Segments, compare_replicas};

/// A replica of a model that is trained together with the replicas of all other ranks.
///
/// In host memory, gradients are packed into buckets, which are allocated once and sent by another
/// thread while the next one is packed. On a GPU gradients are averaged in place.
///
/// candle's backward returns all gradients at its end, after which [`DataParallel::sync_gradients`]
/// averages them. [`DataParallel::backward`] runs backward in segments, so that communication
/// overlaps with it.
#[derive(Debug)]
pub struct DataParallel<M: Place = Host> {
    comm: Comm<M>,
    variables: Variables,
    averager: M::Averager,
    /// The response to lost gradients in the next step.
    lost_gradients: LostGradients,
}

impl<M: Place> DataParallel<M> {
    /// Prepares to train the model with these variables. This is a collective: every rank calls it
    /// with the same model. In host memory it duplicates the communicator; on GPUs, the
    /// communicator must not be used for anything else while [`DataParallel::sync_gradients`] runs.
    ///
    /// All variables must already exist; [`DataParallel::sync_gradients`] returns an error if one
    /// is added later.
    ///
    /// # Errors
    /// [`Error::Ranks`](crate::Error::Ranks) with a [`Mismatch`](crate::Mismatch) if names, shapes
    /// or types of variables are not the same on all ranks, or if communication fails;
    /// [`Error::Type`](crate::Error::Type) or [`Error::Place`](crate::Error::Place) for variables
    /// that cannot be communicated.
    pub fn new(variables: &VarMap, comm: &Comm<M>) -> Result<Self> {
        Self::over(variables, M::duplicate(comm)?)
    }

    /// Prepares to train over `comm` itself.
    pub(crate) fn over(variables: &VarMap, comm: Comm<M>) -> Result<Self> {
        let variables = Variables::agree(variables, &comm)?;
        let averager = M::averager(&comm, variables.sorted())?;
        Ok(Self { comm, variables, averager, lost_gradients: LostGradients::Warn })
    }

    /// Sets the response to variables for which no rank has a gradient in the next step, the same
    /// on all ranks. After that step, missing gradients are allowed.
    pub const fn set_lost_gradients(&mut self, response: LostGradients) {
        self.lost_gradients = response;
    }

    /// Broadcasts the variables of rank 0. This is a collective.
    ///
    /// # Errors
    /// [`Error::Changed`](crate::Error::Changed), and [`Error::Refused`](crate::Error::Refused) on
    /// the other ranks, before any variable is sent; [`Error::Ranks`](crate::Error::Ranks) if
    /// communication fails, after which the variables are unspecified.
    pub fn sync_model(&mut self) -> Result<()> {
        agree_to_continue(&self.comm, self.variables.check_unchanged(), &mut Vec::new())?;
        self.variables.broadcast(&self.comm)
    }

    /// Replaces gradients with their averages over all ranks, which have the same bits on every
    /// rank. This is a collective.
    ///
    /// A gradient keeps its memory if nothing shares it, and is replaced by another tensor
    /// otherwise. Afterwards, a variable for which any rank had a gradient has one on every rank,
    /// and the others have none.
    ///
    /// # Errors
    /// [`Error::Gradient`](crate::Error::Gradient), [`Error::Integers`](crate::Error::Integers) or
    /// [`Error::Changed`](crate::Error::Changed) before any gradient is sent, and
    /// [`Error::Refused`](crate::Error::Refused) on the other ranks: gradients are unchanged, and
    /// all ranks may call again; [`Error::LostGradients`](crate::Error::LostGradients) on all ranks
    /// as well, if set to do so. [`Error::Ranks`](crate::Error::Ranks) if communication fails, and
    /// [`Error::Candle`](crate::Error::Candle), which aborts the communicator; then the gradients
    /// are unspecified, and every later call fails.
    pub fn sync_gradients(&mut self, gradients: &mut GradStore) -> Result<Report> {
        let mut call = StepGradients::agree(&self.comm, &self.variables, gradients)?;
        self.lost_gradients.check(&call.without_gradient(), trained(self.variables.sorted()))?;
        or_abort(&self.comm, self.averager.average(&mut call))?;
        Ok(call.report())
    }
}

impl DataParallel<Host> {
    /// Does the same as [`DataParallel::new`] with other options.
    ///
    /// # Errors
    /// As [`DataParallel::new`].
    pub fn with_options(variables: &VarMap, comm: &Comm, options: Options) -> Result<Self> {
        let comm = comm.duplicate()?;
        let variables = Variables::agree(variables, &comm)?;
        let options = options.agree(&comm, 0)?;
        let averager = Buckets::new(&comm, variables.sorted(), options)?;
        Ok(Self { comm, variables, averager, lost_gradients: options.lost_gradients })
    }

    /// Does the same as [`check_replicas`](crate::check_replicas), over the communicator of the
    /// replicas. This is a collective.
    ///
    /// So if a rank makes more steps than the others, every rank gets an error that names the two
    /// calls. Over another communicator, the ranks would wait for each other until the deadline.
    ///
    /// # Errors
    /// [`Error::Ranks`](crate::Error::Ranks) with [`comm_ddp::Error::Diverged`], the same on every
    /// rank, which names the first variable that differs; otherwise as
    /// [`DataParallel::sync_model`], with the variables unchanged.
    pub fn check_replicas(&mut self) -> Result<()> {
        agree_to_continue(&self.comm, self.variables.check_unchanged(), &mut Vec::new())?;
        compare_replicas(&self.variables, &self.comm)
    }

    /// Runs backward in segments and averages gradients over all ranks while it runs. This is a
    /// collective.
    ///
    /// Returns the averages, which have the same bits on every rank, and the same as those of
    /// [`DataParallel::sync_gradients`] after an uncut backward (see [`Segments`] for the
    /// exceptions). Buckets follow the order in which the gradients of rank 0 became ready in the
    /// first step.
    ///
    /// # Errors
    /// [`Error::LostGradients`](crate::Error::LostGradients) on all ranks, after which all may call
    /// again. [`Error::Changed`](crate::Error::Changed) and
    /// [`Error::Candle`](crate::Error::Candle), which abort this replica's communicator so that no
    /// rank waits, and [`Error::Ranks`](crate::Error::Ranks); then every later call fails.
    pub fn backward(&mut self, loss: &Tensor, segments: Segments) -> Result<(GradStore, Report)> {
        or_abort(&self.comm, self.variables.check_unchanged())?;
        let averaged = self.averager.backward(&self.variables, loss, segments, &mut self.lost_gradients);
        or_abort(&self.comm, averaged)
    }
}
