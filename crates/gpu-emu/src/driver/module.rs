//! Modules, kernels and host functions. The content of a module is ignored: a kernel is the
//! function that a test registered under its name.

use std::ffi::c_void;
use std::sync::Arc;

use crate::ffi::{HostMemory, In, Out, Text};
use crate::handles::{Handle, Handles};
use crate::kernel::{self, Arguments, Launch, Registered};

use super::context::current;
use super::{CuError, CuResult, answer, given, recorded, stream};

#[derive(Debug)]
struct Module;

static MODULES: Handles<Module> = Handles::new("module", 0x30);
static FUNCTIONS: Handles<Registered> = Handles::new("function", 0xF0);

const THREADS_MAX: u64 = 1024;

fn load(module: &Out<Handle>, is_null: bool) -> CuResult {
    current()?;
    if is_null || module.is_null() {
        return Err(CuError::INVALID_VALUE);
    }
    given(module.put(MODULES.insert(Arc::new(Module))))
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleLoadData(module: Out<Handle>, image: HostMemory) -> i32 {
    answer(|| load(&module, image.is_null()))
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleLoad(module: Out<Handle>, path: Text) -> i32 {
    answer(|| load(&module, path.read().is_none()))
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleUnload(module: Handle) -> i32 {
    answer(|| MODULES.remove(module).map(|_| ()).ok_or(CuError::INVALID_HANDLE))
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleGetFunction(function: Out<Handle>, module: Handle, name: Text) -> i32 {
    answer(|| {
        MODULES.get(module).ok_or(CuError::INVALID_HANDLE)?;
        let name = name.read().ok_or(CuError::INVALID_VALUE)?;
        let kernel = kernel::named(&name).ok_or(CuError::NOT_FOUND)?;
        given(function.put(FUNCTIONS.insert(Arc::new(kernel))))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuLaunchKernel(
    function: Handle,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    shared_bytes: u32,
    stream: Handle,
    arguments: In<HostMemory>,
    _extra: Handle,
) -> i32 {
    let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
    let described = format_args!("grid={grid_x} block={block_x} stream={stream:p}").to_string();
    recorded("cuLaunchKernel", &described, || {
        let kernel = FUNCTIONS.get(function).ok_or(CuError::INVALID_HANDLE)?;
        let stream = stream::of_handle(stream)?;
        let threads: u64 = block.iter().map(|side| u64::from(*side)).product();
        if grid.contains(&0) || threads == 0 || threads > THREADS_MAX {
            return Err(CuError::INVALID_VALUE);
        }
        let arguments = copy_arguments(&arguments, &kernel.sizes)?;
        stream.add(move |_| (kernel.function)(&Launch::new(grid, block, shared_bytes, &arguments)));
        Ok(())
    })
}

fn copy_arguments(addresses: &In<HostMemory>, sizes: &[usize]) -> Result<Arguments, CuError> {
    let mut bytes = Vec::new();
    for (index, size) in sizes.iter().enumerate() {
        let address = addresses.get(index).filter(|address| !address.is_null());
        let address = address.ok_or(CuError::INVALID_VALUE)?;
        // SAFETY: the caller passed the address of an argument of the size with which the kernel
        // was registered.
        bytes.extend(unsafe { address.read(*size) });
    }
    Ok(Arguments { sizes: sizes.to_vec(), bytes })
}

/// Runs a function on the thread of the stream. As on a real device it must not call CUDA.
#[unsafe(no_mangle)]
extern "C" fn cuLaunchHostFunc(
    stream: Handle,
    function: Option<extern "C" fn(*mut c_void)>,
    argument: HostMemory,
) -> i32 {
    recorded("cuLaunchHostFunc", &format_args!("stream={stream:p}"), || {
        let function = function.ok_or(CuError::INVALID_VALUE)?;
        stream::of_handle(stream)?.add(move |_| function(argument.as_ptr()));
        Ok(())
    })
}
