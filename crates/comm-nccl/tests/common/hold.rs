//! Streams that are blocked.

use std::ffi::c_void;
use std::sync::mpsc::{Receiver, Sender, channel};

use comm_nccl::Stream;
use cudarc::driver::sys;

/// Blocks a stream until the returned value is dropped.
pub(crate) fn hold(stream: &Stream) -> Sender<()> {
    extern "C" fn wait(receiver: *mut c_void) {
        // SAFETY: the pointer came out of a box below, and the function runs once.
        let receiver = unsafe { Box::from_raw(receiver.cast::<Receiver<()>>()) };
        let _released = receiver.recv();
    }
    let (release, receiver) = channel::<()>();
    let receiver = Box::into_raw(Box::new(receiver));
    stream.device().context().bind_to_thread().unwrap();
    let handle = stream.as_cudarc().cu_stream();
    // SAFETY: the function receives its own argument, and calls nothing on the device.
    unsafe { sys::cuLaunchHostFunc(handle, Some(wait), receiver.cast()).result() }.unwrap();
    release
}
