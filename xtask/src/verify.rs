//! Verifies every schedule, and checks that the verifier rejects mutations of it.

use std::io::{self, Write};
use std::time::Instant;

use comm_core::Collective;
use comm_ring::schedule::{Algorithm, Params, TABLE, combinations};
use comm_sim::mutate::{MutationOptions, MutationReport, test_mutants};
use comm_sim::verify::{Buffers, Program, Spec, Tree, verify};

use crate::error::{Error, Result};

/// The numbers of ranks for which schedules are verified.
const VERIFIED: std::ops::RangeInclusive<usize> = 1..=33;
/// The numbers of ranks for which schedules are mutated.
const MUTATED: [usize; 5] = [2, 3, 4, 5, 8];
/// The maximum number of mutants per program.
const MUTANTS_MAX: usize = 400;

/// The segmentation of the data of a program.
#[derive(Debug, Clone, Copy)]
struct Segmentation {
    segments: usize,
    pass: usize,
}

const WHOLE: Segmentation = Segmentation { segments: 1, pass: 1 };
const SEGMENTED: Segmentation = Segmentation { segments: 3, pass: 2 };

/// Verifies and mutates every row of the table, and prints a line per row.
pub(crate) fn run(out: &mut impl Write) -> Result<()> {
    let start = Instant::now();
    writeln!(
        out,
        "{:<34} {:>9} {:>9} {:>9} {:>9} {:>7}",
        "schedule", "programs", "mutants", "harmful", "killed", "share"
    )?;
    let mut total = MutationReport::default();
    for row in TABLE {
        let programs = verify_row(row)?;
        let found = mutate_row(row)?;
        line(out, &name(row), programs, &found)?;
        total.add(found);
    }
    line(out, "all", 0, &total)?;
    writeln!(
        out,
        "verified every schedule for {} to {} ranks, every root and every number of ranks per host, without buffering and with the smallest window, in {:.1} s",
        VERIFIED.start(),
        VERIFIED.end(),
        start.elapsed().as_secs_f64()
    )?;
    if total.survivors.is_empty() { Ok(()) } else { Err(Error::Survivors(total.survivors)) }
}

fn line(out: &mut impl Write, name: &str, programs: usize, survey: &MutationReport) -> io::Result<()> {
    let share =
        if survey.harmful == 0 { 100.0 } else { 100.0 * survey.killed as f64 / survey.harmful as f64 };
    let programs = if programs == 0 { String::new() } else { programs.to_string() };
    let MutationReport { mutants, harmful, killed, .. } = survey;
    writeln!(out, "{name:<34} {programs:>9} {mutants:>9} {harmful:>9} {killed:>9} {share:>5.1} %")
}

fn name(row: &Algorithm) -> String {
    format!("{} {}", row.collective, row.name)
}

fn segmentations(row: &Algorithm) -> &'static [Segmentation] {
    if row.traits.segmented { &[WHOLE, SEGMENTED] } else { &[WHOLE] }
}

/// Verifies a row for every number of ranks, and returns the number of programs.
fn verify_row(row: &'static Algorithm) -> Result<usize> {
    let mut programs = 0;
    for ranks in VERIFIED {
        for cut in segmentations(row) {
            for_each_program(row, ranks, *cut, &mut |program| {
                programs += 1;
                verify(program).map(drop).map_err(|fault| Error::Refuted { row: name(row), fault })
            })?;
        }
    }
    Ok(programs)
}

fn mutate_row(row: &'static Algorithm) -> Result<MutationReport> {
    let mut total = MutationReport::default();
    for ranks in MUTATED {
        for cut in segmentations(row) {
            let options = MutationOptions::default().seed(ranks as u64).mutants_max(MUTANTS_MAX);
            for_each_program(row, ranks, *cut, &mut |program| {
                total.add(
                    test_mutants(program, &options)
                        .map_err(|unfit| Error::Unfit { row: name(row), unfit })?,
                );
                Ok(())
            })?;
        }
    }
    Ok(total)
}

/// Returns the numbers of ranks per host to verify: one, unless the algorithm depends on it.
fn hosts(row: &Algorithm, ranks: usize) -> std::ops::RangeInclusive<usize> {
    1..=if row.traits.hierarchical { ranks } else { 1 }
}

/// Calls `each` with the row's program for every number of ranks per host, every root and every
/// kind of buffers that a communicator uses.
fn for_each_program(
    row: &'static Algorithm,
    ranks: usize,
    cut: Segmentation,
    each: &mut dyn FnMut(&Program<'_>) -> Result<()>,
) -> Result<()> {
    let tree: Vec<(usize, usize)> = combinations(ranks).collect();
    let tree = row.traits.keeps_order.then_some(Tree(&tree));
    let Segmentation { segments, pass } = cut;
    for ranks_per_host in hosts(row, ranks) {
        let world = Params::new(ranks).segments(segments).pass(pass).ranks_per_host(ranks_per_host);
        for spec in Spec::all(row.collective, ranks, row.blocks(&world)) {
            let spec = Spec { equal: row.traits.equal, ..spec };
            let in_place = spec.buffers == Buffers::InPlace;
            // The communicator copies the input of an all-reduce first and runs it in place.
            if row.collective == Collective::AllReduce && !in_place {
                continue;
            }
            let of = |rank| world.rank(rank).root(spec.root).in_place(in_place);
            let scratch_slots = (0..ranks).map(|rank| (row.slots)(&of(rank))).max().unwrap_or(0);
            each(&Program { spec, scratch_slots, tree, steps: &|rank| (row.steps)(&of(rank)) })?;
        }
    }
    Ok(())
}
