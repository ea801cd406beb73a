//! An emulated CUDA device with NCCL, in host memory, for tests on machines without a GPU.
//!
//! The package builds two libraries. The *dynamic library* exports the functions of the CUDA driver
//! that cudarc calls and those of NCCL, with their C interfaces, under the name `libcuda.so`. The
//! *Rust library* is linked into a test, and finds, loads and controls the dynamic one: every test
//! begins with [`Control::load`]. After that, the loader finds the loaded library when it searches
//! for `libcuda.so`, and [`Control::path`] is the file to open for NCCL.
//!
//! Both are built from the same code, so a test process contains two copies of it, including all
//! static variables. cudarc, NCCL's bindings and [`Control`] call the symbols of the dynamic
//! library. The emulation in the other copy is never called.
//!
//! ```no_run
//! use gpu_emu::{Control, Setting};
//!
//! let control = Control::load()?;
//! control.set(Setting::Devices, 4);
//! control.set(Setting::JitterMicroseconds, 200);
//! // From here on, cudarc finds the emulator, and NCCL's bindings load it from `control.path()`.
//! assert!(control.take_faults().is_empty());
//! # Ok::<(), gpu_emu::LoadError>(())
//! ```
//!
//! A package whose tests use it lists it as a dev-dependency, so that cargo builds both libraries.
//! Other programs find the file through `COMM_NCCL_PATH`, provided that they open NCCL before CUDA,
//! and read the settings ([`Setting`]) from the environment.
//!
//! # Behavior
//!
//! - Each stream has a thread that does its work in order, after a random delay if
//!   [`Setting::JitterMicroseconds`] is set. Work on different streams is ordered only by events or
//!   the legacy stream, by the rules of CUDA.
//! - Dereferencing a device address on the host crashes the process. Memory is poisoned when it is
//!   allocated and when it is freed, addresses are not reused, and each access is checked. An
//!   invalid access that a real device might tolerate is a sticky error of the device here, and is
//!   listed by [`Control::take_faults`].
//! - Elementwise kernels in PTX are interpreted. A test provides functions for other kernels, by
//!   name.
//! - Ranks are threads or processes, and connect through the unique id; all resources are freed
//!   when one of them dies. NCCL operations run on streams, and those of a group run together.
//! - A test can plan that calls return given codes, that operations hang until they are aborted or
//!   have a wrong result, and that communicators fail asynchronously: see [`Control::plan_answer`],
//!   [`Control::plan_code`], [`Control::plan_hang`], [`Control::plan_wrong_bit`] and
//!   [`Control::plan_async_error`]. All calls are recorded with their arguments.
//!
//! # Limits
//!
//! A test on the emulator covers our whole path to the device: contexts, streams, events, lengths,
//! the order of calls, and error handling. It proves nothing about a GPU or about NCCL itself:
//! neither their speed, nor the last bits of their sums, nor whether they behave as documented.
//! Reports state separately what was tested on a real device.

mod client;
mod control;
mod device;
mod driver;
mod ffi;
mod handles;
mod injection;
mod kernel;
mod nccl;
mod ptx;
mod record;
mod settings;
mod sync;

pub use client::{Call, Control, Fault, Live, LoadError};
pub use kernel::{Kernel, Launch};
pub use settings::Setting;
