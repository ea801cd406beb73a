//! Mutation testing of the verifier: does it refuse every schedule that is wrong?
//!
//! A program that is right is broken in one place: a step is lost, doubled, swapped, sent to
//! somebody else, done to another block. Whether that does harm is found out without the verifier,
//! by running the mutant on numbers, under many interleavings, windows and buffer sizes. Every
//! mutant that does harm must be refused.

mod arrays;
mod interpreter;
mod mutants;

use comm_core::Step;

pub use interpreter::{Wrong, interpret};

use crate::random::Random;
use crate::verify::{Fault, Program, Steps, verify};
use mutants::Mutant;

/// How to survey.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// From which numbers, interleavings and samples are drawn.
    pub seed: u64,
    /// How many mutants to try; if there are more, a random sample of as many.
    pub mutants_max: usize,
}

impl Default for Options {
    /// Every mutant.
    fn default() -> Self {
        Self { seed: 0, mutants_max: usize::MAX }
    }
}

/// Setters, as in `Options::default().mutants_max(100)`.
impl Options {
    /// The options with this seed.
    #[must_use]
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// The options with at most so many mutants.
    #[must_use]
    pub const fn mutants_max(mut self, mutants_max: usize) -> Self {
        self.mutants_max = mutants_max;
        self
    }
}

/// What became of the mutants.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Survey {
    /// How many there were.
    pub mutants: usize,
    /// How many compute the right thing all the same. The verifier may refuse them or not.
    pub harmless: usize,
    /// How many do harm.
    pub harmful: usize,
    /// How many of those the verifier refuses.
    pub killed: usize,
    /// Those that do harm and are not refused: what was changed, and the harm. Empty, if the
    /// verifier is right.
    pub survivors: Vec<String>,
}

impl Survey {
    /// Adds what another survey found.
    pub fn add(&mut self, other: Self) {
        self.mutants += other.mutants;
        self.harmless += other.harmless;
        self.harmful += other.harmful;
        self.killed += other.killed;
        self.survivors.extend(other.survivors);
    }
}

/// Why a program cannot be surveyed: it is wrong itself, and so says the one judge or the other.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unfit {
    /// The verifier refuses it.
    #[error("the program is refused: {0}")]
    Refused(Fault),
    /// It fails on numbers.
    #[error("the program does harm: {0}")]
    Harmful(Wrong),
}

/// Breaks a program in every place and every way, one at a time, and asks the verifier about each.
///
/// # Errors
/// [`Unfit`] if the program itself is wrong.
pub fn survey(program: &Program<'_>, options: &Options) -> Result<Survey, Unfit> {
    let original: Vec<Vec<Step>> =
        (0..program.spec.ranks).map(|rank| (program.steps)(rank).collect()).collect();
    verify(program).map_err(Unfit::Refused)?;
    interpret(program, options.seed).map_err(Unfit::Harmful)?;
    let mut survey = Survey::default();
    let mut mutants = mutants::all(&original, &program.spec);
    sample(&mut mutants, options);
    for mutant in mutants {
        judge(program, &original, &mutant, options.seed, &mut survey);
    }
    Ok(survey)
}

/// Keeps a random sample.
fn sample(mutants: &mut Vec<Mutant>, options: &Options) {
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

/// Asks both judges about a mutant.
fn judge(program: &Program<'_>, original: &[Vec<Step>], mutant: &Mutant, seed: u64, survey: &mut Survey) {
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
