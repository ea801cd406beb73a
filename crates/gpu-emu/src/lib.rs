//! An emulated CUDA device with NCCL, on memory of the host: something to test on where there is no
//! GPU.
//!
//! The package is two things. As a *dynamic library*, it exports the functions of CUDA's driver
//! that cudarc calls and those of NCCL, with their C interfaces, under the name `libcuda.so`. As a
//! *Rust library*, it is linked into a test, and finds, loads and controls the first:
//! [`Control::load`] is where every test begins. After that, the loader's search for `libcuda.so`
//! finds what is loaded already, and [`Control::path`] is what to open for NCCL.
//!
//! Both are made of the same code, so that a test process contains it twice, with every static
//! variable. What cudarc and NCCL's bindings talk to is the loaded copy; [`Control`] asks that one
//! by its symbols. Nothing in the other copy is ever called.
//!
//! ```no_run
//! use gpu_emu::{Control, Setting};
//!
//! let control = Control::load()?;
//! control.set(Setting::Devices, 4);
//! control.set(Setting::JitterMicroseconds, 200);
//! // From here on cudarc finds the emulator, and NCCL's bindings do at `control.path()`.
//! assert!(control.take_faults().is_empty());
//! # Ok::<(), gpu_emu::LoadError>(())
//! ```
//!
//! A package whose tests use it has it as a dev-dependency, so that cargo builds both. For other
//! programs, `COMM_NCCL_PATH` names the file, if they open NCCL before CUDA, and the environment
//! contains the settings ([`Setting`]).
//!
//! # What it does
//!
//! - Each stream has a thread that does its work in order, after a random delay if
//!   [`Setting::JitterMicroseconds`] asks for that. Work of different streams meets only at events,
//!   or on the legacy stream, by the rules of CUDA.
//! - An address of a device cannot be dereferenced: an access ends the process. Memory is
//!   poisoned when it is allocated and when it is freed, addresses are not used twice, and each
//!   access is checked. What a real device might tolerate is an error here, which stays with the
//!   device, and a line in [`Control::take_faults`].
//! - Kernels in PTX are interpreted, as far as they compute with single elements. Others are
//!   functions of the test, by name.
//! - Ranks are threads or processes, and connect through the unique id; all resources are freed
//!   when one of them dies. Operations of NCCL run on streams, and all of a group together.
//! - Calls answer what a test planned for them, operations hang until they are aborted or have a
//!   wrong result, communicators fail on their own: see [`Control::plan_answer`],
//!   [`Control::plan_code`], [`Control::plan_hang`], [`Control::plan_wrong_bit`] and
//!   [`Control::plan_async_error`]. All calls are recorded, with their arguments.
//!
//! # What it proves, and what not
//!
//! A test on it runs our whole path to the device: contexts, streams, events, lengths, the order of
//! calls, what happens after an error. It proves nothing about a GPU or about NCCL itself: not
//! their speed, not the last bits of their sums, not whether they behave as their documentation
//! says. Reports state separately what was tested on a real one.

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
