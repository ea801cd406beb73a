//! The setup of all tests of the emulator.
#![allow(dead_code, reason = "each test program uses a part of this")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

pub(crate) mod ranks;

use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use cudarc::driver::{CudaContext, CudaStream, sys};
use gpu_emu::{Control, Fault, Setting};

/// The number of devices.
pub(crate) const DEVICES: usize = 128;

/// The emulator, loaded before anything else.
pub(crate) fn control() -> &'static Control {
    let control = Control::load().unwrap();
    control.set(Setting::Devices, DEVICES as u64);
    control
}

/// A device that no other test of the process uses, because errors of a device persist.
pub(crate) fn device() -> Arc<CudaContext> {
    control();
    CudaContext::new(devices(1)[0]).unwrap()
}

/// Numbers of devices that no other test of the process uses.
pub(crate) fn devices(count: usize) -> Vec<usize> {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    control();
    let first = NEXT.fetch_add(count, Ordering::SeqCst);
    assert!(first + count <= DEVICES, "there are no more devices: spread the tests over more programs");
    (first..first + count).collect()
}

/// Faults of a device so far. Faults of other tests are kept.
pub(crate) fn faults_of(device: usize) -> Vec<String> {
    faults(Some(device))
}

/// Faults so far, of a device or without one.
pub(crate) fn faults(device: Option<usize>) -> Vec<String> {
    static SEEN: Mutex<Vec<Fault>> = Mutex::new(Vec::new());
    let mut seen = SEEN.lock().unwrap();
    seen.extend(control().take_faults());
    let (ours, others): (Vec<Fault>, Vec<Fault>) = seen.drain(..).partition(|fault| fault.device == device);
    *seen = others;
    ours.into_iter().map(|fault| fault.what).collect()
}

/// Blocks a stream until the returned value is dropped.
pub(crate) fn hold(stream: &CudaStream) -> Sender<()> {
    extern "C" fn wait(receiver: *mut c_void) {
        // SAFETY: the pointer came out of a box below, and the function runs once.
        let receiver = unsafe { Box::from_raw(receiver.cast::<Receiver<()>>()) };
        let _released = receiver.recv();
    }
    let (release, receiver) = channel::<()>();
    let receiver = Box::into_raw(Box::new(receiver));
    stream.context().bind_to_thread().unwrap();
    // SAFETY: the function receives its own argument, and calls nothing on the device.
    unsafe { sys::cuLaunchHostFunc(stream.cu_stream(), Some(wait), receiver.cast()).result() }.unwrap();
    release
}
