//! Cartesian groups: ranks on a grid, and halo exchange between neighbors.

use std::ops::Deref;

use crate::call::check_len;
use crate::{AsView, AsViewMut, Comm, Element, Host, Invalid, Received, Result};

/// One axis of a Cartesian group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Axis {
    /// The number of ranks along the axis.
    pub len: usize,
    /// Whether the last rank along the axis is a neighbor of the first.
    pub periodic: bool,
}

impl Axis {
    /// Creates an axis with two ends.
    #[must_use]
    pub const fn open(len: usize) -> Self {
        Self { len, periodic: false }
    }

    /// Creates an axis whose ends are neighbors.
    #[must_use]
    pub const fn periodic(len: usize) -> Self {
        Self { len, periodic: true }
    }
}

/// A rank next to this one on a grid, or none past the end of an open axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Neighbor {
    /// The neighboring rank, which on a short periodic axis may be the calling rank itself.
    Rank(usize),
    /// No rank: a message to it is not sent, and a message from it leaves the buffer unchanged.
    Null,
}

/// The missing neighbor: MPI's `MPI_PROC_NULL`.
pub const PROC_NULL: Neighbor = Neighbor::Null;

/// The two ranks at a distance along an axis, as `MPI_Cart_shift` returns them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shift {
    /// The rank that this one receives from: the displacement backward.
    pub source: Neighbor,
    /// The rank that this one sends to: the displacement forward.
    pub dest: Neighbor,
}

/// A communicator whose ranks form a grid, in row-major order: the last coordinate varies fastest.
///
/// It has its own group, so its messages and collectives are separate from those of its parent. It
/// dereferences to its [`Comm`], so all calls are methods of it, except [`Comm::finalize`], which
/// takes its handle by value: `grid.comm().clone().finalize()`.
///
/// The halo exchange of a grid that is cut along one axis takes one line:
///
/// ```
/// use comm::Axis;
///
/// comm::threads::run(3, |comm| {
///     let line = comm.cart(&[Axis::open(3)]).unwrap().expect("there is a cell for every rank");
///     // Each rank has 1,000 cells between two ghost cells.
///     let mut cells = vec![comm.rank() as f64; 1 + 1000 + 1];
///     line.exchange_halo(0, &mut cells, 1).unwrap();
///     assert_eq!((cells[0], cells[1001]), [(0.0, 1.0), (0.0, 2.0), (1.0, 2.0)][comm.rank()]);
/// })?;
/// # Ok::<_, comm::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Cart {
    comm: Comm,
    axes: Vec<Axis>,
}

impl Comm<Host> {
    /// Creates a Cartesian group of the first ranks of this group, one per cell of the grid: MPI's
    /// `MPI_Cart_create` without reordering. Every rank calls this with the same axes; a rank
    /// without a cell gets `None`.
    ///
    /// # Errors
    /// Same as [`Comm::new_group`], and [`Error::Invalid`](crate::Error::Invalid) if the grid has
    /// no cells or more cells than there are ranks.
    pub fn cart(&self, axes: &[Axis]) -> Result<Option<Cart>> {
        let places = axes.iter().try_fold(1_usize, |places, axis| places.checked_mul(axis.len));
        let places = places.filter(|places| (1..=self.size()).contains(places));
        let Some(places) = places else {
            let axes = axes.iter().map(|axis| axis.len).collect();
            return Err(Invalid::Grid { axes, size: self.size() }.into());
        };
        let members: Vec<usize> = (0..places).collect();
        Ok(self.new_group(&members)?.map(|comm| Cart { comm, axes: axes.to_vec() }))
    }
}

impl Cart {
    /// Returns the communicator of the ranks on the grid.
    #[must_use]
    pub const fn comm(&self) -> &Comm {
        &self.comm
    }

    /// Returns the axes of the grid.
    #[must_use]
    pub fn axes(&self) -> &[Axis] {
        &self.axes
    }

    /// Returns the coordinates of this rank, one per axis.
    #[must_use]
    pub fn coords(&self) -> Vec<usize> {
        coords(&self.axes, self.comm.rank())
    }

    /// Returns the rank at these coordinates: [`PROC_NULL`] past the end of an open axis.
    /// Coordinates wrap around on periodic axes.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if the number of coordinates differs from the
    /// number of axes.
    pub fn rank_at(&self, coords: &[isize]) -> Result<Neighbor> {
        check_len("the list of coordinates", coords.len(), self.axes.len())?;
        Ok(rank_at(&self.axes, coords))
    }

    /// Returns the neighbors at a distance along an axis: MPI's `MPI_Cart_shift`.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if there is no such axis.
    pub fn shift(&self, axis: usize, displacement: isize) -> Result<Shift> {
        if axis >= self.axes.len() {
            return Err(Invalid::Axis { axis, axes: self.axes.len() }.into());
        }
        let own: Vec<isize> = self.coords().into_iter().map(usize::cast_signed).collect();
        let at = |displacement: isize| {
            let mut coords = own.clone();
            coords[axis] = coords[axis].saturating_add(displacement);
            rank_at(&self.axes, &coords)
        };
        Ok(Shift { source: at(displacement.saturating_neg()), dest: at(displacement) })
    }

    /// Sends one message and receives another at the same time, like [`Comm::send_recv`] with tag
    /// 0, except that either neighbor may be [`PROC_NULL`]. If `from` is, returns `None` and leaves
    /// the buffer unchanged.
    ///
    /// # Errors
    /// Same as [`Comm::send_recv`].
    pub fn send_recv(
        &self,
        to: Neighbor,
        message: &(impl AsView + ?Sized),
        from: Neighbor,
        buffer: &mut (impl AsViewMut + ?Sized),
    ) -> Result<Option<Received>> {
        match (to, from) {
            (Neighbor::Rank(to), Neighbor::Rank(from)) => {
                self.comm.send_recv((to, 0), message, (from, 0), buffer).map(Some)
            }
            (Neighbor::Rank(to), Neighbor::Null) => self.comm.send(to, 0, message).map(|()| None),
            (Neighbor::Null, Neighbor::Rank(from)) => self.comm.recv(from, 0, buffer).map(Some),
            (Neighbor::Null, Neighbor::Null) => Ok(None),
        }
    }

    /// Exchanges the ends of `cells` with both neighbors along an axis: the first and the last
    /// `width` elements are ghost cells and receive the neighbors' elements; the `width` elements
    /// next to them are sent. Ghost cells at the end of an open axis are left unchanged.
    ///
    /// A grid of several dimensions that is cut along the first one is stored row by row, and
    /// `width` is the size of one or more rows. Every rank passes the same `width`; the lengths of
    /// `cells` may differ. The cells next to a cut along another dimension, such as columns, are
    /// not contiguous: copy them into a buffer, exchange it with [`Cart::shift`] and
    /// [`Cart::send_recv`], and copy the result back.
    ///
    /// # Errors
    /// Same as [`Comm::send_recv`], and [`Error::Invalid`](crate::Error::Invalid) if `cells` has
    /// fewer than `width` elements between its ghost cells.
    pub fn exchange_halo<T: Element>(&self, axis: usize, cells: &mut [T], width: usize) -> Result<()> {
        let needed = width.saturating_mul(3);
        if cells.len() < needed {
            return Err(
                Invalid::Length { what: "the buffer of cells", expected: needed, got: cells.len() }.into()
            );
        }
        let Shift { source: before, dest: after } = self.shift(axis, 1)?;
        let (first, rest) = cells.split_at_mut(width);
        self.send_recv(after, &rest[rest.len() - 2 * width..rest.len() - width], before, first)?;
        let (rest, last) = cells.split_at_mut(cells.len() - width);
        self.send_recv(before, &rest[width..2 * width], after, last)?;
        Ok(())
    }
}

impl Deref for Cart {
    type Target = Comm;

    fn deref(&self) -> &Comm {
        &self.comm
    }
}

fn coords(axes: &[Axis], rank: usize) -> Vec<usize> {
    let mut rest = rank;
    let mut coords: Vec<usize> = axes
        .iter()
        .rev()
        .map(|axis| {
            let coord = rest % axis.len;
            rest /= axis.len;
            coord
        })
        .collect();
    coords.reverse();
    coords
}

fn rank_at(axes: &[Axis], coords: &[isize]) -> Neighbor {
    let mut rank = 0;
    for (axis, &coord) in axes.iter().zip(coords) {
        let len = axis.len.cast_signed();
        let coord = if axis.periodic { coord.rem_euclid(len) } else { coord };
        if !(0..len).contains(&coord) {
            return PROC_NULL;
        }
        rank = rank * axis.len + coord.cast_unsigned();
    }
    Neighbor::Rank(rank)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_lie_in_row_major_order() {
        let axes = [Axis::open(2), Axis::periodic(3), Axis::open(4)];
        assert_eq!(coords(&axes, 0), [0, 0, 0]);
        assert_eq!(coords(&axes, 23), [1, 2, 3]);
        for rank in 0..24 {
            let own: Vec<isize> = coords(&axes, rank).into_iter().map(usize::cast_signed).collect();
            assert_eq!(rank_at(&axes, &own), Neighbor::Rank(rank));
        }
    }

    #[test]
    fn periodic_axes_wrap_around_and_open_axes_end() {
        let axes = [Axis::open(2), Axis::periodic(3)];
        assert_eq!(rank_at(&axes, &[1, -1]), Neighbor::Rank(5));
        assert_eq!(rank_at(&axes, &[1, 3]), Neighbor::Rank(3));
        assert_eq!(rank_at(&axes, &[-1, 0]), PROC_NULL);
        assert_eq!(rank_at(&axes, &[2, 0]), PROC_NULL);
    }
}
