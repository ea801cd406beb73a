//! Types and operators of MPI for elements and reductions.

use std::ffi::c_int;
use std::sync::{PoisonError, RwLock};

use comm_core::{DType, Error, Invalid, ReduceOp, Reduction, Result};
use mpi::ffi;

use super::kernel::{Kernel, kernel_op};
use super::runtime::{BACKEND, call};

/// A type of MPI.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Datatype(pub(super) ffi::MPI_Datatype);

// SAFETY: a handle, which every thread may use.
unsafe impl Send for Datatype {}
// SAFETY: as above.
unsafe impl Sync for Datatype {}

/// An operator of MPI.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OpHandle(pub(super) ffi::MPI_Op);

// SAFETY: a handle, which every thread may use.
unsafe impl Send for OpHandle {}
// SAFETY: as above.
unsafe impl Sync for OpHandle {}

/// A reduction by MPI.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MpiReduction {
    pub(crate) datatype: Datatype,
    pub(crate) op: OpHandle,
    /// The kernel that MPI calls. `None` if it uses its own operator.
    pub(crate) kernel: Option<&'static Kernel>,
}

/// Types of MPI for structs, by their size in bytes.
static STRUCTS: RwLock<Vec<(usize, Datatype)>> = RwLock::new(Vec::new());

/// Declares functions that return constants of the library.
macro_rules! constants {
    ($($name:ident: $type:ident = $constant:ident;)+) => {
        $(
            fn $name() -> $type {
                // SAFETY: the value of a constant of the library.
                $type(unsafe { ffi::$constant })
            }
        )+
    };
}

constants! {
    int8: Datatype = RSMPI_INT8_T;
    int16: Datatype = RSMPI_INT16_T;
    int32: Datatype = RSMPI_INT32_T;
    int64: Datatype = RSMPI_INT64_T;
    uint8: Datatype = RSMPI_UINT8_T;
    uint16: Datatype = RSMPI_UINT16_T;
    uint32: Datatype = RSMPI_UINT32_T;
    uint64: Datatype = RSMPI_UINT64_T;
    float: Datatype = RSMPI_FLOAT;
    double: Datatype = RSMPI_DOUBLE;
    sum: OpHandle = RSMPI_SUM;
    prod: OpHandle = RSMPI_PROD;
    min: OpHandle = RSMPI_MIN;
    max: OpHandle = RSMPI_MAX;
    band: OpHandle = RSMPI_BAND;
    bor: OpHandle = RSMPI_BOR;
    bxor: OpHandle = RSMPI_BXOR;
}

impl Datatype {
    /// Returns the type with which elements are moved.
    pub(crate) fn of(dtype: DType) -> Result<Self> {
        Ok(match dtype {
            DType::Plain(plain) => return of_struct(plain.size()),
            DType::F32 => float(),
            DType::F64 => double(),
            DType::I8 => int8(),
            DType::I16 => int16(),
            DType::I32 => int32(),
            DType::I64 => int64(),
            other => unsigned(other.size()),
        })
    }

    /// The type of the bytes of messages.
    pub(crate) fn byte() -> Self {
        uint8()
    }

    /// The type of the words on which ranks agree.
    pub(crate) fn word() -> Self {
        uint64()
    }
}

impl OpHandle {
    /// The maximum of words.
    pub(crate) fn max_of_words() -> Self {
        max()
    }
}

impl MpiReduction {
    /// Returns the reduction with the same results as the kernels of comm-core.
    ///
    /// # Errors
    /// [`Invalid::BackendOp`] for types that the host cannot reduce.
    pub(crate) fn of(reduction: Reduction) -> Result<Self> {
        if let Some((datatype, op)) = native(reduction.op(), reduction.dtype()) {
            return Ok(Self { datatype, op, kernel: None });
        }
        // These differ from a sum only before and after the combination.
        let op = match reduction.op() {
            ReduceOp::Avg | ReduceOp::PreMulSum(_) => ReduceOp::Sum,
            op => op,
        };
        let kernel = Kernel::of(Reduction::new(op, reduction.dtype())?)?;
        Ok(Self { datatype: kernel.datatype(), op: kernel_op()?, kernel: Some(kernel) })
    }
}

/// Returns the operator of MPI with the same results, if there is one: networks can carry it out
/// themselves. Signed sums and products use unsigned types, because those wrap around.
fn native(op: ReduceOp, dtype: DType) -> Option<(Datatype, OpHandle)> {
    let unsigned = || unsigned(dtype.size());
    let signed = || Datatype::of(dtype).ok();
    if dtype.is_float() {
        let datatype = match dtype {
            DType::F32 => float(),
            DType::F64 => double(),
            _ => return None,
        };
        // MPI does not define the minimum of a number and a NaN.
        return match op {
            ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PreMulSum(_) => Some((datatype, sum())),
            ReduceOp::Prod => Some((datatype, prod())),
            _ => None,
        };
    }
    if let DType::Plain(_) = dtype {
        return None;
    }
    match op {
        ReduceOp::Sum => Some((unsigned(), sum())),
        ReduceOp::Prod => Some((unsigned(), prod())),
        ReduceOp::Min => signed().map(|datatype| (datatype, min())),
        ReduceOp::Max => signed().map(|datatype| (datatype, max())),
        ReduceOp::BitAnd => Some((unsigned(), band())),
        ReduceOp::BitOr => Some((unsigned(), bor())),
        ReduceOp::BitXor => Some((unsigned(), bxor())),
        _ => None,
    }
}

/// Returns the unsigned type of this size, for elements with 1, 2, 4 or 8 bytes.
fn unsigned(bytes: usize) -> Datatype {
    match bytes {
        1 => uint8(),
        2 => uint16(),
        4 => uint32(),
        _ => uint64(),
    }
}

fn of_struct(bytes: usize) -> Result<Datatype> {
    let known =
        |types: &[(usize, Datatype)]| types.iter().find(|(size, _)| *size == bytes).map(|entry| entry.1);
    if let Some(datatype) = known(&STRUCTS.read().unwrap_or_else(PoisonError::into_inner)) {
        return Ok(datatype);
    }
    let new = contiguous(bytes)?;
    let mut types = STRUCTS.write().unwrap_or_else(PoisonError::into_inner);
    // If another thread was faster, the new type is not needed, but does no harm.
    Ok(known(&types).unwrap_or_else(|| {
        types.push((bytes, new));
        new
    }))
}

/// Creates a type of this many bytes, which exists until the process ends.
pub(super) fn contiguous(bytes: usize) -> Result<Datatype> {
    let count = count_of("the bytes of an element", bytes)?;
    let mut datatype = uint8();
    call("create a type", || {
        // SAFETY: a type of MPI, and a place for another.
        unsafe { ffi::MPI_Type_contiguous(count, uint8().0, &raw mut datatype.0) }
    })?;
    call("commit a type", || {
        // SAFETY: a type that has just been created.
        unsafe { ffi::MPI_Type_commit(&raw mut datatype.0) }
    })?;
    Ok(datatype)
}

/// Converts a count.
///
/// # Errors
/// [`Invalid::TooLong`] if it is beyond the counts of MPI.
pub(crate) fn count_of(what: &'static str, count: usize) -> Result<c_int> {
    let max = c_int::MAX as usize;
    c_int::try_from(count)
        .map_err(|_| Error::from(Invalid::TooLong { backend: BACKEND, what, got: count, max }))
}
