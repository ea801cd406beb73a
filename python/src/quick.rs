//! Reads the usual calls from PyTorch's objects: without the profiler, on tensors in host memory
//! that is their elements in order.
//!
//! The Python part reads all calls, and takes several times as long. So nothing here says what is
//! wrong with a call: a function returns None for all that is unusual, and the Python part reads
//! the call again.

use std::sync::{Mutex, PoisonError};

use comm::ReduceOp;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyList, PyString, PyTuple, PyType};

use crate::group::Run;
use crate::request::{Memories, Operator, Request, TensorMemory};

/// A call that is not read here.
struct Unusual;

impl From<PyErr> for Unusual {
    fn from(_: PyErr) -> Self {
        Self
    }
}

impl From<comm::Error> for Unusual {
    fn from(_: comm::Error) -> Self {
        Self
    }
}

type Usual<T> = Result<T, Unusual>;

/// The objects of PyTorch and of the Python part that are used here.
struct Torch {
    all_reduce: Kind,
    broadcast: Kind,
    all_gather: Kind,
    reduce_scatter: Kind,
    barrier: Kind,
    /// The timeout of options that have none.
    no_timeout: Py<PyAny>,
    cpu: Py<PyAny>,
    is_profiled: Py<PyAny>,
    to_move: Py<PyAny>,
    to_reduce: Py<PyAny>,
    known: Mutex<Vec<Known>>,
}

/// A class of options.
struct Kind {
    class: Py<PyType>,
    /// Whether it has `asyncOp`, which depends on the version of PyTorch.
    has_async: bool,
}

/// The answer of the Python part for a type, and for the hash of an operator if it is reduced.
struct Known {
    dtype: Py<PyAny>,
    op: Option<isize>,
    elements: Elements,
}

/// The elements of a tensor as comm sees them.
#[derive(Clone, Copy)]
struct Elements {
    code: u8,
    /// Their number in one element of the tensor.
    width: usize,
    is_complex: bool,
    op: Option<ReduceOp>,
}

static TORCH: PyOnceLock<Torch> = PyOnceLock::new();

impl Torch {
    fn get(py: Python<'_>) -> Usual<&Self> {
        Ok(TORCH.get_or_try_init(py, || Self::new(py))?)
    }

    fn new(py: Python<'_>) -> PyResult<Self> {
        let c10d = py.import("torch._C._distributed_c10d")?;
        let kind = |name| {
            let class = c10d.getattr(name)?.cast_into::<PyType>()?;
            let has_async = class.hasattr("asyncOp")?;
            PyResult::Ok(Kind { class: class.unbind(), has_async })
        };
        let no_timeout = c10d.getattr("AllreduceOptions")?.call0()?.getattr("timeout")?.unbind();
        let tensors = py.import("comm_torch.tensors")?;
        Ok(Self {
            all_reduce: kind("AllreduceOptions")?,
            broadcast: kind("BroadcastOptions")?,
            all_gather: kind("AllgatherOptions")?,
            reduce_scatter: kind("ReduceScatterOptions")?,
            barrier: kind("BarrierOptions")?,
            no_timeout,
            cpu: py.import("comm_torch.devices")?.getattr("CPU")?.unbind(),
            is_profiled: py.import("torch.autograd")?.getattr("_profiler_enabled")?.unbind(),
            to_move: tensors.getattr("to_move")?.unbind(),
            to_reduce: tensors.getattr("to_reduce")?.unbind(),
            known: Mutex::default(),
        })
    }

    /// Returns the elements of a type, which are reduced if there is an operator.
    fn elements(&self, dtype: &Bound<'_, PyAny>, op: Option<&Bound<'_, PyAny>>) -> Usual<Elements> {
        let hash = op.map(|op| op.hash()).transpose()?;
        let known = |known: &&Known| known.dtype.is(dtype) && known.op == hash;
        if let Some(known) = self.known().iter().find(known) {
            return Ok(known.elements);
        }
        let elements = self.ask(dtype, op)?;
        self.known().push(Known { dtype: dtype.clone().unbind(), op: hash, elements });
        Ok(elements)
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Vec<Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the Python part. A factor belongs to one call and not to an operator, so it is unusual.
    fn ask(&self, dtype: &Bound<'_, PyAny>, op: Option<&Bound<'_, PyAny>>) -> Usual<Elements> {
        let py = dtype.py();
        let is_complex = dtype.getattr("is_complex")?.is_truthy()?;
        let Some(op) = op else {
            let (code, width) = self.to_move.bind(py).call1((dtype,))?.extract()?;
            return Ok(Elements { code, width, is_complex, op: None });
        };
        let (code, width, name): (u8, usize, Bound<'_, PyAny>) =
            self.to_reduce.bind(py).call1((dtype, op))?.extract()?;
        let name = name.cast_into::<PyString>().map_err(PyErr::from)?;
        let op = name.extract::<Operator>()?.of_comm()?;
        Ok(Elements { code, width, is_complex, op: Some(op) })
    }
}

/// A call whose options are of the class that they should be.
struct Call<'a, 'py> {
    torch: &'a Torch,
    opts: &'a Bound<'py, PyAny>,
    has_async: bool,
    /// The timeout of the group.
    seconds: f64,
}

impl<'a, 'py> Call<'a, 'py> {
    fn new(opts: &'a Bound<'py, PyAny>, kind: fn(&Torch) -> &Kind, seconds: f64) -> Usual<Self> {
        let torch = Torch::get(opts.py())?;
        let Kind { class, has_async } = kind(torch);
        let is_usual =
            opts.get_type().is(class) && !torch.is_profiled.bind(opts.py()).call0()?.is_truthy()?;
        if is_usual { Ok(Self { torch, opts, has_async: *has_async, seconds }) } else { Err(Unusual) }
    }

    fn with(self, request: Request, tensors: Py<PyAny>) -> Usual<(Request, Run)> {
        let py = self.opts.py();
        let timeout = self.opts.getattr(intern!(py, "timeout"))?;
        let seconds = if timeout.eq(&self.torch.no_timeout)? {
            self.seconds
        } else {
            let own = timeout.call_method0("total_seconds")?.extract()?;
            if own < 0.0 { self.seconds } else { own }
        };
        let asynchronous = !self.has_async || self.opts.getattr(intern!(py, "asyncOp"))?.is_truthy()?;
        Ok((request, Run { seconds, asynchronous, tensors, finish: None }))
    }

    fn to_move(&self, tensor: &Bound<'py, PyAny>) -> Usual<Elements> {
        self.torch.elements(&tensor.getattr(intern!(tensor.py(), "dtype"))?, None)
    }

    fn to_reduce(&self, tensor: &Bound<'py, PyAny>) -> Usual<(Elements, ReduceOp)> {
        let py = tensor.py();
        let op = self.opts.getattr(intern!(py, "reduceOp"))?;
        let elements = self.torch.elements(&tensor.getattr(intern!(py, "dtype"))?, Some(&op))?;
        Ok((elements, elements.op.ok_or(Unusual)?))
    }
}

/// Returns the tensor of a list of one.
fn single<'py>(tensors: &Bound<'py, PyAny>) -> Usual<Bound<'py, PyAny>> {
    let tensors = tensors.cast_exact::<PyList>().map_err(PyErr::from)?;
    if tensors.len() == 1 { Ok(tensors.get_item(0)?) } else { Err(Unusual) }
}

/// Returns the memory of a tensor.
fn memory(tensor: &Bound<'_, PyAny>, elements: Elements) -> Usual<TensorMemory> {
    let py = tensor.py();
    let calls = |name| tensor.call_method0(name)?.is_truthy();
    let is_plain = tensor.getattr(intern!(py, "is_cpu"))?.is_truthy()?
        && calls(intern!(py, "is_contiguous"))?
        && !calls(intern!(py, "is_neg"))?
        && !(elements.is_complex && calls(intern!(py, "is_conj"))?);
    if !is_plain {
        return Err(Unusual);
    }
    let address = tensor.call_method0(intern!(py, "data_ptr"))?.extract()?;
    let len: usize = tensor.call_method0(intern!(py, "numel"))?.extract()?;
    Ok(TensorMemory::new(address, len.checked_mul(elements.width).ok_or(Unusual)?, elements.code)?)
}

/// Returns the memory of the tensors that send and receive, and both as one object.
fn separate(
    output: &Bound<'_, PyAny>,
    input: &Bound<'_, PyAny>,
    elements: Elements,
) -> Usual<(Memories, Py<PyAny>)> {
    let py = input.py();
    let dtype = intern!(py, "dtype");
    if !output.getattr(dtype)?.is(&input.getattr(dtype)?) {
        return Err(Unusual);
    }
    let memories = Memories::separate(memory(input, elements)?, memory(output, elements)?)?;
    Ok((memories, PyTuple::new(py, [output, input])?.into_any().unbind()))
}

pub(crate) fn all_reduce(
    tensors: &Bound<'_, PyAny>,
    opts: &Bound<'_, PyAny>,
    seconds: f64,
) -> Option<(Request, Run)> {
    let read = || {
        let (call, tensor) = (Call::new(opts, |torch| &torch.all_reduce, seconds)?, single(tensors)?);
        let (elements, op) = call.to_reduce(&tensor)?;
        let memories = Memories::InPlace(memory(&tensor, elements)?);
        call.with(Request::AllReduce { memories, op }, tensor.unbind())
    };
    read().ok()
}

pub(crate) fn broadcast(
    tensors: &Bound<'_, PyAny>,
    opts: &Bound<'_, PyAny>,
    seconds: f64,
) -> Option<(Request, Run)> {
    let read = || {
        let (call, tensor) = (Call::new(opts, |torch| &torch.broadcast, seconds)?, single(tensors)?);
        let memory = memory(&tensor, call.to_move(&tensor)?)?;
        let root = opts.getattr(intern!(opts.py(), "rootRank"))?.extract()?;
        call.with(Request::Broadcast { root, memory }, tensor.unbind())
    };
    read().ok()
}

pub(crate) fn all_gather(
    output: &Bound<'_, PyAny>,
    input: &Bound<'_, PyAny>,
    opts: &Bound<'_, PyAny>,
    seconds: f64,
) -> Option<(Request, Run)> {
    let read = || {
        let call = Call::new(opts, |torch| &torch.all_gather, seconds)?;
        let (memories, both) = separate(output, input, call.to_move(input)?)?;
        call.with(Request::AllGather { memories, counts: None }, both)
    };
    read().ok()
}

pub(crate) fn reduce_scatter(
    output: &Bound<'_, PyAny>,
    input: &Bound<'_, PyAny>,
    opts: &Bound<'_, PyAny>,
    seconds: f64,
) -> Option<(Request, Run)> {
    let read = || {
        let call = Call::new(opts, |torch| &torch.reduce_scatter, seconds)?;
        let (elements, op) = call.to_reduce(input)?;
        let (memories, both) = separate(output, input, elements)?;
        call.with(Request::ReduceScatter { memories, counts: None, op }, both)
    };
    read().ok()
}

pub(crate) fn barrier(opts: &Bound<'_, PyAny>, seconds: f64) -> Option<(Request, Run)> {
    let read = || {
        let call = Call::new(opts, |torch| &torch.barrier, seconds)?;
        let device = opts.getattr(intern!(opts.py(), "device"))?;
        if device.eq(&call.torch.cpu)? { call.with(Request::Barrier, opts.py().None()) } else { Err(Unusual) }
    };
    read().ok()
}
