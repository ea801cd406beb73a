//! Creation of groups from groups.

use std::sync::Arc;

use crate::{CallOptions, Comm, Communicator, Host, Memory, Result};

/// Makes communicators for some or all members of a communicator.
///
/// Each call is a collective call on the communicator from which the group is made, the parent:
/// every member makes it, in the same order among all other calls, and its sequence number and
/// signature are compared like those of any other. The new communicator is independent: calls on it
/// neither wait for calls on the parent nor need an order among them, it may outlive the parent,
/// and a failure of one does not affect the other. Ranks of the new group count from 0, and groups
/// can be made of groups.
///
/// The call's timeout includes connecting the members, which begins when all members of the parent
/// have agreed; from then on the parent serves other calls, and an abort of it does not end this
/// one. The algorithm and the order of the options are ignored.
///
/// # Errors
/// As written at [`Communicator`]. If the members agreed and then could not be connected,
/// [`Error::NotConnected`](crate::Error::NotConnected): the parent stays usable, and there is no
/// new group.
pub trait Groups<M: Memory = Host>: Communicator<M> {
    /// Makes a group of all members that give the same `color`, ranked by `key` and then by their
    /// rank in the parent. A member without a color takes part in the call and gets no group. This
    /// is MPI's `MPI_Comm_split`.
    ///
    /// # Errors
    /// See [`Groups`].
    fn split(
        &self,
        color: Option<u64>,
        key: i64,
        options: &CallOptions,
    ) -> Result<Option<Box<M::Communicator>>>;

    /// Makes a group of the members that `ranks` lists, ranked in the order of the list. Every
    /// member gives the same list, including those that are not in it, which get no group. This is
    /// `new_group` of c10d, called on any group.
    ///
    /// # Errors
    /// See [`Groups`]; [`Error::Invalid`](crate::Error::Invalid) for a rank that is out of range or
    /// listed twice.
    fn new_group(&self, ranks: &[usize], options: &CallOptions) -> Result<Option<Box<M::Communicator>>>;

    /// Makes a group of the same members in the same order, for calls that must not wait for those
    /// on the parent.
    ///
    /// # Errors
    /// See [`Groups`].
    fn duplicate(&self, options: &CallOptions) -> Result<Box<M::Communicator>>;
}

/// Creation of groups. Handles to new groups start with the options of this handle, and have
/// background work of their own. [`Groups`] documents the rules that all of them share.
impl<M: Memory> Comm<M>
where
    M::Communicator: Groups<M>,
{
    /// Makes a group of all ranks that give the same `color`, ranked by `key` and then by their
    /// rank in this group. Every rank calls this; one that gives no color gets no group.
    ///
    /// ```
    /// use comm::ReduceOp;
    ///
    /// comm::threads::run(5, |comm| {
    ///     let parity = (comm.rank() % 2) as u64;
    ///     let half = comm.split(Some(parity), 0).unwrap().expect("every rank gave a color");
    ///     let sum = half.all_reduce_scalar(comm.rank(), ReduceOp::Sum).unwrap();
    ///     assert_eq!(sum, [0 + 2 + 4, 1 + 3][comm.rank() % 2]);
    /// })?;
    /// # Ok::<_, comm::Error>(())
    /// ```
    ///
    /// # Errors
    /// As written at [`Groups`].
    pub fn split(&self, color: Option<u64>, key: i64) -> Result<Option<Self>> {
        let group = self.communicator().split(color, key, self.options())?;
        Ok(group.map(|group| self.sibling(group)))
    }

    /// Makes a group of the listed ranks, in the order of the list. Every rank calls this with the
    /// same list; one that is not in it gets no group.
    ///
    /// ```
    /// comm::threads::run(3, |comm| {
    ///     match comm.new_group(&[2, 0]).unwrap() {
    ///         Some(pair) => assert_eq!(pair.all_gather_scalar(comm.rank()).unwrap(), [2, 0]),
    ///         None => assert_eq!(comm.rank(), 1),
    ///     }
    /// })?;
    /// # Ok::<_, comm::Error>(())
    /// ```
    ///
    /// # Errors
    /// As written at [`Groups`]; [`Error::Invalid`](crate::Error::Invalid) if the list is not
    /// valid.
    pub fn new_group(&self, ranks: &[usize]) -> Result<Option<Self>> {
        let group = self.communicator().new_group(ranks, self.options())?;
        Ok(group.map(|group| self.sibling(group)))
    }

    /// Makes a group of the same ranks, on which another thread can call independently of the calls
    /// on this one.
    ///
    /// # Errors
    /// As written at [`Groups`].
    pub fn duplicate(&self) -> Result<Self> {
        self.communicator().duplicate(self.options()).map(|group| self.sibling(group))
    }

    /// Returns a handle to another communicator with the options of this one.
    fn sibling(&self, communicator: Box<M::Communicator>) -> Self {
        Self::over(Arc::from(communicator)).with_options(|options| options.clone_from(self.options()))
    }
}
