//! The handle for training loops.

use candle_core::backprop::GradStore;
use candle_nn::VarMap;
use comm_core::{Comm, Host};
use comm_ddp::BucketLimits;

use crate::agreement::go_on;
use crate::call::StepGradients;
use crate::error::or_abort;
use crate::place::Average;
use crate::variables::Variables;
use crate::{Place, Report, Result, host};

/// A replica of a model that is trained together with those of all other ranks.
///
/// In host memory, gradients are packed into buckets, which are allocated once and sent by another
/// thread while the next one is packed. On a GPU gradients are averaged in place.
///
/// Communication begins when candle's backward has ended, because backward does not report single
/// gradients.
#[derive(Debug)]
pub struct DataParallel<M: Place = Host> {
    comm: Comm<M>,
    variables: Variables,
    averager: Box<dyn Average>,
}

impl<M: Place> DataParallel<M> {
    /// Prepares to train the model with these variables. A collective: every rank calls it, with
    /// the same model.
    ///
    /// All variables must exist by now; [`DataParallel::sync_gradients`] returns an error if one is
    /// added later. While that runs, the communicator must not be used for anything else.
    ///
    /// # Errors
    /// [`Error::Ranks`](crate::Error::Ranks) with a [`Mismatch`](crate::Mismatch) if names, shapes
    /// or types of variables are not the same on all ranks, or if communication fails;
    /// [`Error::Type`](crate::Error::Type) or [`Error::Place`](crate::Error::Place) for variables
    /// that cannot be communicated.
    pub fn new(variables: &VarMap, comm: &Comm<M>) -> Result<Self> {
        let variables = Variables::agree(variables, comm)?;
        let averager = M::averager(comm, variables.sorted())?;
        Ok(Self { comm: comm.clone(), variables, averager })
    }

    /// Broadcasts the variables of rank 0. A collective.
    ///
    /// # Errors
    /// [`Error::Changed`](crate::Error::Changed), and [`Error::Refused`](crate::Error::Refused) on
    /// the other ranks, before any variable is sent; [`Error::Ranks`](crate::Error::Ranks) if
    /// communication fails, and then the variables are unspecified.
    pub fn sync_model(&mut self) -> Result<()> {
        go_on(&self.comm, self.variables.check_unchanged(), &mut Vec::new())?;
        self.variables.broadcast(&self.comm)
    }

    /// Replaces gradients by their averages over all ranks: the same bits on every rank. A
    /// collective.
    ///
    /// A gradient keeps its memory if nothing shares it, and is replaced by another tensor
    /// otherwise. A variable of which any rank had a gradient has one on every rank afterwards, and
    /// the others have none.
    ///
    /// # Errors
    /// [`Error::Gradient`](crate::Error::Gradient), [`Error::Integers`](crate::Error::Integers) or
    /// [`Error::Changed`](crate::Error::Changed) before any gradient is sent, and
    /// [`Error::Refused`](crate::Error::Refused) on the other ranks: gradients are unchanged, and
    /// all ranks may call again. [`Error::Ranks`](crate::Error::Ranks) if communication fails, and
    /// [`Error::Candle`](crate::Error::Candle), which aborts the communicator; then the gradients
    /// are unspecified, and every later call fails.
    pub fn sync_gradients(&mut self, gradients: &mut GradStore) -> Result<Report> {
        let mut call = StepGradients::agree(&self.comm, &self.variables, gradients)?;
        or_abort(&self.comm, self.averager.average(&mut call))?;
        Ok(call.report())
    }
}

impl DataParallel<Host> {
    /// Does the same as [`DataParallel::new`] with other bucket limits than 1 MiB, then 25 MiB. All
    /// ranks use the limits of rank 0.
    ///
    /// # Errors
    /// As [`DataParallel::new`].
    pub fn with_limits(variables: &VarMap, comm: &Comm, limits: BucketLimits) -> Result<Self> {
        let variables = Variables::agree(variables, comm)?;
        let averager = host::averager(comm, variables.sorted(), limits)?;
        Ok(Self { comm: comm.clone(), variables, averager })
    }
}
