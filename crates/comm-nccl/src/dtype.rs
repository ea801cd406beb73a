//! NCCL's element types and operators.

use comm_core::{DType, Error, Invalid, ReduceOp, Result};
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use nccl_sys::{Version, ncclDataType_t, ncclRedOp_t};

use crate::error::NCCL;

/// The first version of NCCL that reduces 8-bit floats, and the compute capability that this
/// requires.
const FLOAT8_SINCE: (Version, (i32, i32)) = (Version::new(2, 24, 0), (9, 0));

/// The properties of a library and a device on which supported reductions depend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReduceSupport {
    pub(crate) version: Version,
    /// The compute capability of the device.
    pub(crate) capability: (i32, i32),
}

impl ReduceSupport {
    /// Returns an error if this library, or this device, cannot reduce the type.
    fn check(self, dtype: DType) -> Result<()> {
        let (version, (major, minor)) = FLOAT8_SINCE;
        if !dtype.is_float8() || self.version >= version && self.capability >= (major, minor) {
            return Ok(());
        }
        let (found, (has, has_minor)) = (self.version, self.capability);
        Err(Error::setting(
            "dtype",
            dtype.name(),
            format!(
                "NCCL reduces it from {version} on, on devices of compute capability {major}.{minor}; this is NCCL \
                 {found} on a device of {has}.{has_minor}"
            ),
        ))
    }
}

/// Returns NCCL's type for reductions; `None` for 16-bit integers, which NCCL does not have.
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
        DType::F8E4M3 => ncclDataType_t::ncclFloat8e4m3,
        DType::F8E5M2 => ncclDataType_t::ncclFloat8e5m2,
        _ => return None,
    })
}

/// Returns the NCCL type as which elements are moved, and the number of its elements for one of
/// ours. Every version of NCCL moves all types.
pub(crate) fn moved(dtype: DType) -> (ncclDataType_t, usize) {
    number(dtype)
        .filter(|_| !dtype.is_float8())
        .map_or_else(|| (ncclDataType_t::ncclUint8, dtype.size()), |number| (number, 1))
}

/// Returns the type for a reduction with `op`, or an error if NCCL does not support them.
pub(crate) fn reduced(dtype: DType, op: ReduceOp, abilities: ReduceSupport) -> Result<ncclDataType_t> {
    op.check(dtype)?;
    abilities.check(dtype)?;
    let number = number(dtype).filter(|_| matches!(op, ReduceOp::PreMulSum(_)) || operator(op).is_some());
    number.ok_or_else(|| Invalid::BackendOp { backend: NCCL, op, dtype }.into())
}

/// Returns the built-in operator; `None` if NCCL has none, or if the operator has a factor and must
/// be created for the call.
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

/// Encodes a factor as one element of a floating point type.
pub(crate) fn factor(value: f64, dtype: ncclDataType_t) -> [u8; 8] {
    let mut bytes = [0; 8];
    match dtype {
        ncclDataType_t::ncclFloat16 => bytes[..2].copy_from_slice(&f16::from_f64(value).to_ne_bytes()),
        ncclDataType_t::ncclBfloat16 => bytes[..2].copy_from_slice(&bf16::from_f64(value).to_ne_bytes()),
        ncclDataType_t::ncclFloat8e4m3 => bytes[0] = F8E4M3::from_f64(value).to_bits(),
        ncclDataType_t::ncclFloat8e5m2 => bytes[0] = F8E5M2::from_f64(value).to_bits(),
        ncclDataType_t::ncclFloat32 => bytes[..4].copy_from_slice(&(value as f32).to_ne_bytes()),
        _ => bytes = value.to_ne_bytes(),
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Types are matched by name, never by size.
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
            Some(10),
            Some(11),
        ];
        assert_eq!(numbers, wanted, "as in nccl.h, in the order of {:?}", DType::ALL);
    }

    const NEW: ReduceSupport = ReduceSupport { version: Version::new(2, 30, 7), capability: (9, 0) };

    #[test]
    fn floats_of_8_bits_are_reduced_where_library_and_device_do_and_moved_everywhere() {
        let old = ReduceSupport { version: Version::new(2, 23, 4), ..NEW };
        let small = ReduceSupport { capability: (8, 9), ..NEW };
        for dtype in [DType::F8E4M3, DType::F8E5M2] {
            assert!(reduced(dtype, ReduceOp::Sum, NEW).is_ok());
            assert_eq!(moved(dtype), (ncclDataType_t::ncclUint8, 1));
            for (abilities, words) in [(old, "this is NCCL 2.23.4"), (small, "on a device of 8.9")] {
                let refused = reduced(dtype, ReduceOp::Sum, abilities).unwrap_err();
                assert!(!refused.is_fatal() && refused.to_string().contains(words), "{refused}");
                assert!(reduced(DType::F16, ReduceOp::Sum, abilities).is_ok());
            }
        }
    }

    #[test]
    fn what_nccl_lacks_is_refused_by_name() {
        for op in ReduceOp::ALL {
            for dtype in DType::ALL {
                let refused = reduced(dtype, op, NEW).err().map(|error| error.to_string());
                let missing =
                    matches!(dtype, DType::I16 | DType::U16) || op.code() >= ReduceOp::BitAnd.code();
                match refused {
                    Some(words) if op.supports(dtype) => {
                        assert!(missing && words.contains("nccl does not support"), "{op} {dtype}: {words}");
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
    fn factors_are_rounded_to_their_type() {
        assert_eq!(factor(0.5, ncclDataType_t::ncclFloat16)[..3], [0, 0x38, 0]);
        assert_eq!(factor(0.5, ncclDataType_t::ncclBfloat16)[..3], [0, 0x3f, 0]);
        assert_eq!(factor(0.5, ncclDataType_t::ncclFloat32)[..5], [0, 0, 0, 0x3f, 0]);
        assert_eq!(factor(0.5, ncclDataType_t::ncclFloat64), 0.5_f64.to_ne_bytes());
        assert_eq!(factor(0.5, ncclDataType_t::ncclFloat8e4m3)[..2], [0x30, 0]);
        assert_eq!(factor(0.5, ncclDataType_t::ncclFloat8e5m2)[..2], [0x38, 0]);
    }
}
