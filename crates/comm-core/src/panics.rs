//! Containment of panics in user code on threads that also serve other callers.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::{Error, Result};

/// Runs user code. Values that it modified must not be used after a panic.
///
/// # Errors
/// [`Error::Panicked`] if it panics.
pub(crate) fn caught<R>(code: impl FnOnce() -> R) -> Result<R> {
    catch_unwind(AssertUnwindSafe(code)).map_err(|panic| Error::Panicked { message: message(&*panic).into() })
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}
