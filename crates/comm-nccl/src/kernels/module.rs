//! The loaded kernels of each device.

#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::sync::{Arc, Mutex, Weak};

use comm_core::{Error, Result};
use cudarc::driver::{CudaContext, result, sys};

use super::names;
use crate::sync::lock;
use crate::{Device, error};

/// The PTX of each module.
pub(super) const MODULES: [&str; 5] = [
    include_str!("add.ptx"),
    include_str!("convert.ptx"),
    include_str!("find.ptx"),
    include_str!("scale.ptx"),
    include_str!("sum.ptx"),
];

/// A kernel that is loaded in a context.
#[derive(Debug, Clone, Copy)]
pub(super) struct Function(sys::CUfunction);

// SAFETY: a CUDA function is a handle that is valid in every thread.
unsafe impl Send for Function {}

impl Function {
    pub(super) const fn handle(self) -> sys::CUfunction {
        self.0
    }
}

/// The kernels that are loaded in a context.
#[derive(Debug)]
struct Loaded {
    /// Weak, so that the context can end; the driver then unloads its modules.
    context: Weak<CudaContext>,
    functions: BTreeMap<&'static CStr, Function>,
}

static LOADED: Mutex<Vec<Loaded>> = Mutex::new(Vec::new());

/// Loads all kernels for a device, unless they are already loaded.
///
/// # Errors
/// [`Error::Backend`] if the driver cannot compile them.
pub(super) fn load(device: &Device) -> Result<()> {
    with_functions(device, |_| Ok(()))
}

/// Returns a kernel for a device. It is valid as long as the device's context.
///
/// # Errors
/// As [`load`].
pub(super) fn function(device: &Device, name: &'static CStr) -> Result<Function> {
    let missing = || Error::Internal(format!("no kernel {}", name.to_string_lossy()));
    with_functions(device, |functions| functions.get(name).copied().ok_or_else(missing))
}

fn with_functions<R>(
    device: &Device,
    with: impl FnOnce(&BTreeMap<&'static CStr, Function>) -> Result<R>,
) -> Result<R> {
    let context = Arc::downgrade(device.context());
    let mut loaded = lock(&LOADED);
    if let Some(found) = loaded.iter().find(|loaded| loaded.context.ptr_eq(&context)) {
        return with(&found.functions);
    }
    loaded.retain(|loaded| loaded.context.strong_count() > 0);
    device.bind()?;
    let functions = load_all()?;
    let answer = with(&functions);
    loaded.push(Loaded { context, functions });
    answer
}

/// Loads all kernels in the context of this thread. Looking each one up also loads it if the driver
/// loads lazily.
fn load_all() -> Result<BTreeMap<&'static CStr, Function>> {
    let failed = error::cuda("load kernels");
    let mut functions = BTreeMap::new();
    for text in MODULES {
        let image =
            CString::new(text).map_err(|_| Error::Internal("a module contains a zero byte".into()))?;
        // SAFETY: the image is text that ends with a zero byte.
        let module = unsafe { result::module::load_data(image.as_ptr().cast()) }.map_err(&failed)?;
        for name in names_in(text) {
            // SAFETY: the module was loaded above, and is not unloaded before its context.
            let function = unsafe { result::module::get_function(module, CString::from(name)) };
            functions.insert(name, Function(function.map_err(&failed)?));
        }
    }
    Ok(functions)
}

/// Returns the kernels that a module defines.
fn names_in(module: &'static str) -> impl Iterator<Item = &'static CStr> {
    names::all().filter(move |name| module.contains(&format!(".entry {}(", name.to_string_lossy())))
}
