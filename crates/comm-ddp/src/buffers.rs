//! Buffers of a model: values that forward updates and that are not trained, such as the running
//! statistics of batch normalization.

use comm_core::{AsViewMut, Kernels};

use crate::agreement::check_parameters;
use crate::packed::Packed;
use crate::{BucketLimits, DataParallel, Error, ParameterSet, Result};

/// Buffers are registered once, and made equal on all ranks whenever the program asks for it, for
/// example before every step or before an evaluation. A rank that has no batch left must ask for it
/// at the same points of the program.
impl<M: Kernels> DataParallel<M> {
    /// Registers the buffers of the model, which may be of any type, replacing those registered
    /// before. This is a collective: every rank registers the same buffers.
    ///
    /// # Errors
    /// [`Error::Mismatch`] on every rank if the buffers differ; [`Error::Comm`].
    pub fn register_buffers(&mut self, buffers: ParameterSet) -> Result<()> {
        self.reducer.check()?;
        // No buffer is trained, so it does not matter whether it is marked as frozen.
        let buffers = buffers.trained();
        let checked = check_parameters(&self.comm, &buffers);
        checked.map_err(|error| match error {
            Error::Comm(_) => self.reducer.poison(error),
            _ => error,
        })?;
        // One message per type.
        let limits = BucketLimits { first_bytes: usize::MAX, bytes: usize::MAX };
        self.buffers = Some(Packed::new(&self.comm, buffers, limits)?);
        Ok(())
    }

    /// Gives all ranks the buffers of one rank: the first one that had a batch in the last step, so
    /// that a rank that ran out of batches does not keep stale statistics. Before the first step,
    /// this is rank 0. This is a collective: one broadcast per element type. `values` holds one
    /// buffer each, in the order of registration.
    ///
    /// ```
    /// use comm_ddp::{DataParallel, Options, Parameter, ParameterSet, Result};
    ///
    /// comm::threads::run(2, |comm| -> Result<()> {
    ///     let parameters = ParameterSet::new([Parameter::new::<f32>("weight", [4])])?;
    ///     let mut replicas = DataParallel::new(&comm, parameters, Options::default())?;
    ///     replicas.register_buffers(ParameterSet::new([Parameter::new::<f32>("mean", [2])])?)?;
    ///     let mut mean = [comm.rank() as f32 + 1.0; 2];
    ///     replicas.average_buffers([&mut mean])?;
    ///     assert_eq!(mean, [1.5; 2]);
    ///     Ok(())
    /// })?
    /// .into_iter()
    /// .collect::<Result<Vec<()>>>()?;
    /// # Ok::<_, comm_ddp::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Count`], [`Error::Length`] or [`Error::WrongType`] if `values` does not match the
    /// registered buffers, before anything is sent; [`Error::Comm`], after which the values are
    /// unspecified.
    pub fn broadcast_buffers<V: AsViewMut<M>>(&mut self, values: impl IntoIterator<Item = V>) -> Result<()> {
        let root = self.active.iter().position(|is_active| *is_active).unwrap_or(0);
        self.with_buffers(values, |packed, replicas, values| packed.broadcast(&replicas.comm, root, values))
    }

    /// Gives all ranks the mean of the buffers of all ranks that had a batch in the last step.
    /// Buffers whose type has no mean, such as integers, are broadcast as by
    /// [`DataParallel::broadcast_buffers`]. This is a collective: one call per element type.
    ///
    /// # Errors
    /// As [`DataParallel::broadcast_buffers`].
    pub fn average_buffers<V: AsViewMut<M>>(&mut self, values: impl IntoIterator<Item = V>) -> Result<()> {
        self.with_buffers(values, |packed, replicas, values| {
            packed.average(&replicas.comm, &replicas.active, values)
        })
    }

    fn with_buffers<V: AsViewMut<M>>(
        &mut self,
        values: impl IntoIterator<Item = V>,
        exchange: impl FnOnce(&mut Packed<M>, &Self, &mut [V]) -> Result<()>,
    ) -> Result<()> {
        self.reducer.check()?;
        let mut values: Vec<V> = values.into_iter().collect();
        let Some(mut packed) = self.buffers.take() else {
            let got = values.len();
            return if got == 0 { Ok(()) } else { Err(Error::Count { expected: 0, got }) };
        };
        let checked = packed.set.check_values(&mut values);
        let exchanged = checked.is_ok().then(|| exchange(&mut packed, self, &mut values));
        self.buffers = Some(packed);
        checked?;
        exchanged.unwrap_or(Ok(())).map_err(|error| self.reducer.poison(error))
    }
}
