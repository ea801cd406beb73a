//! The variables of a model, in the same order on all ranks.

use std::collections::HashMap;
use std::sync::{MutexGuard, PoisonError};

use candle_core::backprop::GradStore;
use candle_core::{Tensor, Var};
use candle_nn::VarMap;
use comm_core::{Comm, DType};
use comm_ddp::{Parameter, ParameterSet};

use crate::error::or_abort;
use crate::{Error, Form, Place, Result};

/// A variable that every rank has.
#[derive(Debug, Clone)]
pub struct Variable {
    pub(crate) name: String,
    pub(crate) var: Var,
    pub(crate) dtype: DType,
}

/// The variables of a map, sorted by name.
pub(crate) struct Variables {
    map: VarMap,
    sorted: Vec<Variable>,
}

impl Variables {
    /// Returns the variables of a map, without comparing them with other ranks.
    pub(crate) fn local<M: Place>(map: &VarMap) -> Result<Self> {
        Ok(Self { map: map.clone(), sorted: find::<M>(map).into_iter().collect::<Result<_>>()? })
    }

    /// Returns the variables of a map, after checking that all ranks have the same. This is a
    /// collective.
    pub(crate) fn agree<M: Place>(map: &VarMap, comm: &Comm<M>) -> Result<Self> {
        let found = find::<M>(map);
        // Variables that cannot take part are described by their error, and refused only after the
        // comparison of ranks. Otherwise, if only one rank had them, the others would wait for it.
        let parameters = ParameterSet::new(found.iter().map(describe))?;
        let all_gather = |own: &[u8], all: &mut [u8]| M::all_gather(comm, own, all);
        comm_ddp::check_parameters_by(&parameters, comm.size(), all_gather)?;
        Ok(Self { map: map.clone(), sorted: found.into_iter().collect::<Result<_>>()? })
    }

    pub(crate) fn sorted(&self) -> &[Variable] {
        &self.sorted
    }

    /// Returns the variables of floating point numbers, which are trained, and describes them.
    pub(crate) fn trained(&self) -> impl Iterator<Item = (&Variable, Parameter)> {
        let floats = self.sorted.iter().filter(|variable| variable.dtype.is_float());
        floats.map(|variable| (variable, variable.parameter()))
    }

    /// Broadcasts the values of rank 0.
    pub(crate) fn broadcast<M: Place>(&self, comm: &Comm<M>) -> Result<()> {
        or_abort(comm, M::broadcast(comm, &self.sorted))
    }

    /// Returns an error if the map no longer has the variables that all ranks agreed on, because
    /// gradients of new ones would not be averaged.
    pub(crate) fn check_unchanged(&self) -> Result<()> {
        let map = lock(&self.map);
        let is_same = |ours: &Variable| map.get(&ours.name).is_some_and(|var| var.id() == ours.var.id());
        let other = self.sorted.iter().find(|variable| !is_same(variable)).map(|variable| &variable.name);
        let is_known = |name: &str| self.sorted.binary_search_by(|ours| ours.name.as_str().cmp(name)).is_ok();
        // If the counts are equal and no variable is missing, none was added.
        let more = map.len() > self.sorted.len();
        let added = map.keys().filter(|name| more && !is_known(name)).min();
        other.or(added).map_or(Ok(()), |name| Err(Error::Changed { name: name.clone() }))
    }
}

impl std::fmt::Debug for Variables {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(&self.sorted).finish()
    }
}

impl Variable {
    fn new<M: Place>(name: String, var: Var) -> Result<Self> {
        let location = var.device().location();
        if !M::holds(location) {
            return Err(Error::Place { name, location, place: M::NAME });
        }
        match dtype(var.dtype()) {
            Some(dtype) => Ok(Self { name, var, dtype }),
            None => Err(Error::Type { name, dtype: var.dtype() }),
        }
    }

    pub(crate) fn parameter(&self) -> Parameter {
        Parameter::with_dtype(&self.name, self.var.dims(), self.dtype)
    }

    /// Returns its gradient, if there is one, or an error if the gradient does not match the
    /// variable.
    pub(crate) fn gradient<'g>(&self, gradients: &'g GradStore) -> Result<Option<&'g Tensor>> {
        let Some(gradient) = gradients.get(&self.var) else { return Ok(None) };
        let (expected, got) = (Form::of(&self.var), Form::of(gradient));
        if expected != got {
            let (expected, got) = (Box::new(expected), Box::new(got));
            return Err(Error::Gradient { name: self.name.clone(), expected, got });
        }
        if self.dtype.is_float() {
            Ok(Some(gradient))
        } else {
            Err(Error::Integers { name: self.name.clone() })
        }
    }
}

/// Returns the variables of a map, sorted by name, with the errors of those that cannot take part.
fn find<M: Place>(map: &VarMap) -> Vec<Result<Variable>> {
    named(map).into_iter().map(|(name, var)| Variable::new::<M>(name, var)).collect()
}

/// Returns the variables of a map and their names, sorted by name.
pub(crate) fn named(map: &VarMap) -> Vec<(String, Var)> {
    let mut named: Vec<(String, Var)> =
        lock(map).iter().map(|(name, var)| (name.clone(), var.clone())).collect();
    named.sort_by(|(one, _), (other, _)| one.cmp(other));
    named
}

/// Describes the variable for comparison with other ranks.
fn describe(found: &Result<Variable>) -> Parameter {
    match found {
        Ok(variable) => variable.parameter(),
        Err(refused) => {
            let name = match refused {
                Error::Type { name, dtype } => format!("{name} as {}", dtype.as_str()),
                // The number of a device may differ between ranks.
                Error::Place { name, place, .. } => format!("{name} outside {place}"),
                other => other.to_string(),
            };
            Parameter::with_dtype(name, [], DType::U8)
        }
    }
}

/// Converts candle's element types to the types of communicators.
pub(crate) const fn dtype(dtype: candle_core::DType) -> Option<DType> {
    Some(match dtype {
        candle_core::DType::U8 => DType::U8,
        candle_core::DType::U32 => DType::U32,
        candle_core::DType::I16 => DType::I16,
        candle_core::DType::I32 => DType::I32,
        candle_core::DType::I64 => DType::I64,
        candle_core::DType::BF16 => DType::BF16,
        candle_core::DType::F16 => DType::F16,
        candle_core::DType::F32 => DType::F32,
        candle_core::DType::F64 => DType::F64,
        _ => return None,
    })
}

fn lock(map: &VarMap) -> MutexGuard<'_, HashMap<String, Var>> {
    // Ignores poisoning, because a panic leaves a variable either in the map or not in it.
    map.data().lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn element_types_keep_their_names() {
        use candle_core::DType as Theirs;
        let both =
            [Theirs::U8, Theirs::U32, Theirs::I16, Theirs::I32, Theirs::I64, Theirs::BF16, Theirs::F16];
        for theirs in both.into_iter().chain([Theirs::F32, Theirs::F64]) {
            let ours = dtype(theirs).unwrap();
            assert_eq!((ours.name(), ours.size()), (theirs.as_str(), theirs.size_in_bytes()));
        }
        for theirs in [Theirs::F8E4M3, Theirs::F6E2M3, Theirs::F6E3M2, Theirs::F4, Theirs::F8E8M0] {
            assert_eq!(dtype(theirs), None);
        }
    }
}
