//! The values of parameters: read from a module, broadcast from rank 0, and put into a module.

use burn::module::{Module, Param};
use burn::tensor::{Bool, Int, Tensor, TensorData, TensorReadError};
use comm_core::Comm;
use comm_ddp::__private::bucket_ranges;
use comm_ddp::BucketLimits;

use crate::elements::{from_bytes, to_bools, to_sent};
use crate::parameters::{ModuleParameter, Parameters};
use crate::walk::{self, ReadParameters, ReplaceParameters};
use crate::{Error, Result};

/// The size at which a bucket of values is full.
const BUCKET_BYTES: usize = BucketLimits::DEFAULT.bytes;

/// Values by the position of their parameter, as they are sent. `None` for parameters that are not
/// affected.
pub(crate) type Values = Vec<Option<TensorData>>;

/// Applies the updates that forward passes have deferred to the running statistics of a module.
///
/// burn keeps the newest update of a statistic separate until the next forward pass. Until then the
/// update cannot be read, and it would later replace a value that is put into the module.
pub(crate) fn flush_statistics<M: Module>(module: &M) {
    // This is the only public function that applies them without replacing the statistics.
    drop(module.valid());
}

/// Reads the selected values of a module.
pub(crate) fn read<M: Module>(module: &M, parameters: &Parameters, selected: &[bool]) -> Result<Values> {
    let values = vec![None; selected.len()];
    let mut reader = ReadValues { parameters, selected, values, failed: None };
    walk::read(module, &mut reader);
    reader.failed.map_or(Ok(reader.values), Err)
}

/// Puts values into a module. Parameters keep their id, their device and whether they require
/// gradients.
pub(crate) fn put<M: Module>(module: M, parameters: &Parameters, values: Values) -> M {
    walk::replace(module, &mut PutValues { parameters, values })
}

/// Replaces the selected values of a module with the values of rank 0, packed into buckets so that
/// small ones do not cost a call each. Only bytes are sent, so different types share buckets. This
/// is a collective.
pub(crate) fn broadcast<M: Module>(
    comm: &Comm,
    module: M,
    parameters: &Parameters,
    selected: &[bool],
) -> Result<M> {
    let is_root = comm.rank() == 0;
    let mut values = if is_root { read(&module, parameters, selected)? } else { vec![None; selected.len()] };
    let positions: Vec<usize> = (0..selected.len()).filter(|at| selected[*at]).collect();
    let bytes: Vec<usize> = positions.iter().map(|at| parameters.sorted[*at].bytes()).collect();
    for members in bucket_ranges(&bytes, BUCKET_BYTES) {
        let members = &positions[members];
        let mut bucket: Vec<u8> = Vec::new();
        for at in members {
            let value = values[*at].as_ref().map(TensorData::as_bytes).unwrap_or_default();
            bucket.extend_from_slice(value);
        }
        bucket.resize(members.iter().map(|at| parameters.sorted[*at].bytes()).sum(), 0);
        comm.broadcast(0, &mut bucket)?;
        if !is_root {
            unpack(parameters, members, &bucket, &mut values);
        }
    }
    Ok(if is_root { module } else { put(module, parameters, values) })
}

fn unpack(parameters: &Parameters, members: &[usize], bucket: &[u8], values: &mut Values) {
    let mut rest = bucket;
    for at in members {
        let ModuleParameter { dtype, shape, .. } = &parameters.sorted[*at];
        let (value, after) = rest.split_at(parameters.sorted[*at].bytes());
        values[*at] = from_bytes(*dtype, shape, value);
        rest = after;
    }
}

struct ReadValues<'v> {
    parameters: &'v Parameters,
    selected: &'v [bool],
    values: Values,
    failed: Option<Error>,
}

impl ReadValues<'_> {
    fn add<E: Into<TensorReadError>>(&mut self, name: &str, read: impl FnOnce() -> Result<TensorData, E>) {
        let Some(at) = self.parameters.position(name).filter(|at| self.selected[*at]) else { return };
        match read() {
            Ok(data) => self.values[at] = Some(to_sent(data)),
            Err(error) => self.failed = self.failed.take().or(Some(Error::read(name, error))),
        }
    }
}

impl ReadParameters for ReadValues<'_> {
    fn float<const D: usize>(&mut self, name: String, parameter: &Param<Tensor<D>>) {
        self.add(&name, || parameter.base().try_into_data());
    }

    fn int<const D: usize>(&mut self, name: String, parameter: &Param<Tensor<D, Int>>) {
        self.add(&name, || parameter.base().try_into_data());
    }

    fn bool<const D: usize>(&mut self, name: String, parameter: &Param<Tensor<D, Bool>>) {
        self.add(&name, || parameter.base().try_into_data());
    }
}

struct PutValues<'v> {
    parameters: &'v Parameters,
    values: Values,
}

impl PutValues<'_> {
    fn value(&mut self, name: &str) -> Option<TensorData> {
        self.values[self.parameters.position(name)?].take()
    }
}

impl ReplaceParameters for PutValues<'_> {
    fn float<const D: usize>(&mut self, name: String, parameter: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(value) = self.value(&name) else { return parameter };
        parameter.map(|old| {
            let options = (&old.device(), value.dtype());
            Tensor::from_data(value, options).set_require_grad(old.is_require_grad())
        })
    }

    fn int<const D: usize>(
        &mut self,
        name: String,
        parameter: Param<Tensor<D, Int>>,
    ) -> Param<Tensor<D, Int>> {
        let Some(value) = self.value(&name) else { return parameter };
        parameter.map(|old| {
            let options = (&old.device(), value.dtype());
            Tensor::from_data(value, options)
        })
    }

    fn bool<const D: usize>(
        &mut self,
        name: String,
        parameter: Param<Tensor<D, Bool>>,
    ) -> Param<Tensor<D, Bool>> {
        let Some(value) = self.value(&name) else { return parameter };
        parameter.map(|old| Tensor::from_data(to_bools(&value), &old.device()))
    }
}
