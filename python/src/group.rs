//! A group of ranks, as the Python part of a process group calls it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use comm::{ANY_TAG, CallOptions, Comm, Config, Error, Membership, Result, Source, TagMatch};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::{exception, kind};
use crate::hooks::AbortHooks;
use crate::members::{Kept, Members};
use crate::memory::Memory;
use crate::message::Message;
use crate::operation::Operation;
use crate::quick;
use crate::request::{Memories, Operator, Request, TensorMemory};
use crate::store::TorchStoreObject;

/// The address and the number of elements of a tensor.
type Span = (usize, usize);

/// A group of ranks.
///
/// Collectives run in the order in which they are called. One that need not be asynchronous runs on
/// the thread of its caller if no other is pending, others as in [`crate::queue`]. Messages run
/// beside them.
#[pyclass(frozen, module = "comm_torch._comm")]
pub(crate) struct ProcessGroup {
    rank: usize,
    size: usize,
    members: Mutex<Option<Arc<Members>>>,
}

/// The manner in which an operation runs, which Python passes as a tuple.
#[derive(FromPyObject)]
pub(crate) struct Run {
    /// The seconds until its deadline.
    #[pyo3(item(0))]
    pub(crate) seconds: f64,
    /// Whether the caller goes on before it has ended.
    #[pyo3(item(1))]
    pub(crate) asynchronous: bool,
    /// The tensors that it uses.
    #[pyo3(item(2))]
    pub(crate) tensors: Py<PyAny>,
    /// A function that copies its results, or None.
    #[pyo3(item(3))]
    pub(crate) finish: Option<Py<PyAny>>,
}

fn timeout(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

impl ProcessGroup {
    fn members(&self) -> Result<Arc<Members>> {
        let members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        members
            .clone()
            .ok_or_else(|| Error::Aborted { by: self.rank, reason: "the process group was shut down".into() })
    }

    /// Runs a collective. Returns None if it has ended.
    fn start(&self, py: Python<'_>, request: Result<Request>, how: Run) -> PyResult<Option<Operation>> {
        let started = request.and_then(|request| Ok((request, self.members()?)));
        let (request, members) = started.map_err(|error| exception(py, &error))?;
        let Run { seconds, asynchronous, tensors, finish } = how;
        let timeout = timeout(seconds);
        let has_ended = !asynchronous
            && py.detach(|| members.try_run(&request, timeout)).map_err(|error| exception(py, &error))?;
        if has_ended {
            return finish.map_or(Ok(None), |finish| finish.call0(py).map(|_| None));
        }
        let queued = members.queue(request, timeout, Kept { tensors, finish });
        queued.map(Some).map_err(|error| exception(py, &error))
    }

    /// Starts a call that [`quick`] has read. Returns None if it has ended, and `NotImplemented` if
    /// it was not read.
    fn start_quick(&self, py: Python<'_>, call: Option<(Request, Run)>) -> PyResult<Py<PyAny>> {
        let Some((request, how)) = call else { return Ok(py.NotImplemented()) };
        match self.start(py, Ok(request), how)? {
            Some(operation) => Ok(Py::new(py, operation)?.into_any()),
            None => Ok(py.None()),
        }
    }

    /// Posts a message.
    fn post(
        &self,
        py: Python<'_>,
        memory: Result<TensorMemory>,
        how: Run,
        post: impl FnOnce(&Comm, Box<Message>) -> bool + Send,
    ) -> PyResult<Operation> {
        let kept = Kept { tensors: how.tensors, finish: how.finish };
        let posted = memory.and_then(|memory| self.members()?.post(py, memory, kept, post));
        posted.map_err(|error| exception(py, &error))
    }
}

#[pymethods]
impl ProcessGroup {
    /// Meets the other ranks through a store of PyTorch, and connects to them. `subgroup` has the
    /// name of the group and its members' ranks in the world, or is None for the world. The
    /// functions of `abort_hooks` are called when the group has failed.
    #[new]
    fn new(
        py: Python<'_>,
        store: Py<PyAny>,
        rank: usize,
        size: usize,
        seconds: f64,
        subgroup: Option<(String, Vec<usize>)>,
        abort_hooks: Py<PyDict>,
    ) -> PyResult<Self> {
        let connected = py.detach(|| {
            let mut config = Config::options_from_env(Membership { rank, size })?;
            if let Some((name, members)) = subgroup {
                config.set_subgroup(&name, members)?;
            }
            (config.rendezvous_timeout, config.timeout) = (timeout(seconds), timeout(seconds));
            let comm = comm::init_over(Arc::new(TorchStoreObject(store)), &config)?;
            Members::new(comm, AbortHooks::new(abort_hooks))
        });
        let members = connected.map_err(|error| exception(py, &error))?;
        Ok(Self { rank, size, members: Mutex::new(Some(Arc::new(members))) })
    }

    #[getter]
    fn rank(&self) -> usize {
        self.rank
    }

    #[getter]
    fn size(&self) -> usize {
        self.size
    }

    fn all_reduce(
        &self,
        py: Python<'_>,
        buffer: Span,
        dtype: u8,
        op: Operator,
        how: Run,
    ) -> PyResult<Option<Operation>> {
        let request = || {
            let memory = TensorMemory::new(buffer.0, buffer.1, dtype)?;
            Ok(Request::AllReduce { memories: Memories::InPlace(memory), op: op.of_comm()? })
        };
        self.start(py, request(), how)
    }

    fn reduce(
        &self,
        py: Python<'_>,
        buffer: Span,
        dtype: u8,
        op: Operator,
        root: usize,
        how: Run,
    ) -> PyResult<Option<Operation>> {
        let request = || {
            let memory = TensorMemory::new(buffer.0, buffer.1, dtype)?;
            let memories =
                if root == self.rank { Memories::InPlace(memory) } else { Memories::SendOnly(memory) };
            Ok(Request::Reduce { root, memories, op: op.of_comm()? })
        };
        self.start(py, request(), how)
    }

    fn broadcast(
        &self,
        py: Python<'_>,
        buffer: Span,
        dtype: u8,
        root: usize,
        how: Run,
    ) -> PyResult<Option<Operation>> {
        let request = TensorMemory::new(buffer.0, buffer.1, dtype);
        self.start(py, request.map(|memory| Request::Broadcast { root, memory }), how)
    }

    /// `counts` has the number of elements of each rank, or is None if all have equally many.
    fn all_gather(
        &self,
        py: Python<'_>,
        send: Span,
        recv: Span,
        dtype: u8,
        counts: Option<Vec<usize>>,
        how: Run,
    ) -> PyResult<Option<Operation>> {
        let memories = separate(send, recv, dtype);
        self.start(py, memories.map(|memories| Request::AllGather { memories, counts }), how)
    }

    #[expect(clippy::too_many_arguments, reason = "Python passes each by its position")]
    fn reduce_scatter(
        &self,
        py: Python<'_>,
        send: Span,
        recv: Span,
        dtype: u8,
        op: Operator,
        counts: Option<Vec<usize>>,
        how: Run,
    ) -> PyResult<Option<Operation>> {
        let request = || {
            Ok(Request::ReduceScatter { memories: separate(send, recv, dtype)?, counts, op: op.of_comm()? })
        };
        self.start(py, request(), how)
    }

    /// `recv` is None on ranks other than the root.
    fn gather(
        &self,
        py: Python<'_>,
        send: Span,
        recv: Option<Span>,
        dtype: u8,
        root: usize,
        how: Run,
    ) -> PyResult<Option<Operation>> {
        let memories = match recv {
            Some(recv) => separate(send, recv, dtype),
            None => TensorMemory::new(send.0, send.1, dtype).map(Memories::SendOnly),
        };
        self.start(py, memories.map(|memories| Request::Gather { root, memories }), how)
    }

    /// `send` is None on ranks other than the root.
    fn scatter(
        &self,
        py: Python<'_>,
        send: Option<Span>,
        recv: Span,
        dtype: u8,
        root: usize,
        how: Run,
    ) -> PyResult<Option<Operation>> {
        let memories = match send {
            Some(send) => separate(send, recv, dtype),
            None => TensorMemory::new(recv.0, recv.1, dtype).map(Memories::InPlace),
        };
        self.start(py, memories.map(|memories| Request::Scatter { root, memories }), how)
    }

    #[expect(clippy::too_many_arguments, reason = "Python passes each by its position")]
    fn all_to_all(
        &self,
        py: Python<'_>,
        send: Span,
        recv: Span,
        dtype: u8,
        send_counts: Option<Vec<usize>>,
        recv_counts: Option<Vec<usize>>,
        how: Run,
    ) -> PyResult<Option<Operation>> {
        let memories = separate(send, recv, dtype);
        let request =
            memories.map(|memories| Request::AllToAll { memories, send: send_counts, recv: recv_counts });
        self.start(py, request, how)
    }

    fn barrier(&self, py: Python<'_>, how: Run) -> PyResult<Option<Operation>> {
        self.start(py, Ok(Request::Barrier), how)
    }

    fn monitored_barrier(&self, py: Python<'_>, how: Run) -> PyResult<Option<Operation>> {
        self.start(py, Ok(Request::MonitoredBarrier), how)
    }

    fn send(
        &self,
        py: Python<'_>,
        buffer: Span,
        dtype: u8,
        to: usize,
        tag: u64,
        how: Run,
    ) -> PyResult<Operation> {
        let options = CallOptions::default().timeout(timeout(how.seconds));
        let memory = TensorMemory::new(buffer.0, buffer.1, dtype);
        self.post(py, memory, how, |comm, message| comm.communicator().post_send(to, tag, message, &options))
    }

    /// `from` and `tag` are None for a message of any rank or with any tag.
    fn recv(
        &self,
        py: Python<'_>,
        buffer: Span,
        dtype: u8,
        from: Option<usize>,
        tag: Option<u64>,
        how: Run,
    ) -> PyResult<Operation> {
        let options = CallOptions::default().timeout(timeout(how.seconds));
        let memory = TensorMemory::new(buffer.0, buffer.1, dtype);
        let (from, tag) = (from.map_or(Source::Any, Source::Rank), tag.map_or(ANY_TAG, TagMatch::Is));
        self.post(py, memory, how, |comm, message| {
            comm.communicator().post_recv(from, tag, message, &options)
        })
    }

    /// Like `all_reduce`, but reads the call itself: the list of one tensor, the options, and the
    /// group's timeout in seconds. Returns `NotImplemented`, and does nothing, if [`quick`] cannot.
    fn quick_all_reduce(
        &self,
        tensors: &Bound<'_, PyAny>,
        opts: &Bound<'_, PyAny>,
        seconds: f64,
    ) -> PyResult<Py<PyAny>> {
        self.start_quick(tensors.py(), quick::all_reduce(tensors, opts, seconds))
    }

    fn quick_broadcast(
        &self,
        tensors: &Bound<'_, PyAny>,
        opts: &Bound<'_, PyAny>,
        seconds: f64,
    ) -> PyResult<Py<PyAny>> {
        self.start_quick(tensors.py(), quick::broadcast(tensors, opts, seconds))
    }

    /// Like `quick_all_reduce`, with the tensors that receive and send.
    fn quick_all_gather(
        &self,
        output: &Bound<'_, PyAny>,
        input: &Bound<'_, PyAny>,
        opts: &Bound<'_, PyAny>,
        seconds: f64,
    ) -> PyResult<Py<PyAny>> {
        self.start_quick(output.py(), quick::all_gather(output, input, opts, seconds))
    }

    fn quick_reduce_scatter(
        &self,
        output: &Bound<'_, PyAny>,
        input: &Bound<'_, PyAny>,
        opts: &Bound<'_, PyAny>,
        seconds: f64,
    ) -> PyResult<Py<PyAny>> {
        self.start_quick(output.py(), quick::reduce_scatter(output, input, opts, seconds))
    }

    fn quick_barrier(&self, opts: &Bound<'_, PyAny>, seconds: f64) -> PyResult<Py<PyAny>> {
        self.start_quick(opts.py(), quick::barrier(opts, seconds))
    }

    /// Allocates memory that other ranks of the host read in place.
    fn allocate(&self, py: Python<'_>, bytes: usize) -> PyResult<Memory> {
        let allocated = py.detach(|| self.members()?.comm.alloc(bytes));
        allocated.map(Memory::new).map_err(|error| exception(py, &error))
    }

    /// Returns whether a collective or a message has not ended.
    fn is_pending(&self) -> bool {
        self.members().is_ok_and(|members| members.is_pending())
    }

    /// Returns the kind of the error with which the group has failed, if it has, other than by an
    /// abort of this rank. None while a call runs.
    fn failure(&self, py: Python<'_>) -> Option<&'static str> {
        let failure = py.detach(|| self.members().ok().and_then(|members| members.caller.failure()));
        failure.as_ref().map(kind)
    }

    /// Ends all calls, here and on the other ranks.
    fn abort(&self, py: Python<'_>, reason: &str) {
        if let Ok(members) = self.members() {
            py.detach(|| members.comm.abort(reason));
        }
    }

    /// Calls the abort hooks, before the program aborts the group.
    fn call_abort_hooks(&self, py: Python<'_>) {
        if let Ok(members) = self.members() {
            py.detach(|| members.caller.hooks.call());
        }
    }

    /// Leaves the group once the pending operations have ended, except receives that no message has
    /// matched, which are cancelled.
    fn shutdown(&self, py: Python<'_>) {
        let members = self.members.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(members));
    }
}

fn separate((send, len): Span, (recv, recv_len): Span, dtype: u8) -> Result<Memories> {
    Memories::separate(TensorMemory::new(send, len, dtype)?, TensorMemory::new(recv, recv_len, dtype)?)
}
