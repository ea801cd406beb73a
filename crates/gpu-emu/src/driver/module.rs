//! Modules, kernels and host functions. The kernels of a PTX module are interpreted. The content of
//! any other module is ignored, and its kernels are the functions that a test has registered under
//! their names.

use std::ffi::c_void;
use std::sync::Arc;

use crate::ffi::{HostMemory, In, Out, Text};
use crate::handles::{Handle, Handles};
use crate::kernel::{self, Arguments, Launch, Registered};

use crate::ptx;
use crate::record;

use super::context::current;
use super::{CuError, CuResult, answer, given, recorded, stream};

#[derive(Debug)]
struct Module {
    kernels: Vec<Arc<ptx::Entry>>,
}

/// A kernel of a module.
#[derive(Debug, Clone)]
enum Function {
    Registered(Registered),
    Interpreted(Arc<ptx::Entry>),
}

impl Function {
    fn sizes(&self) -> Vec<usize> {
        match self {
            Self::Registered(kernel) => kernel.sizes.clone(),
            Self::Interpreted(kernel) => kernel.sizes(),
        }
    }
}

static MODULES: Handles<Module> = Handles::new("module", 0x30);
static FUNCTIONS: Handles<Function> = Handles::new("function", 0xF0);

const THREADS_MAX: u64 = 1024;

/// Loads a module from its text.
fn load(module: &Out<Handle>, image: Option<&str>) -> CuResult {
    let device = current()?;
    let image = image.filter(|_| !module.is_null()).ok_or(CuError::INVALID_VALUE)?;
    let kernels = if ptx::is_ptx(image) {
        ptx::parse(image).map_err(|error| {
            record::fault(Some(device.ordinal), &format!("PTX: {error}"));
            CuError::INVALID_PTX
        })?
    } else {
        Vec::new()
    };
    let kernels = kernels.into_iter().map(Arc::new).collect();
    given(module.put(MODULES.insert(Arc::new(Module { kernels }))))
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleLoadData(module: Out<Handle>, image: Text) -> i32 {
    recorded("cuModuleLoadData", &"", || load(&module, image.read().as_deref()))
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleLoad(module: Out<Handle>, path: Text) -> i32 {
    answer(|| {
        let image = path.read().and_then(|path| std::fs::read_to_string(path).ok());
        load(&module, image.as_deref())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleUnload(module: Handle) -> i32 {
    answer(|| MODULES.remove(module).map(|_| ()).ok_or(CuError::INVALID_HANDLE))
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleGetFunction(function: Out<Handle>, module: Handle, name: Text) -> i32 {
    answer(|| {
        let module = MODULES.get(module).ok_or(CuError::INVALID_HANDLE)?;
        let name = name.read().ok_or(CuError::INVALID_VALUE)?;
        let interpreted = module.kernels.iter().find(|kernel| kernel.name == name).cloned();
        let found = interpreted.map(Function::Interpreted);
        let found =
            found.or_else(|| kernel::named(&name).map(Function::Registered)).ok_or(CuError::NOT_FOUND)?;
        given(function.put(FUNCTIONS.insert(Arc::new(found))))
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
        let kernel = Function::clone(&kernel);
        let stream = stream::of_handle(stream)?;
        let threads: u64 = block.iter().map(|side| u64::from(*side)).product();
        if grid.contains(&0) || threads == 0 || threads > THREADS_MAX {
            return Err(CuError::INVALID_VALUE);
        }
        let arguments = copy_arguments(&arguments, &kernel.sizes())?;
        match kernel {
            Function::Registered(kernel) => {
                stream.add(move |_| (kernel.function)(&Launch::new(grid, block, shared_bytes, &arguments)));
            }
            // Interpreted kernels are one-dimensional.
            Function::Interpreted(_) if [grid_y, grid_z, block_y, block_z] != [1; 4] => {
                return Err(CuError::INVALID_VALUE);
            }
            Function::Interpreted(kernel) => {
                stream.add(move |device| {
                    if let Err(error) = kernel.run(grid_x, block_x, &arguments.words()) {
                        device.fail(CuError::ILLEGAL_ADDRESS, &format!("{}: {error}", kernel.name));
                    }
                });
            }
        }
        Ok(())
    })
}

fn copy_arguments(addresses: &In<HostMemory>, sizes: &[usize]) -> Result<Arguments, CuError> {
    let mut bytes = Vec::new();
    for (index, size) in sizes.iter().enumerate() {
        let address = addresses.get(index).filter(|address| !address.is_null());
        let address = address.ok_or(CuError::INVALID_VALUE)?;
        // SAFETY: the caller passed the address of an argument whose size is that of the kernel's
        // parameter.
        bytes.extend(unsafe { address.read(*size) });
    }
    Ok(Arguments { sizes: sizes.to_vec(), bytes })
}

/// Runs a function on the thread of the stream. As on a real device, it must not call CUDA.
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
