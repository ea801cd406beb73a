//! Local training between ranks that are threads, and in virtual time.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod agreement;
mod bytes;
mod codecs;
mod equivalence;
mod failures;
mod membership;
mod overlap;
mod resume;

use comm::Comm;
use comm_ddp::{LocalOptions, LocalTraining, Parameter, ParameterSet, Result, Scalar};

/// Runs `rank_main` on this many ranks, and returns the results in rank order.
fn on_ranks<R: Send>(size: usize, rank_main: impl Fn(Comm) -> R + Sync) -> Vec<R> {
    comm::threads::run(size, rank_main).unwrap()
}

/// The number of parameters, and of elements of each.
const PARAMETERS: usize = 6;
const LEN: usize = 4;

fn parameter_set<T: Scalar>() -> ParameterSet {
    let named = |index: usize| Parameter::new::<T>(format!("p{index}"), [LEN]);
    ParameterSet::new((0..PARAMETERS).map(named)).unwrap()
}

/// A rank with its own parameters, and an inner optimizer that moves them differently on every
/// rank.
struct Replica<T: Scalar> {
    rank: usize,
    steps: usize,
    values: Vec<Vec<T>>,
    training: LocalTraining<T>,
}

impl<T: Scalar> Replica<T> {
    /// Begins or joins a run. Ranks start with different values.
    fn new(comm: &Comm, options: LocalOptions) -> Result<Self> {
        let mut values = initial(comm.rank());
        let training = LocalTraining::new(comm, parameter_set::<T>(), options, slices(&mut values))?;
        Ok(Self { rank: comm.rank(), steps: training.progress().inner_steps as usize, values, training })
    }

    /// Makes an inner step.
    fn move_on(&mut self) {
        self.steps += 1;
        inner_step(&mut self.values, self.rank, self.steps);
    }

    fn step(&mut self) -> Result<comm_ddp::LocalStep> {
        self.move_on();
        self.training.step(slices(&mut self.values))
    }

    fn global(&self) -> Vec<Vec<T>> {
        self.training.global_parameters().map(<[T]>::to_vec).collect()
    }
}

fn slices<T>(tensors: &mut [Vec<T>]) -> impl Iterator<Item = &mut [T]> {
    tensors.iter_mut().map(|tensor| &mut tensor[..])
}

/// Multiples of 1/4, which are exact also after some means and halvings.
fn initial<T: Scalar>(rank: usize) -> Vec<Vec<T>> {
    let number = |index: usize, at: usize| T::from_f64((10 * index + at + 100 * rank) as f64 / 4.0);
    (0..PARAMETERS).map(|index| (0..LEN).map(|at| number(index, at)).collect()).collect()
}

fn inner_step<T: Scalar>(values: &mut [Vec<T>], rank: usize, step: usize) {
    for (index, tensor) in values.iter_mut().enumerate() {
        for (at, value) in tensor.iter_mut().enumerate() {
            let numerator = (rank * 7 + step * 3 + index * 5 + at * 11) % 16;
            *value = *value - T::from_f64(numerator as f64 / 4.0 - 1.0);
        }
    }
}
