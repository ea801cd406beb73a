//! Mutation testing of the verifier, which must reject every wrong schedule.
//!
//! A correct program is broken in one place: a step is dropped, duplicated, swapped, sent to
//! another rank, or applied to another block. Whether the mutant is harmful is determined without
//! the verifier, by running it on numbers, with many interleavings, windows and buffer sizes. The
//! verifier must reject every harmful mutant.

mod arrays;
mod interpreter;
mod mutants;

use comm_core::Step;

pub use interpreter::{InterpretError, interpret};

use crate::random::Random;
use crate::verify::{Fault, Program, Steps, verify};
use mutants::Mutant;

/// The parameters of a test.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MutationOptions {
    /// The seed of numbers, interleavings and samples.
    pub seed: u64,
    /// The largest number of mutants to try; if there are more, a random sample of this size is
    /// tried.
    pub mutants_max: usize,
}

impl Default for MutationOptions {
    /// Returns options that try every mutant.
    fn default() -> Self {
        Self { seed: 0, mutants_max: usize::MAX }
    }
}

/// Setters, as in `MutationOptions::default().mutants_max(100)`.
impl MutationOptions {
    comm_core::setters!(seed: u64, mutants_max: usize);
}

/// The results of the mutants.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MutationReport {
    /// The number of mutants.
    pub mutants: usize,
    /// The number of mutants that still compute the correct result. The verifier may reject them or
    /// not.
    pub harmless: usize,
    /// The number of mutants that deadlock or compute a wrong result.
    pub harmful: usize,
    /// The number of harmful mutants that the verifier rejects.
    pub killed: usize,
    /// The change and the error of each harmful mutant that is not rejected. Empty if the verifier
    /// is correct.
    pub survivors: Vec<String>,
}

impl MutationReport {
    /// Adds the results of another test.
    pub fn add(&mut self, other: Self) {
        self.mutants += other.mutants;
        self.harmless += other.harmless;
        self.harmful += other.harmful;
        self.killed += other.killed;
        self.survivors.extend(other.survivors);
    }
}

/// The reason why a program cannot be tested: it is itself wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MutationError {
    /// The verifier rejects it.
    #[error("the verifier rejects the program: {0}")]
    Refused(Fault),
    /// It fails when it runs on numbers.
    #[error("the program is wrong: {0}")]
    Harmful(InterpretError),
}

/// Breaks a program in every place and every way, one at a time, and verifies each mutant.
///
/// # Errors
/// [`MutationError`] if the program itself is wrong.
pub fn test_mutants(
    program: &Program<'_>,
    options: &MutationOptions,
) -> Result<MutationReport, MutationError> {
    let original: Vec<Vec<Step>> =
        (0..program.spec.ranks).map(|rank| (program.steps)(rank).collect()).collect();
    verify(program).map_err(MutationError::Refused)?;
    interpret(program, options.seed).map_err(MutationError::Harmful)?;
    let mut survey = MutationReport::default();
    let mut mutants = mutants::all(&original, &program.spec);
    sample(&mut mutants, options);
    for mutant in mutants {
        test_mutant(program, &original, &mutant, options.seed, &mut survey);
    }
    Ok(survey)
}

/// Keeps a random sample of the mutants.
fn sample(mutants: &mut Vec<Mutant>, options: &MutationOptions) {
    if mutants.len() <= options.mutants_max {
        return;
    }
    let mut random = Random::new(options.seed, 1);
    for at in 0..options.mutants_max {
        let other = at + random.below(mutants.len() - at);
        mutants.swap(at, other);
    }
    mutants.truncate(options.mutants_max);
}

/// Runs and verifies a mutant, and adds the result to the report.
fn test_mutant(
    program: &Program<'_>,
    original: &[Vec<Step>],
    mutant: &Mutant,
    seed: u64,
    survey: &mut MutationReport,
) {
    let mut lists = original.to_vec();
    lists[mutant.rank].clone_from(&mutant.steps);
    let steps = |rank: usize| -> Steps<'_> { Box::new(lists[rank].iter().copied()) };
    let Program { spec, scratch_slots, tree, .. } = *program;
    let mutated = Program { spec, scratch_slots, tree, steps: &steps };
    let harm = interpret(&mutated, seed);
    survey.mutants += 1;
    let Err(wrong) = harm else {
        survey.harmless += 1;
        return;
    };
    survey.harmful += 1;
    if verify(&mutated).is_err() {
        survey.killed += 1;
    } else {
        survey.survivors.push(format!("{}: {}, yet {wrong}", program.spec, mutant.change));
    }
}
