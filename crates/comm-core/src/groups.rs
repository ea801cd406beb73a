//! Creation of groups from existing ones.

use std::sync::Arc;

use crate::{CallOptions, Comm, Communicator, Host, Invalid, Memory, Result, ShrinkOptions, Shrunk};

/// Creates communicators for some or all members of a communicator.
///
/// Each call is a collective on the communicator from which the group is created, the parent: every
/// member makes it at the same position in its sequence of calls, and its sequence number and
/// signature are compared like those of any other call. The new communicator is independent: calls
/// on it neither wait for calls on the parent nor need to be ordered with them, it may outlive the
/// parent, and a failure of one does not affect the other. Ranks of the new group count from 0. A
/// new group can itself be a parent.
///
/// The call's timeout includes connecting the members, which begins when all members of the parent
/// have agreed. From then on the parent can run other calls, and aborting it does not end this
/// call. The algorithm and the order in the options are ignored.
///
/// # Errors
/// See [`Communicator`]. [`Error::NotConnected`](crate::Error::NotConnected) if the members agreed
/// but could not be connected: the parent remains usable, and there is no new group.
pub trait Groups<M: Memory = Host>: Communicator<M> {
    /// Creates a group of all members that pass the same `color`, ranked by `key` and then by their
    /// rank in the parent. A member without a color takes part in the call and gets `None`. This is
    /// MPI's `MPI_Comm_split`.
    ///
    /// # Errors
    /// See [`Groups`].
    fn split(
        &self,
        color: Option<u64>,
        key: i64,
        options: &CallOptions,
    ) -> Result<Option<Box<M::Communicator>>>;

    /// Creates a group of the members listed in `ranks`, ranked in the order of the list. Every
    /// member passes the same list, including members that are not in it, which get `None`. This is
    /// `new_group` of c10d, generalized to any parent.
    ///
    /// # Errors
    /// See [`Groups`]; [`Error::Invalid`](crate::Error::Invalid) for a rank that is out of range or
    /// listed twice.
    fn new_group(&self, ranks: &[usize], options: &CallOptions) -> Result<Option<Box<M::Communicator>>>;

    /// Creates a group of the same members in the same order, for calls that must not wait for
    /// those on the parent.
    ///
    /// # Errors
    /// See [`Groups`].
    fn duplicate(&self, options: &CallOptions) -> Result<Box<M::Communicator>>;

    /// Creates a group of the members that remain after a failure, as described at
    /// [`Comm::shrink`]. It is no call of the sequence: the communicator may have failed, and fails
    /// if it has not.
    ///
    /// # Errors
    /// See [`Comm::shrink`]. The default is
    /// [`Invalid::Unsupported`](crate::Invalid::Unsupported).
    fn shrink(&self, options: &ShrinkOptions) -> Result<Shrunk<Box<M::Communicator>>> {
        let _ = options;
        Err(Invalid::Unsupported { backend: "this backend", collective: "shrink" }.into())
    }
}

/// Creation of groups. A handle to a new group starts with the options of this handle, and has its
/// own background workers. [`Groups`] documents the rules that these calls share.
impl<M: Memory> Comm<M>
where
    M::Communicator: Groups<M>,
{
    /// Creates a group of all ranks that pass the same `color`, ranked by `key` and then by their
    /// rank in this group. Every rank calls this; a rank without a color gets `None`.
    ///
    /// ```
    /// use comm::ReduceOp;
    ///
    /// comm::threads::run(5, |comm| {
    ///     let parity = (comm.rank() % 2) as u64;
    ///     let half = comm.split(Some(parity), 0).unwrap().expect("every rank passed a color");
    ///     let sum = half.all_reduce_scalar(comm.rank(), ReduceOp::Sum).unwrap();
    ///     assert_eq!(sum, [0 + 2 + 4, 1 + 3][comm.rank() % 2]);
    /// })?;
    /// # Ok::<_, comm::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Groups`].
    pub fn split(&self, color: Option<u64>, key: i64) -> Result<Option<Self>> {
        let group = self.communicator().split(color, key, self.options())?;
        Ok(group.map(|group| self.sibling(group)))
    }

    /// Creates a group of the listed ranks, in the order of the list. Every rank calls this with
    /// the same list; a rank that is not in it gets `None`.
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
    /// See [`Groups`]; [`Error::Invalid`](crate::Error::Invalid) if the list is not valid.
    pub fn new_group(&self, ranks: &[usize]) -> Result<Option<Self>> {
        let group = self.communicator().new_group(ranks, self.options())?;
        Ok(group.map(|group| self.sibling(group)))
    }

    /// Creates a group of the same ranks, on which another thread can make calls independently of
    /// those on this one.
    ///
    /// # Errors
    /// See [`Groups`].
    pub fn duplicate(&self) -> Result<Self> {
        self.communicator().duplicate(self.options()).map(|group| self.sibling(group))
    }

    /// Returns a handle to another communicator with the options of this one.
    pub(crate) fn sibling(&self, communicator: Box<M::Communicator>) -> Self {
        Self::over(Arc::from(communicator)).with_options(|options| options.clone_from(self.options()))
    }
}
