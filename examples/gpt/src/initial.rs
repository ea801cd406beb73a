//! Initial parameters from a seed: candle's CPU device cannot be seeded.

use std::f64::consts::TAU;
use std::sync::{Mutex, PoisonError};

use candle_core::{DType, Device, Shape, Tensor, Var, bail};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder, VarMap};

/// Returns a builder of `f32` parameters, which adds them to a map. A model that is created twice
/// in the same way has the same parameters, if the seeds are equal.
#[must_use]
pub fn builder(variables: &VarMap, seed: u64) -> VarBuilder<'static> {
    let random = Mutex::new(fastrand::Rng::with_seed(seed));
    let backend = Seeded { variables: variables.clone(), random };
    VarBuilder::from_backend(Box::new(backend), DType::F32, Device::Cpu)
}

/// Draws parameters in the order in which a model asks for them.
struct Seeded {
    variables: VarMap,
    random: Mutex<fastrand::Rng>,
}

impl SimpleBackend for Seeded {
    fn get(
        &self,
        shape: Shape,
        name: &str,
        init: Init,
        dtype: DType,
        device: &Device,
    ) -> candle_core::Result<Tensor> {
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        let values: Vec<f32> = match init {
            Init::Const(value) => vec![value as f32; shape.elem_count()],
            Init::Randn { mean, stdev } => {
                let mut draw = |_| (mean + stdev * normal(&mut random)) as f32;
                (0..shape.elem_count()).map(&mut draw).collect()
            }
            Init::Uniform { .. } | Init::Kaiming { .. } => bail!("{name}: the model has no {init:?}"),
        };
        let var = Var::from_tensor(&Tensor::from_vec(values, shape, device)?.to_dtype(dtype)?)?;
        let mut variables = self.variables.data().lock().unwrap_or_else(PoisonError::into_inner);
        match variables.insert(name.to_owned(), var.clone()) {
            None => Ok(var.as_tensor().clone()),
            Some(_) => bail!("the model has two parameters {name:?}"),
        }
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> candle_core::Result<Tensor> {
        bail!("the parameter {name:?} needs a shape")
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.variables.data().lock().unwrap_or_else(PoisonError::into_inner).contains_key(name)
    }
}

/// Draws a number from the standard normal distribution (Box and Muller, 1958).
fn normal(random: &mut fastrand::Rng) -> f64 {
    // The logarithm of 1 - x is finite, as x is less than 1.
    (-2.0 * (1.0 - random.f64()).ln()).sqrt() * (TAU * random.f64()).cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(seed: u64) -> Vec<f32> {
        let builder = builder(&VarMap::new(), seed);
        let random = Init::Randn { mean: 1.0, stdev: 0.5 };
        let drawn = builder.get_with_hints((100, 200), "weight", random).unwrap();
        drawn.flatten_all().unwrap().to_vec1().unwrap()
    }

    #[test]
    fn parameters_depend_on_the_seed_alone() {
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[test]
    fn parameters_have_their_mean_and_deviation() {
        let drawn = draw(7);
        let moment = |power| drawn.iter().map(|x| f64::from(x - 1.0).powi(power)).sum::<f64>() / 20_000.0;
        assert!(moment(1).abs() < 0.02 && (moment(2).sqrt() - 0.5).abs() < 0.02);
    }

    #[test]
    fn a_name_is_used_once() {
        let variables = VarMap::new();
        let builder = builder(&variables, 0);
        assert!(builder.get_with_hints(3, "weight", Init::Const(1.0)).is_ok());
        assert!(builder.get_with_hints(3, "weight", Init::Const(1.0)).is_err());
        assert!(builder.contains_tensor("weight") && !builder.contains_tensor("bias"));
    }
}
