//! Ranks as threads, each with a device, a stream and a communicator.

use std::ffi::{CStr, c_void};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr};
use nccl_sys::{
    Nccl, Search, ncclComm_t, ncclConfig_t, ncclDataType_t, ncclRedOp_t, ncclResult_t, ncclUniqueId,
};

use super::control;

pub(crate) const OK: ncclResult_t = ncclResult_t::ncclSuccess;
pub(crate) const SUM: ncclRedOp_t = ncclRedOp_t::ncclSum;
pub(crate) const F32: ncclDataType_t = ncclDataType_t::ncclFloat32;

/// The emulator's NCCL.
pub(crate) fn nccl() -> &'static Nccl {
    static NCCL: OnceLock<Nccl> = OnceLock::new();
    NCCL.get_or_init(|| Nccl::load(&Search::new().at(control().path())).unwrap())
}

pub(crate) fn unique_id() -> ncclUniqueId {
    let mut id = ncclUniqueId { internal: [0; 128] };
    // SAFETY: the answer is written to a value that lives here.
    assert_eq!(unsafe { nccl().ncclGetUniqueId(&raw mut id) }.unwrap(), OK);
    id
}

/// Returns the text of the last error.
pub(crate) fn last_error() -> String {
    nccl().last_error().unwrap_or_default()
}

pub(crate) struct Rank {
    pub(crate) context: Arc<CudaContext>,
    pub(crate) stream: Arc<CudaStream>,
    pub(crate) comm: ncclComm_t,
    pub(crate) rank: usize,
    pub(crate) world: usize,
}

/// The arguments of a collective.
#[derive(Clone, Copy)]
pub(crate) struct Args {
    pub(crate) input: u64,
    pub(crate) output: u64,
    pub(crate) count: usize,
    pub(crate) kind: ncclDataType_t,
    pub(crate) op: ncclRedOp_t,
    pub(crate) root: i32,
}

impl Rank {
    /// Only opens the device.
    pub(crate) fn on(device: usize, rank: usize, world: usize) -> Self {
        control();
        let context = CudaContext::new(device).unwrap();
        let stream = context.new_stream().unwrap();
        Self { context, stream, comm: ncclComm_t::NULL, rank, world }
    }

    /// Initializes, with or without a configuration.
    pub(crate) fn init(&mut self, id: ncclUniqueId, config: Option<ncclConfig_t>) -> ncclResult_t {
        let (world, rank) = (self.world as i32, self.rank as i32);
        self.context.bind_to_thread().unwrap();
        match config {
            // SAFETY: the handle is written to a value that lives here.
            None => unsafe { nccl().ncclCommInitRank(&raw mut self.comm, world, id, rank) },
            // SAFETY: as above, and the configuration lives for the call.
            Some(mut config) => unsafe {
                nccl().ncclCommInitRankConfig(&raw mut self.comm, world, id, rank, &raw mut config)
            },
        }
        .unwrap()
    }

    pub(crate) fn bytes(&self, bytes: &[u8]) -> CudaSlice<u8> {
        self.stream.clone_htod(if bytes.is_empty() { &[0][..] } else { bytes }).unwrap()
    }

    pub(crate) fn floats(&self, values: &[f32]) -> CudaSlice<f32> {
        self.stream.clone_htod(values).unwrap()
    }

    /// The address of a buffer, without the bookkeeping of cudarc: everything here is on one
    /// stream.
    pub(crate) fn at<T>(&self, buffer: &CudaSlice<T>) -> u64 {
        buffer.device_ptr(&self.stream).0
    }

    pub(crate) fn args(&self, input: u64, output: u64, count: usize) -> Args {
        Args { input, output, count, kind: F32, op: SUM, root: 0 }
    }

    /// Calls the collective of this name.
    pub(crate) fn call(&self, name: &str, args: Args) -> ncclResult_t {
        self.call_on(self.stream.cu_stream().cast(), name, args)
    }

    #[allow(clippy::multiple_unsafe_ops_per_block, reason = "only one of them runs")]
    pub(crate) fn call_on(&self, stream: *mut c_void, name: &str, args: Args) -> ncclResult_t {
        let Args { count, kind, op, root, .. } = args;
        let input: *const c_void = std::ptr::without_provenance(args.input as usize);
        let output: *mut c_void = std::ptr::without_provenance_mut(args.output as usize);
        let (nccl, comm, stream) = (nccl(), self.comm, stream.cast());
        // SAFETY: the emulator checks every address and handle, which some tests rely on.
        unsafe {
            match name {
                "AllReduce" => nccl.ncclAllReduce(input, output, count, kind, op, comm, stream),
                "Reduce" => nccl.ncclReduce(input, output, count, kind, op, root, comm, stream),
                "Broadcast" => nccl.ncclBroadcast(input, output, count, kind, root, comm, stream),
                "Bcast" => nccl.ncclBcast(output, count, kind, root, comm, stream),
                "AllGather" => nccl.ncclAllGather(input, output, count, kind, comm, stream),
                "ReduceScatter" => nccl.ncclReduceScatter(input, output, count, kind, op, comm, stream),
                "AlltoAll" => nccl.ncclAlltoAll(input, output, count, kind, comm, stream),
                "Gather" => nccl.ncclGather(input, output, count, kind, root, comm, stream),
                "Scatter" => nccl.ncclScatter(input, output, count, kind, root, comm, stream),
                "Send" => nccl.ncclSend(input, count, kind, root, comm, stream),
                "Recv" => nccl.ncclRecv(output, count, kind, root, comm, stream),
                other => panic!("unknown collective {other}"),
            }
        }
        .unwrap()
    }

    /// Sums one vector over all ranks, in place.
    pub(crate) fn all_reduce(&self, values: &[f32]) -> Vec<f32> {
        let buffer = self.floats(values);
        let at = self.at(&buffer);
        assert_eq!(self.call("AllReduce", self.args(at, at, values.len())), OK, "{}", last_error());
        self.stream.clone_dtoh(&buffer).unwrap()
    }

    pub(crate) fn async_error(&self) -> ncclResult_t {
        let mut error = OK;
        // SAFETY: the answer is written to a value that lives here.
        assert_eq!(unsafe { nccl().ncclCommGetAsyncError(self.comm, &raw mut error) }.unwrap(), OK);
        error
    }

    /// Waits until no call is in progress.
    pub(crate) fn settled(&self) -> ncclResult_t {
        loop {
            match self.async_error() {
                ncclResult_t::ncclInProgress => thread::yield_now(),
                other => return other,
            }
        }
    }

    pub(crate) fn abort(&mut self) -> ncclResult_t {
        let comm = std::mem::replace(&mut self.comm, ncclComm_t::NULL);
        // SAFETY: the handle is not used any more.
        unsafe { nccl().ncclCommAbort(comm) }.unwrap()
    }

    pub(crate) fn destroy(&mut self) -> ncclResult_t {
        let comm = std::mem::replace(&mut self.comm, ncclComm_t::NULL);
        // SAFETY: the handle is not used any more.
        unsafe { nccl().ncclCommDestroy(comm) }.unwrap()
    }

    pub(crate) fn fork(&self, comm: ncclComm_t) -> Self {
        let (context, stream) = (self.context.clone(), self.stream.clone());
        Self { context, stream, comm, rank: self.rank, world: self.world }
    }
}

pub(crate) fn group_start() {
    // SAFETY: the call has no arguments.
    assert_eq!(unsafe { nccl().ncclGroupStart() }.unwrap(), OK);
}

pub(crate) fn group_end() -> ncclResult_t {
    // SAFETY: the call has no arguments.
    unsafe { nccl().ncclGroupEnd() }.unwrap()
}

/// Aborts all communicators when a rank panics, so that the other ranks do not wait forever.
struct AbortOnPanic<'a>(&'a Mutex<Vec<ncclComm_t>>);

impl Drop for AbortOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            let comms = self.0.lock().map(|comms| comms.clone()).unwrap_or_default();
            for comm in comms {
                // SAFETY: the emulator looks handles up, and detects destroyed ones.
                let _ended = unsafe { nccl().ncclCommAbort(comm) };
            }
        }
    }
}

/// Runs `body` on one thread per device, all in one communicator, which is destroyed afterwards
/// unless the body ended it.
pub(crate) fn world<T: Send>(devices: &[usize], body: impl Fn(&mut Rank) -> T + Sync) -> Vec<T> {
    let (id, comms) = (unique_id(), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        let start = |(rank, device): (usize, &usize)| {
            let (body, comms, device) = (&body, &comms, *device);
            scope.spawn(move || {
                let mut member = Rank::on(device, rank, devices.len());
                assert_eq!(member.init(id, None), OK, "{}", last_error());
                comms.lock().unwrap().push(member.comm);
                let _abort_on_panic = AbortOnPanic(comms);
                let result = body(&mut member);
                assert_eq!(member.destroy(), OK);
                result
            })
        };
        let threads: Vec<_> = devices.iter().enumerate().map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Returns the name of a result.
pub(crate) fn words(code: ncclResult_t) -> String {
    // SAFETY: every number has words.
    let words = unsafe { nccl().ncclGetErrorString(code) }.unwrap();
    // SAFETY: they are a constant of the library.
    unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned()
}
