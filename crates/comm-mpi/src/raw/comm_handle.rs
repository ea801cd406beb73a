//! A communicator of MPI, and the calls on it.

use std::ffi::c_int;

use comm_core::{Collective, Error, Membership, Result};
use mpi::ffi;
use mpi::traits::AsRaw;

use super::request::{Operation, PinnedMemory};
use super::routine::CallMemory;
use super::runtime::call;
use super::types::{Datatype, count_of};

/// A communicator that belongs to this library.
#[derive(Debug)]
pub(crate) struct CommHandle {
    raw: ffi::MPI_Comm,
    rank: usize,
    size: usize,
    /// Whether MPI frees it when it is dropped.
    is_released: bool,
}

// SAFETY: a handle, which every thread may use; `call` serializes the calls if MPI requires it.
unsafe impl Send for CommHandle {}
// SAFETY: as above.
unsafe impl Sync for CommHandle {}

/// The part of one rank in a split.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Split {
    /// The number of its new group, if it has one.
    pub(crate) color: Option<usize>,
    /// Its position in the new group.
    pub(crate) key: usize,
}

/// A place for a new communicator, which MPI fills in the background.
#[derive(Debug)]
pub(crate) struct NewComm(Vec<ffi::MPI_Comm>);

// SAFETY: a handle, which every thread may use.
unsafe impl Send for NewComm {}

impl PinnedMemory for NewComm {}

/// The duplication of a communicator in progress.
#[derive(Debug)]
pub(crate) struct Duplicate {
    pub(crate) operation: Operation<NewComm>,
    /// This rank in the communicator.
    pub(crate) membership: Membership,
}

impl CommHandle {
    /// Starts to duplicate the communicator of all processes.
    pub(crate) fn duplicate_world() -> Result<Duplicate> {
        // SAFETY: the value of a constant of the library.
        duplicate(unsafe { ffi::RSMPI_COMM_WORLD })
    }

    /// Starts to duplicate a communicator of the program.
    pub(crate) fn duplicate_of(comm: &impl AsRaw<Raw = ffi::MPI_Comm>) -> Result<Duplicate> {
        duplicate(comm.as_raw())
    }

    /// Returns the duplicate.
    pub(crate) fn duplicated(new: NewComm) -> Result<Self> {
        let lost = || Error::Internal("a duplicate of a communicator was lost".into());
        Self::over(new.0.first().copied().ok_or_else(lost)?)
    }

    fn over(raw: ffi::MPI_Comm) -> Result<Self> {
        // SAFETY: the value of a constant of the library.
        let errors_return = unsafe { ffi::RSMPI_ERRORS_RETURN };
        call("set an error handler", || {
            // SAFETY: a valid communicator and error handler.
            unsafe { ffi::MPI_Comm_set_errhandler(raw, errors_return) }
        })?;
        let Membership { rank, size } = membership(raw)?;
        Ok(Self { raw, rank, size, is_released: false })
    }

    pub(crate) const fn membership(&self) -> Membership {
        Membership { rank: self.rank, size: self.size }
    }

    /// Lets MPI free the communicator when it is dropped. No operation is pending, and every
    /// message has been received: MPI may give those that have not to a later communicator.
    pub(crate) const fn release(&mut self) {
        self.is_released = true;
    }

    /// Starts a collective.
    ///
    /// # Errors
    /// [`Error::Internal`] if a buffer is too short, [`Error::Backend`].
    pub(crate) fn start(&self, memory: CallMemory) -> Result<Operation<CallMemory>> {
        memory.check(self.rank, self.size)?;
        let mut memory = memory;
        let mut request = null_request();
        self.start_routine(&mut memory, &mut request)?;
        Ok(Operation::new(request, memory))
    }

    fn start_routine(&self, memory: &mut CallMemory, request: &mut ffi::MPI_Request) -> Result<()> {
        let (from, to) = (memory.send.as_ptr(), memory.recv.as_ptr());
        let routine = &memory.routine;
        let (comm, datatype, root) = (self.raw, routine.datatype.0, routine.root);
        let op = || {
            let missing = || Error::Internal("a reduction has no operator".into());
            routine.op.map(|op| op.0).ok_or_else(missing)
        };
        let (sent, received) = (|| routine.send.equal(), || routine.recv.equal());
        let (send_lists, recv_lists) = (routine.send.lists()?, routine.recv.lists()?);
        let has_counts = routine.collective.base() != routine.collective;
        /// Starts one function of MPI.
        macro_rules! start {
            ($function:ident($($argument:expr),*)) => {{
                // SAFETY: the buffers hold all elements, as `CallMemory::check` has found, and they
                // and the lists exist until the operation has ended.
                call("start a collective", || unsafe { ffi::$function($($argument),*, comm, request) })
            }};
        }
        match (routine.collective.base(), has_counts) {
            (Collective::AllReduce, _) => {
                let (count, op) = (sent()?, op()?);
                start!(MPI_Iallreduce(from, to, count, datatype, op))
            }
            (Collective::Reduce, _) => {
                let (count, op) = (sent()?, op()?);
                start!(MPI_Ireduce(from, to, count, datatype, op, root))
            }
            (Collective::Scan, _) => {
                let (count, op) = (sent()?, op()?);
                start!(MPI_Iscan(from, to, count, datatype, op))
            }
            (Collective::Exscan, _) => {
                let (count, op) = (sent()?, op()?);
                start!(MPI_Iexscan(from, to, count, datatype, op))
            }
            (Collective::ReduceScatter, false) => {
                let (count, op) = (sent()?, op()?);
                start!(MPI_Ireduce_scatter_block(from, to, count, datatype, op))
            }
            (Collective::ReduceScatter, true) => {
                let op = op()?;
                start!(MPI_Ireduce_scatter(from, to, send_lists.0, datatype, op))
            }
            (Collective::Broadcast, _) => {
                // There is one buffer: the root's is only read.
                let is_root = usize::try_from(root) == Ok(self.rank);
                let (buffer, count) = if is_root { (from, sent()?) } else { (to, received()?) };
                start!(MPI_Ibcast(buffer, count, datatype, root))
            }
            (Collective::AllGather, false) => {
                let (sent, received) = (sent()?, received()?);
                start!(MPI_Iallgather(from, sent, datatype, to, received, datatype))
            }
            (Collective::AllGather, true) => {
                let sent = sent()?;
                let (counts, starts) = recv_lists;
                start!(MPI_Iallgatherv(from, sent, datatype, to, counts, starts, datatype))
            }
            (Collective::Gather, false) => {
                let (sent, received) = (sent()?, received()?);
                start!(MPI_Igather(from, sent, datatype, to, received, datatype, root))
            }
            (Collective::Gather, true) => {
                let sent = sent()?;
                let (counts, starts) = recv_lists;
                start!(MPI_Igatherv(from, sent, datatype, to, counts, starts, datatype, root))
            }
            (Collective::Scatter, false) => {
                let (sent, received) = (sent()?, received()?);
                start!(MPI_Iscatter(from, sent, datatype, to, received, datatype, root))
            }
            (Collective::Scatter, true) => {
                let received = received()?;
                let (counts, starts) = send_lists;
                start!(MPI_Iscatterv(from, counts, starts, datatype, to, received, datatype, root))
            }
            (Collective::AllToAll, false) => {
                let (sent, received) = (sent()?, received()?);
                start!(MPI_Ialltoall(from, sent, datatype, to, received, datatype))
            }
            (Collective::AllToAll, true) => {
                let ((counts, starts), (to_counts, to_starts)) = (send_lists, recv_lists);
                start!(MPI_Ialltoallv(from, counts, starts, datatype, to, to_counts, to_starts, datatype))
            }
            (Collective::Barrier, false) => {
                // SAFETY: a valid communicator.
                call("start a barrier", || unsafe { ffi::MPI_Ibarrier(comm, request) })
            }
            (other, _) => Err(Error::Internal(format!("MPI has no function for {other}"))),
        }
    }

    /// Starts to send bytes. A `matched` send ends only once a receive has taken them.
    pub(crate) fn send(
        &self,
        to: usize,
        tag: c_int,
        bytes: Vec<u8>,
        matched: bool,
    ) -> Result<Operation<Vec<u8>>> {
        let (to, len) = (self.peer(to)?, count_of("a message", bytes.len())?);
        let (start, byte, comm) = (bytes.as_ptr().cast(), Datatype::byte().0, self.raw);
        let mut request = null_request();
        let place = &raw mut request;
        call("send a message", || {
            if matched {
                // SAFETY: the vector holds `len` bytes, and exists until the operation has ended.
                unsafe { ffi::MPI_Issend(start, len, byte, to, tag, comm, place) }
            } else {
                // SAFETY: as above.
                unsafe { ffi::MPI_Isend(start, len, byte, to, tag, comm, place) }
            }
        })?;
        Ok(Operation::new(request, bytes))
    }

    /// Starts to receive `len` bytes.
    pub(crate) fn recv(&self, from: usize, tag: c_int, len: usize) -> Result<Operation<Vec<u8>>> {
        let (from, count) = (self.peer(from)?, count_of("a message", len)?);
        let mut bytes = vec![0_u8; len];
        let (start, byte, comm) = (bytes.as_mut_ptr().cast(), Datatype::byte().0, self.raw);
        let mut request = null_request();
        let place = &raw mut request;
        call("receive a message", || {
            // SAFETY: the vector holds `count` bytes, and exists until the operation has ended.
            unsafe { ffi::MPI_Irecv(start, count, byte, from, tag, comm, place) }
        })?;
        Ok(Operation::new(request, bytes))
    }

    /// Receives a short message with this tag, if one has arrived. Returns its sender.
    pub(crate) fn try_recv(&self, tag: c_int) -> Result<Option<(usize, Vec<u8>)>> {
        // SAFETY: the value of a constant of the library.
        let any = unsafe { ffi::RSMPI_ANY_SOURCE };
        // SAFETY: the value of a constant of the library.
        let mut message = unsafe { ffi::RSMPI_MESSAGE_NULL };
        // SAFETY: integers and bytes, for which zeros are valid.
        let mut status: ffi::MPI_Status = unsafe { std::mem::zeroed() };
        let (comm, byte) = (self.raw, Datatype::byte().0);
        let (mut flag, mut len) = (0, 0);
        call("look for a message", || {
            // SAFETY: places for the results.
            unsafe { ffi::MPI_Improbe(any, tag, comm, &raw mut flag, &raw mut message, &raw mut status) }
        })?;
        if flag == 0 {
            return Ok(None);
        }
        call("read the length of a message", || {
            // SAFETY: the status of a message that was found.
            unsafe { ffi::MPI_Get_count(&raw const status, byte, &raw mut len) }
        })?;
        let mut bytes = vec![0_u8; usize::try_from(len).unwrap_or(0)];
        let start = bytes.as_mut_ptr().cast();
        // SAFETY: the value of a constant of the library.
        let ignored = unsafe { ffi::RSMPI_STATUS_IGNORE };
        call("receive a short message", || {
            // SAFETY: the message was found, is received once, and fits the vector.
            unsafe { ffi::MPI_Mrecv(start, len, byte, &raw mut message, ignored) }
        })?;
        Ok(Some((usize::try_from(status.MPI_SOURCE).unwrap_or(usize::MAX), bytes)))
    }

    /// Creates a communicator of the ranks with the same color. Every rank calls this, and waits
    /// for all others without a deadline.
    pub(crate) fn split(&self, split: Split) -> Result<Option<Self>> {
        // SAFETY: the value of a constant of the library.
        let undefined = unsafe { ffi::RSMPI_UNDEFINED };
        let color = split.color.map_or(Ok(undefined), |color| count_of("the colors", color))?;
        let key = count_of("the keys", split.key)?;
        // SAFETY: the value of a constant of the library, as a place for the communicator.
        let mut new = unsafe { ffi::RSMPI_COMM_NULL };
        call("split a communicator", || {
            // SAFETY: a valid communicator, and a place for another.
            unsafe { ffi::MPI_Comm_split(self.raw, color, key, &raw mut new) }
        })?;
        split.color.map(|_| Self::over(new)).transpose()
    }

    fn peer(&self, rank: usize) -> Result<c_int> {
        let is_member = rank < self.size;
        c_int::try_from(rank)
            .ok()
            .filter(|_| is_member)
            .ok_or_else(|| Error::Internal(format!("rank {rank} is not in the communicator of MPI")))
    }
}

impl Drop for CommHandle {
    fn drop(&mut self) {
        if self.is_released {
            // SAFETY: the communicator belongs to this library and is not used again. If MPI has
            // been finalized, it no longer exists, and `call` returns an error.
            let freed = call("free a communicator", || unsafe { ffi::MPI_Comm_free(&raw mut self.raw) });
            if let Err(error) = freed {
                tracing::debug!(%error, "a communicator of MPI was not freed");
            }
        }
    }
}

fn membership(comm: ffi::MPI_Comm) -> Result<Membership> {
    let (mut rank, mut size) = (0, 0);
    call("read a rank", || {
        // SAFETY: a valid communicator.
        unsafe { ffi::MPI_Comm_rank(comm, &raw mut rank) }
    })?;
    call("read a size", || {
        // SAFETY: a valid communicator.
        unsafe { ffi::MPI_Comm_size(comm, &raw mut size) }
    })?;
    let convert = |number: c_int| usize::try_from(number).unwrap_or(0);
    Ok(Membership { rank: convert(rank), size: convert(size) })
}

fn duplicate(comm: ffi::MPI_Comm) -> Result<Duplicate> {
    let membership = membership(comm)?;
    // SAFETY: the value of a constant of the library, as a place for the communicator.
    let mut new = NewComm(vec![unsafe { ffi::RSMPI_COMM_NULL }]);
    let mut request = null_request();
    let (place, request_place) = (new.0.as_mut_ptr(), &raw mut request);
    call("duplicate a communicator", || {
        // SAFETY: a valid communicator, and a place that exists until the operation has ended.
        unsafe { ffi::MPI_Comm_idup(comm, place, request_place) }
    })?;
    Ok(Duplicate { operation: Operation::new(request, new), membership })
}

fn null_request() -> ffi::MPI_Request {
    // SAFETY: the value of a constant of the library.
    unsafe { ffi::RSMPI_REQUEST_NULL }
}
