//! Types and operators, as NCCL calls them.

use comm_core::{DType, Invalid, ReduceOp, Result};
use half::{bf16, f16};
use nccl_sys::{ncclDataType_t, ncclRedOp_t};

use crate::error::NCCL;

/// A type that NCCL can reduce; it has no integers of 16 bits.
const fn number(dtype: DType) -> Option<ncclDataType_t> {
    Some(match dtype {
        DType::I8 => ncclDataType_t::ncclInt8,
        DType::U8 => ncclDataType_t::ncclUint8,
        DType::I32 => ncclDataType_t::ncclInt32,
        DType::U32 => ncclDataType_t::ncclUint32,
        DType::I64 => ncclDataType_t::ncclInt64,
        DType::U64 => ncclDataType_t::ncclUint64,
        DType::F16 => ncclDataType_t::ncclFloat16,
        DType::BF16 => ncclDataType_t::ncclBfloat16,
        DType::F32 => ncclDataType_t::ncclFloat32,
        DType::F64 => ncclDataType_t::ncclFloat64,
        _ => return None,
    })
}

/// How elements are moved as they are, and by how many of NCCL's each of ours is.
pub(crate) fn moved(dtype: DType) -> (ncclDataType_t, usize) {
    number(dtype).map_or_else(|| (ncclDataType_t::ncclUint8, dtype.size()), |number| (number, 1))
}

/// The type, as one to be reduced with `op`, if NCCL has both.
pub(crate) fn reduced(dtype: DType, op: ReduceOp) -> Result<ncclDataType_t> {
    op.check(dtype)?;
    let number = number(dtype).filter(|_| matches!(op, ReduceOp::PreMulSum(_)) || operator(op).is_some());
    number.ok_or_else(|| Invalid::BackendOp { backend: NCCL, op, dtype }.into())
}

/// The operator, unless it must be made for the call, as that with a factor must.
pub(crate) const fn operator(op: ReduceOp) -> Option<ncclRedOp_t> {
    Some(match op {
        ReduceOp::Sum => ncclRedOp_t::ncclSum,
        ReduceOp::Prod => ncclRedOp_t::ncclProd,
        ReduceOp::Min => ncclRedOp_t::ncclMin,
        ReduceOp::Max => ncclRedOp_t::ncclMax,
        ReduceOp::Avg => ncclRedOp_t::ncclAvg,
        _ => return None,
    })
}

/// A factor as one element of a floating point type.
pub(crate) fn factor(value: f64, dtype: ncclDataType_t) -> [u8; 8] {
    let mut bytes = [0; 8];
    match dtype {
        ncclDataType_t::ncclFloat16 => bytes[..2].copy_from_slice(&f16::from_f64(value).to_ne_bytes()),
        ncclDataType_t::ncclBfloat16 => bytes[..2].copy_from_slice(&bf16::from_f64(value).to_ne_bytes()),
        ncclDataType_t::ncclFloat32 => bytes[..4].copy_from_slice(&(value as f32).to_ne_bytes()),
        _ => bytes = value.to_ne_bytes(),
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The types are told by name and never by size: four bytes of an integer are no float.
    #[test]
    fn every_type_is_its_own_one() {
        let numbers: Vec<Option<u32>> =
            DType::ALL.map(number).map(|number| number.map(|number| number.0)).into();
        let wanted = [
            Some(0),
            Some(1),
            None,
            None,
            Some(2),
            Some(3),
            Some(4),
            Some(5),
            Some(6),
            Some(9),
            Some(7),
            Some(8),
        ];
        assert_eq!(numbers, wanted, "as in nccl.h, in the order of {:?}", DType::ALL);
    }

    #[test]
    fn what_nccl_lacks_is_refused_by_name() {
        for op in ReduceOp::ALL {
            for dtype in DType::ALL {
                let refused = reduced(dtype, op).err().map(|error| error.to_string());
                let missing =
                    matches!(dtype, DType::I16 | DType::U16) || op.code() >= ReduceOp::BitAnd.code();
                match refused {
                    Some(words) if op.supports(dtype) => {
                        assert!(missing && words.contains("nccl has no"), "{op} {dtype}: {words}");
                    }
                    Some(words) => assert!(words.contains("is not defined on"), "{op} {dtype}: {words}"),
                    None => assert!(op.supports(dtype) && !missing, "{op} {dtype}"),
                }
            }
        }
    }

    #[test]
    fn what_is_only_moved_keeps_its_bytes() {
        for dtype in DType::ALL {
            let (number, times) = moved(dtype);
            assert_eq!(times, if number == ncclDataType_t::ncclUint8 { dtype.size() } else { 1 }, "{dtype}");
        }
    }

    #[test]
    fn factors_have_the_bits_of_their_type() {
        assert_eq!(factor(0.5, ncclDataType_t::ncclFloat16)[..3], [0, 0x38, 0]);
        assert_eq!(factor(0.5, ncclDataType_t::ncclBfloat16)[..3], [0, 0x3f, 0]);
        assert_eq!(factor(0.5, ncclDataType_t::ncclFloat32)[..5], [0, 0, 0, 0x3f, 0]);
        assert_eq!(factor(0.5, ncclDataType_t::ncclFloat64), 0.5_f64.to_ne_bytes());
    }
}
