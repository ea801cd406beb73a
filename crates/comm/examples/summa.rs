//! The product of two matrices on a grid of ranks, by SUMMA (van de Geijn and Watts, 1997).
//!
//! Each rank has one block of C. In each step, the owners of a few columns of A broadcast them
//! along their row of the grid, and the owners of the same rows of B along their column. Each rank
//! adds the product of both to its block.
//!
//! ```sh
//! commctl run -n 6 -- target/debug/examples/summa
//! ```
#![allow(clippy::expect_used, clippy::print_stdout, reason = "an example is short, and prints its result")]

use comm::Axis;

/// The number of rows of a block of C, and the number of its columns.
const BLOCK: usize = 32;
/// The number of columns of A, and of rows of B, that are broadcast in one step.
const PANEL: usize = 8;

/// Returns an element of the matrix A.
fn a(i: usize, k: usize) -> i64 {
    (i * 7 + k * 3) as i64 % 101 - 50
}

/// Returns an element of the matrix B.
fn b(k: usize, j: usize) -> i64 {
    (k * 5 + j * 11) as i64 % 97 - 48
}

/// Adds the product of a panel of A and a panel of B to a block of C.
fn multiply_add(c: &mut [i64], a: &[i64], b: &[i64]) {
    for (c, a) in c.chunks_exact_mut(BLOCK).zip(a.chunks_exact(PANEL)) {
        for (a, b) in a.iter().zip(b.chunks_exact(BLOCK)) {
            c.iter_mut().zip(b).for_each(|(c, b)| *c += a * b);
        }
    }
}

pub(crate) fn main() -> comm::Result<()> {
    let comm = comm::init()?;
    // The grid closest to a square that has a cell for every rank.
    let rows = (1..=comm.size()).filter(|n| n * n <= comm.size() && comm.size() % n == 0).max().unwrap_or(1);
    let columns = comm.size() / rows;
    let grid = comm.cart(&[Axis::open(rows), Axis::open(columns)])?.expect("a cell for every rank");
    let (row, column) = (grid.coords()[0], grid.coords()[1]);
    // In the group of a row, the rank is the column, and the other way round.
    let along_row = grid.split(Some(row as u64), column as i64)?.expect("every rank has a row");
    let along_column = grid.split(Some(column as u64), row as i64)?.expect("every rank has a column");

    // A and B have a panel for each cell of the grid, which belong to its columns and rows in turn.
    // Element (i, j) of this rank's block of C is element (top + i, left + j) of C.
    let (panels, top, left) = (rows * columns, row * BLOCK, column * BLOCK);
    let mut c = [0; BLOCK * BLOCK];
    for panel in 0..panels {
        let first = panel * PANEL;
        let (mut a_panel, mut b_panel) = ([0; BLOCK * PANEL], [0; PANEL * BLOCK]);
        let (a_owner, b_owner) = (panel % columns, panel % rows);
        // The owners compute their panels here; a program would store them.
        if column == a_owner {
            a_panel = std::array::from_fn(|at| a(top + at / PANEL, first + at % PANEL));
        }
        if row == b_owner {
            b_panel = std::array::from_fn(|at| b(first + at / BLOCK, left + at % BLOCK));
        }
        along_row.broadcast(a_owner, &mut a_panel)?;
        along_column.broadcast(b_owner, &mut b_panel)?;
        multiply_add(&mut c, &a_panel, &b_panel);
    }

    // Each rank also computes its block alone. After the barrier, all are known to be right.
    let depth = panels * PANEL;
    for (at, &element) in c.iter().enumerate() {
        let (i, j) = (top + at / BLOCK, left + at % BLOCK);
        let alone: i64 = (0..depth).map(|k| a(i, k) * b(k, j)).sum();
        assert_eq!(element, alone, "element ({i}, {j})");
    }
    grid.barrier()?;
    if grid.rank() == 0 {
        let (height, width) = (rows * BLOCK, columns * BLOCK);
        println!("{height}x{depth} times {depth}x{width} on a {rows}x{columns} grid is exact");
    }
    comm.finalize()
}
