//! Names and descriptions of the codes of `CUresult`.

use std::ffi::{CStr, c_char};

use crate::ffi::Out;

use super::{CuError, CuResult, answer, given};

/// The code, name and description of each result.
const TABLE: [(i32, &CStr, &CStr); 15] = [
    (0, c"CUDA_SUCCESS", c"no error"),
    (1, c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"),
    (2, c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"),
    (3, c"CUDA_ERROR_NOT_INITIALIZED", c"initialization error"),
    (100, c"CUDA_ERROR_NO_DEVICE", c"no CUDA-capable device is detected"),
    (101, c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal"),
    (201, c"CUDA_ERROR_INVALID_CONTEXT", c"invalid device context"),
    (218, c"CUDA_ERROR_INVALID_PTX", c"a PTX JIT compilation failed"),
    (400, c"CUDA_ERROR_INVALID_HANDLE", c"invalid resource handle"),
    (500, c"CUDA_ERROR_NOT_FOUND", c"named symbol not found"),
    (600, c"CUDA_ERROR_NOT_READY", c"device not ready"),
    (700, c"CUDA_ERROR_ILLEGAL_ADDRESS", c"an illegal memory access was encountered"),
    (709, c"CUDA_ERROR_CONTEXT_IS_DESTROYED", c"context is destroyed"),
    (801, c"CUDA_ERROR_NOT_SUPPORTED", c"operation not supported"),
    (999, c"CUDA_ERROR_UNKNOWN", c"unknown error"),
];

fn find(code: i32) -> Result<(&'static CStr, &'static CStr), CuError> {
    let row = TABLE.iter().find(|row| row.0 == code).ok_or(CuError::INVALID_VALUE)?;
    Ok((row.1, row.2))
}

fn text(
    code: i32,
    out: &Out<*const c_char>,
    pick: fn((&'static CStr, &'static CStr)) -> &'static CStr,
) -> CuResult {
    given(out.put(pick(find(code)?).as_ptr()))
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorName(code: i32, name: Out<*const c_char>) -> i32 {
    answer(|| text(code, &name, |row| row.0))
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorString(code: i32, words: Out<*const c_char>) -> i32 {
    answer(|| text(code, &words, |row| row.1))
}
