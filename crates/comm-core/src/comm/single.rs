//! Calls without a result buffer: on single values, and on data that only the root owns.

use crate::{AsView, Comm, Element, Host, HostViewMut, ReduceOp, Result, Shape, copy};

impl Comm<Host> {
    /// Combines one value from each rank; every rank gets the result. [`Comm::all_reduce`] without
    /// a buffer.
    ///
    /// ```
    /// use comm::ReduceOp;
    ///
    /// comm::threads::run(4, |comm| {
    ///     let error = 0.5 * comm.rank() as f64;
    ///     let largest = comm.all_reduce_scalar(error, ReduceOp::Max).unwrap();
    ///     assert_eq!(largest, 1.5);
    /// })?;
    /// # Ok::<_, comm::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`Comm::all_reduce`].
    pub fn all_reduce_scalar<T: Element>(&self, value: T, op: ReduceOp) -> Result<T> {
        let mut value = [value];
        self.all_reduce(&mut value, op)?;
        Ok(value[0])
    }

    /// Gathers one value from each rank; every rank gets all values, in rank order.
    /// [`Comm::all_gather`] without buffers.
    ///
    /// ```
    /// comm::threads::run(3, |comm| {
    ///     assert_eq!(comm.all_gather_scalar(comm.rank() * comm.rank()).unwrap(), [0, 1, 4]);
    /// })?;
    /// # Ok::<_, comm::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`Comm::all_gather`].
    pub fn all_gather_scalar<T: Element>(&self, value: T) -> Result<Vec<T>> {
        let mut values = vec![value; self.size()];
        self.all_gather(&[value], &mut values)?;
        Ok(values)
    }

    /// Broadcasts from this rank, the root, which keeps its data borrowed immutably. The other
    /// ranks call [`Comm::broadcast`] with this rank as the root.
    ///
    /// The data is copied once into memory that the communicator keeps for such calls.
    ///
    /// ```
    /// let table = [2, 3, 5, 7]; // shared between threads, and therefore not mutable
    /// comm::threads::run(3, |comm| {
    ///     if comm.rank() == 0 {
    ///         comm.broadcast_from_here(&table).unwrap();
    ///     } else {
    ///         let mut theirs = [0; 4];
    ///         comm.broadcast(0, &mut theirs).unwrap();
    ///         assert_eq!(theirs, [2, 3, 5, 7]);
    ///     }
    /// })?;
    /// # Ok::<_, comm::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`Comm::broadcast`].
    pub fn broadcast_from_here(&self, data: &(impl AsView + ?Sized)) -> Result<()> {
        let data = data.as_view()?;
        self.packing().with(data.bytes().len(), |packed: &mut [u8]| {
            copy(packed, data.bytes());
            // The kept memory is aligned for every element type and holds whole elements.
            match HostViewMut::from_bytes(packed, data.dtype()) {
                Some(mut packed) => self.broadcast(self.rank(), &mut packed),
                None => Err(crate::Error::Internal("packed elements are not aligned".into())),
            }
        })
    }
}
