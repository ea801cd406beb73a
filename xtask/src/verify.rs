//! Proves every schedule, and measures whether the proof would notice a wrong one.

use std::io::{self, Write};
use std::time::Instant;

use comm_core::Collective;
use comm_ring::schedule::{Algorithm, Params, TABLE, combinations};
use comm_sim::mutate::{Options, Survey, Unfit, survey};
use comm_sim::verify::{Buffers, Fault, Program, Spec, Tree, verify};

/// Worlds that are proven, each for every root and kind of buffers.
const PROVEN: std::ops::RangeInclusive<usize> = 1..=33;
/// Worlds in which schedules are broken on purpose.
const MUTATED: [usize; 5] = [2, 3, 4, 5, 8];
/// The most mutants of one program.
const MUTANTS_MAX: usize = 400;

/// Why the check failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("{row}: {fault}")]
    Refused { row: String, fault: Fault },
    #[error("{row}: {unfit}")]
    Unfit { row: String, unfit: Unfit },
    #[error("the verifier let {} harmful mutants pass:\n{}", .0.len(), .0.join("\n"))]
    Survivors(Vec<String>),
    #[error("cannot write")]
    Output(#[from] io::Error),
}

/// How the data of a program is cut.
#[derive(Debug, Clone, Copy)]
struct Cut {
    segments: usize,
    pass: usize,
}

const WHOLE: Cut = Cut { segments: 1, pass: 1 };
const SEGMENTED: Cut = Cut { segments: 3, pass: 2 };

/// Proves every row of the table and breaks it in every way. Prints a line per row.
pub(crate) fn run(out: &mut impl Write) -> Result<(), Failure> {
    let start = Instant::now();
    writeln!(
        out,
        "{:<34} {:>9} {:>9} {:>9} {:>9} {:>7}",
        "schedule", "programs", "mutants", "harmful", "killed", "share"
    )?;
    let mut total = Survey::default();
    for row in TABLE {
        let programs = prove(row)?;
        let broken = break_it(row)?;
        line(out, &name(row), programs, &broken)?;
        total.add(broken);
    }
    line(out, "all", 0, &total)?;
    writeln!(
        out,
        "every schedule proven for worlds {} to {}, every root and every number of ranks per host, with no buffering and the smallest window, in {:.1} s",
        PROVEN.start(),
        PROVEN.end(),
        start.elapsed().as_secs_f64()
    )?;
    if total.survivors.is_empty() { Ok(()) } else { Err(Failure::Survivors(total.survivors)) }
}

fn line(out: &mut impl Write, name: &str, programs: usize, survey: &Survey) -> io::Result<()> {
    let share =
        if survey.harmful == 0 { 100.0 } else { 100.0 * survey.killed as f64 / survey.harmful as f64 };
    let programs = if programs == 0 { String::new() } else { programs.to_string() };
    let Survey { mutants, harmful, killed, .. } = survey;
    writeln!(out, "{name:<34} {programs:>9} {mutants:>9} {harmful:>9} {killed:>9} {share:>5.1} %")
}

fn name(row: &Algorithm) -> String {
    format!("{} {}", row.collective, row.name)
}

fn cuts(row: &Algorithm) -> &'static [Cut] {
    if row.traits.segmented { &[WHOLE, SEGMENTED] } else { &[WHOLE] }
}

/// Verifies a row in every world. Returns how many programs that were.
fn prove(row: &'static Algorithm) -> Result<usize, Failure> {
    let mut programs = 0;
    for ranks in PROVEN {
        for cut in cuts(row) {
            for_each_program(row, ranks, *cut, &mut |program| {
                programs += 1;
                verify(program).map(drop).map_err(|fault| Failure::Refused { row: name(row), fault })
            })?;
        }
    }
    Ok(programs)
}

/// Breaks a row in small worlds.
fn break_it(row: &'static Algorithm) -> Result<Survey, Failure> {
    let mut total = Survey::default();
    for ranks in MUTATED {
        for cut in cuts(row) {
            let options = Options::default().seed(ranks as u64).mutants_max(MUTANTS_MAX);
            for_each_program(row, ranks, *cut, &mut |program| {
                total.add(
                    survey(program, &options).map_err(|unfit| Failure::Unfit { row: name(row), unfit })?,
                );
                Ok(())
            })?;
        }
    }
    Ok(total)
}

/// How many ranks a host may hold. A row that does not look at it is proven for one.
fn hosts(row: &Algorithm, ranks: usize) -> std::ops::RangeInclusive<usize> {
    1..=if row.traits.hierarchical { ranks } else { 1 }
}

/// Calls `each` with the row's program for every spread over hosts, every root and every kind of
/// buffers that its communicator uses.
fn for_each_program(
    row: &'static Algorithm,
    ranks: usize,
    cut: Cut,
    each: &mut dyn FnMut(&Program<'_>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let tree: Vec<(usize, usize)> = combinations(ranks).collect();
    let tree = row.traits.keeps_order.then_some(Tree(&tree));
    let Cut { segments, pass } = cut;
    for ranks_per_host in hosts(row, ranks) {
        let world = Params::new(ranks).segments(segments).pass(pass).ranks_per_host(ranks_per_host);
        for spec in Spec::all(row.collective, ranks, row.blocks(&world)) {
            let spec = Spec { equal: row.traits.equal, ..spec };
            let in_place = spec.buffers == Buffers::InPlace;
            // An all-reduce works in place always: its communicator copies first.
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
