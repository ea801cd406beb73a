//! Averages of gradients, packed into the buckets of `comm-ddp`.

use comm_core::Comm;
use comm_ddp::{BucketLimits, DataParallel, Options, ParameterSet};

use crate::elements::{from_bytes, view, view_mut};
use crate::parameters::Parameters;
use crate::values::Values;
use crate::{Error, Result};

/// Averages the gradients of a module, step by step.
#[derive(Debug)]
pub(crate) struct Averager {
    replicas: DataParallel,
    /// The positions of trained parameters among all parameters.
    members: Vec<usize>,
}

impl Averager {
    /// Creates an averager of the gradients of trained parameters. This is a collective.
    pub(crate) fn new(comm: &Comm, parameters: &Parameters, limits: BucketLimits) -> Result<Self> {
        let members: Vec<usize> = (0..parameters.sorted.len()).filter(|at| parameters.trained[*at]).collect();
        let described = ParameterSet::new(members.iter().map(|at| parameters.sorted[*at].describe()))?;
        // All gradients of a backward pass become ready together, so the first step shows no order.
        let options = Options::default().limits(limits).follow_first_step(false);
        // Every call waits for its buckets before it returns, so no other call runs at the same
        // time.
        let replicas = DataParallel::over(comm.clone(), described, options)?;
        Ok(Self { replicas, members })
    }

    /// Replaces the gradients of this rank with the averages over all ranks. A gradient that this
    /// rank does not have counts as zero, and one that no rank has remains absent.
    pub(crate) fn average(
        &mut self,
        parameters: &Parameters,
        gradients: &mut Values,
        anywhere: &[bool],
    ) -> Result<()> {
        let unreadable = |at: usize| move |error| Error::read(&parameters.sorted[at].name, error);
        let mut step = self.replicas.step()?;
        // In reverse, the order in which buckets are filled, so that the first is sent while the
        // second is packed.
        for (index, at) in self.members.iter().copied().enumerate().rev() {
            if let Some(gradient) = &gradients[at] {
                step.ready(index, &view(gradient).map_err(unreadable(at))?)?;
            }
        }
        let averaged = step.finish()?;
        for (index, at) in self.members.iter().copied().enumerate().filter(|(_, at)| anywhere[*at]) {
            if let Some(gradient) = &mut gradients[at] {
                averaged.copy_to(index, view_mut(gradient).map_err(unreadable(at))?)?;
            } else {
                let parameter = &parameters.sorted[at];
                gradients[at] = from_bytes(parameter.dtype, &parameter.shape, averaged.view(index)?.bytes());
            }
        }
        Ok(())
    }
}
