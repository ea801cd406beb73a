//! The page that lists all algorithms.

use comm_core::Collective;
use comm_ring::schedule::{Algorithm, Chunks, Params, TABLE};

use super::drawing::Drawing;
use super::{DRAWINGS, GeneratedFiles, crossover, rounds};
use crate::error::{Error, Result};

/// The numbers of ranks for which costs are listed.
const LISTED: [usize; 3] = [8, 13, 64];
/// The numbers of ranks of drawings: a power of two, and another one.
const DRAWN: usize = 8;
const DRAWN_ODD: usize = 5;
/// The number of ranks per host in drawings of hierarchical algorithms.
const DRAWN_PER_HOST: usize = 4;

const HEAD: &str = "\
<!-- Written by `cargo xtask docs`. Change the table in crates/comm-ring/src/schedule, not this file. -->

# Algorithms

This page lists every algorithm of every collective, as in the table in `crates/comm-ring/src/schedule`. Each algorithm is one file
there, which cites its paper. [architecture.md](architecture.md) explains how a schedule is described, verified and executed;
`commctl simulate` predicts times for other links.

The tables give these costs for several numbers of ranks:

- rounds: the length of the longest chain of dependent messages without segmentation, and so the number of latencies;
- messages: the largest number of messages that a rank sends or receives;
- data: the largest amount of data that a rank sends or receives, as a multiple of the collective's data, which is the buffer of a
  reduction or broadcast, the result of a gather, or all blocks that one rank sends in an all-to-all.

The last column lists properties:

- *segmented*: large data is pipelined in segments;
- *keeps order*: contributions are combined in the same order for every size;
- *counts*: the algorithm also implements the variant with one count per rank;
- *hierarchical*: it sends less data between hosts than between ranks of a host;
- *staged*: data for several ranks of a host is written once to shared memory, where they read it in place. It is chosen only if
  the transport supports that. A rank whose data lies in a buffer of `Comm::alloc` sends it from there,
  and in an all-reduce the others write their sums into it.

";

const CROSSOVERS: &str = "\
The selection depends on the links, so the tables of selected algorithms are examples. They use the closed forms of the costs,
which `comm-ring/tests/all/costs.rs` compares with a simulation of the steps.
";

/// Returns the page, and adds the drawings to `files`.
pub(super) fn write(files: &mut GeneratedFiles) -> Result<String> {
    let mut page = HEAD.to_owned();
    page += &format!("{CROSSOVERS}{}\n\n", crossover::REFERENCE);
    for collective in Collective::ALL {
        let rows: Vec<&Algorithm> = TABLE.iter().filter(|row| row.collective == collective).collect();
        if !rows.is_empty() {
            section(&mut page, collective, &rows, files)?;
        }
    }
    Ok(page.trim_end().to_owned() + "\n")
}

fn section(
    page: &mut String,
    collective: Collective,
    rows: &[&Algorithm],
    files: &mut GeneratedFiles,
) -> Result<()> {
    *page += &format!("## {collective}\n\n");
    *page += &costs(rows);
    *page += "\nSelected algorithm by size:\n\n| ranks | one rank per host | eight ranks per host |\n|---:|---|---|\n";
    for ranks in crossover::RANKS {
        let alone = crossover::describe(collective, ranks, 1)?;
        let together = crossover::describe(collective, ranks, 8)?;
        *page += &format!("| {ranks} | {alone} | {together} |\n");
    }
    *page += "\nMessages over time, if each rank sends and receives one message at a time:\n\n";
    for row in rows {
        for ranks in drawn(row) {
            let name = format!("{collective}_{}_{ranks}.svg", row.name);
            files.insert(format!("{DRAWINGS}/{name}"), draw(row, ranks)?);
            *page += &format!("![{collective} {} among {ranks} ranks](algorithms/{name})\n", row.name);
        }
    }
    *page += "\n";
    Ok(())
}

/// Returns the table of costs and properties.
fn costs(rows: &[&Algorithm]) -> String {
    let worlds = LISTED.map(|ranks| ranks.to_string()).join(" / ");
    let mut table =
        format!("| algorithm | rounds at {worlds} ranks | messages | data | |\n|---|---:|---:|---:|---|\n");
    for row in rows {
        let costs = LISTED.map(|ranks| (row.cost)(&params(row, ranks)));
        let join = |each: [String; LISTED.len()]| each.join(" / ");
        let data = LISTED.map(|ranks| match row.collective {
            Collective::Barrier => "-".to_owned(),
            _ => format!("{:.2}", data(row, ranks)),
        });
        table += &format!(
            "| `{}` | {} | {} | {} | {} |\n",
            row.name,
            join(costs.map(|cost| cost.rounds.to_string())),
            join(costs.map(|cost| cost.messages.to_string())),
            join(data),
            properties(row)
        );
    }
    table
}

/// The data that a rank sends or receives, as a multiple of the collective's data.
fn data(row: &Algorithm, ranks: usize) -> f64 {
    let p = params(row, ranks);
    let blocks = match row.chunks {
        // The data is the blocks of one sender.
        Chunks::PerPair => row.blocks(&p) / ranks,
        _ => row.blocks(&p),
    };
    (row.cost)(&p).blocks as f64 / blocks as f64
}

fn properties(row: &Algorithm) -> String {
    let traits = &row.traits;
    let properties = [
        (traits.segmented, "segmented"),
        (traits.keeps_order, "keeps order"),
        (!traits.equal && has_counts(row.collective), "counts"),
        (traits.hierarchical, "hierarchical"),
        (traits.staged, "staged"),
    ];
    properties.iter().filter(|(is_set, _)| *is_set).map(|(_, name)| *name).collect::<Vec<_>>().join(", ")
}

/// Returns whether the collective has a variant with a count per rank.
fn has_counts(collective: Collective) -> bool {
    Collective::ALL.iter().any(|other| *other != collective && other.base() == collective)
}

fn params(row: &Algorithm, ranks: usize) -> Params {
    let ranks_per_host = if row.traits.hierarchical { DRAWN_PER_HOST } else { 1 };
    Params::new(ranks).ranks_per_host(ranks_per_host)
}

/// Returns the numbers of ranks of the drawings: also one that is not a power of two, if the rounds
/// are logarithmic.
fn drawn(row: &Algorithm) -> Vec<usize> {
    let rounds = |ranks| (row.cost)(&params(row, ranks)).rounds;
    let growth = rounds(2 * DRAWN) - rounds(DRAWN).min(rounds(2 * DRAWN));
    if (1..=2).contains(&growth) { vec![DRAWN, DRAWN_ODD] } else { vec![DRAWN] }
}

fn draw(row: &Algorithm, ranks: usize) -> Result<String> {
    let p = params(row, ranks);
    let title = format!("{} {} among {ranks} ranks", row.collective, row.name);
    let programs = (0..ranks).map(|rank| (row.steps)(&p.rank(rank)).collect()).collect();
    let messages =
        rounds::rounds(programs).map_err(|messages| Error::Deadlock { what: title.clone(), messages })?;
    let ranks_per_host = p.ranks_per_host;
    Ok(Drawing { title, ranks, ranks_per_host, blocks: row.blocks(&p), messages: &messages }.svg()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use comm_core::Action;

    #[test]
    fn every_algorithm_is_on_the_page_and_drawn() {
        let mut files = GeneratedFiles::new();
        let page = write(&mut files).unwrap();
        for row in TABLE {
            let path = format!("algorithms/{}_{}_{DRAWN}.svg", row.collective, row.name);
            assert!(page.contains(&path) && page.contains(&format!("| `{}` |", row.name)), "{path}");
            let receives = |rank| {
                let steps = (row.steps)(&params(row, DRAWN).rank(rank));
                steps
                    .filter(|step| matches!(step.action, Action::Recv { .. } | Action::RecvReduce { .. }))
                    .count()
            };
            let arrows = files[&format!("docs/{path}")].matches("<path").count();
            assert_eq!(arrows, (0..DRAWN).map(receives).sum::<usize>(), "{path}");
        }
        assert_eq!(page.matches(".svg").count(), files.len());
    }

    #[test]
    fn the_data_of_optimal_algorithms_is_exact() {
        let row = Algorithm::find(Collective::AllReduce, "ring").unwrap();
        assert_eq!(data(row, 8), 1.75);
        let row = Algorithm::find(Collective::AllToAll, "pairwise").unwrap();
        assert_eq!(data(row, 8), 0.875);
    }
}
