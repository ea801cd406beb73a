//! Heat on a plate, by Jacobi's method on a grid of ranks that exchange the edges of blocks.
//!
//! ```sh
//! commctl run -n 6 -- target/debug/examples/halo_exchange
//! ```
#![allow(clippy::expect_used, clippy::print_stdout, reason = "an example is short, and prints its result")]

use comm::{Axis, Cart};

/// The number of rows of the block of one rank, and the number of its columns.
const BLOCK: usize = 16;
const STEPS: usize = 100;

/// A block of cells, row by row, in a frame of ghost cells.
struct Block {
    cells: Vec<f64>,
    height: usize,
    width: usize,
}

impl Block {
    /// Creates a cold block. The frame above it is hot if it is at the top of the plate.
    fn new(rows: usize, columns: usize, is_top: bool) -> Self {
        let (height, width) = (rows + 2, columns + 2);
        let mut cells = vec![0.0; height * width];
        cells[..width].fill(if is_top { 100.0 } else { 0.0 });
        Self { cells, height, width }
    }

    /// Replaces each cell by the average of its neighbors.
    fn relax(&mut self) {
        let (old, width) = (self.cells.clone(), self.width);
        for row in 1..self.height - 1 {
            for at in row * width + 1..(row + 1) * width - 1 {
                self.cells[at] = (old[at - width] + old[at + width] + old[at - 1] + old[at + 1]) / 4.0;
            }
        }
    }

    /// Fills the frame with the cells of the neighbors. At the edges of the plate it is unchanged.
    fn exchange(&mut self, grid: &Cart) -> comm::Result<()> {
        // Rows are contiguous.
        grid.exchange_halo(0, &mut self.cells, self.width)?;
        // Columns are not: copy the two at each side into a buffer, and the outer ones back.
        let (height, width) = (self.height, self.width);
        let columns = [0, 1, width - 2, width - 1];
        let position = |at: usize| at % height * width + columns[at / height];
        let mut buffer: Vec<f64> = (0..4 * height).map(|at| self.cells[position(at)]).collect();
        grid.exchange_halo(1, &mut buffer, height)?;
        (0..4 * height).for_each(|at| self.cells[position(at)] = buffer[at]);
        Ok(())
    }
}

pub(crate) fn main() -> comm::Result<()> {
    let comm = comm::init()?;
    // The grid closest to a square that has a cell for every rank.
    let rows = (1..=comm.size()).filter(|n| n * n <= comm.size() && comm.size() % n == 0).max().unwrap_or(1);
    let columns = comm.size() / rows;
    let grid = comm.cart(&[Axis::open(rows), Axis::open(columns)])?.expect("a cell for every rank");

    let mut block = Block::new(BLOCK, BLOCK, grid.coords()[0] == 0);
    for _ in 0..STEPS {
        block.exchange(&grid)?;
        block.relax();
    }

    // Each rank also computes the plate alone. After the barrier, all blocks are known to be right.
    let mut plate = Block::new(rows * BLOCK, columns * BLOCK, true);
    (0..STEPS).for_each(|_| plate.relax());
    let (top, left) = (grid.coords()[0] * BLOCK, grid.coords()[1] * BLOCK);
    for row in 1..=BLOCK {
        let own = &block.cells[row * block.width + 1..][..BLOCK];
        let alone = &plate.cells[(top + row) * plate.width + left + 1..][..BLOCK];
        assert_eq!(own, alone, "row {row} of the block of rank {}", grid.rank());
    }
    grid.barrier()?;
    if grid.rank() == 0 {
        println!("{STEPS} steps on a {rows}x{columns} grid give the values of one rank");
    }
    comm.finalize()
}
