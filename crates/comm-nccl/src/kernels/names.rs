//! The names of the kernels for an operation and its types.

use std::ffi::CStr;

use comm_core::DType;

/// A floating point type on which all operations are defined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Float {
    F16,
    Bf16,
    F32,
    F64,
}

impl Float {
    pub(super) const fn of(dtype: DType) -> Option<Self> {
        Some(match dtype {
            DType::F16 => Self::F16,
            DType::BF16 => Self::Bf16,
            DType::F32 => Self::F32,
            DType::F64 => Self::F64,
            _ => return None,
        })
    }
}

/// Sums of sums, of any type of elements.
pub(super) const SUMS: &CStr = c"comm_sums_f64";

/// Returns the conversion to the first type from the second one.
pub(super) const fn convert(to: Float, from: Float) -> &'static CStr {
    match (to, from) {
        (Float::F16, Float::F16) => c"comm_convert_f16_f16",
        (Float::F16, Float::Bf16) => c"comm_convert_f16_bf16",
        (Float::F16, Float::F32) => c"comm_convert_f16_f32",
        (Float::F16, Float::F64) => c"comm_convert_f16_f64",
        (Float::Bf16, Float::F16) => c"comm_convert_bf16_f16",
        (Float::Bf16, Float::Bf16) => c"comm_convert_bf16_bf16",
        (Float::Bf16, Float::F32) => c"comm_convert_bf16_f32",
        (Float::Bf16, Float::F64) => c"comm_convert_bf16_f64",
        (Float::F32, Float::F16) => c"comm_convert_f32_f16",
        (Float::F32, Float::Bf16) => c"comm_convert_f32_bf16",
        (Float::F32, Float::F32) => c"comm_convert_f32_f32",
        (Float::F32, Float::F64) => c"comm_convert_f32_f64",
        (Float::F64, Float::F16) => c"comm_convert_f64_f16",
        (Float::F64, Float::Bf16) => c"comm_convert_f64_bf16",
        (Float::F64, Float::F32) => c"comm_convert_f64_f32",
        (Float::F64, Float::F64) => c"comm_convert_f64_f64",
    }
}

/// Returns the addition; `None` for types without one.
pub(super) const fn add(dtype: DType) -> Option<&'static CStr> {
    Some(match dtype {
        DType::F16 => c"comm_add_f16",
        DType::BF16 => c"comm_add_bf16",
        DType::F32 => c"comm_add_f32",
        DType::F64 => c"comm_add_f64",
        DType::I8 | DType::U8 => c"comm_add_u8",
        DType::I16 | DType::U16 => c"comm_add_u16",
        DType::I32 | DType::U32 => c"comm_add_u32",
        DType::I64 | DType::U64 => c"comm_add_u64",
        _ => return None,
    })
}

pub(super) const fn scale(float: Float) -> &'static CStr {
    match float {
        Float::F16 => c"comm_scale_f16",
        Float::Bf16 => c"comm_scale_bf16",
        Float::F32 => c"comm_scale_f32",
        Float::F64 => c"comm_scale_f64",
    }
}

/// Returns the sums of squares of groups of rows.
pub(super) const fn squares(float: Float) -> &'static CStr {
    match float {
        Float::F16 => c"comm_squares_f16",
        Float::Bf16 => c"comm_squares_bf16",
        Float::F32 => c"comm_squares_f32",
        Float::F64 => c"comm_squares_f64",
    }
}

/// Returns the search for elements that are not finite.
pub(super) const fn find(float: Float) -> &'static CStr {
    match float {
        Float::F16 => c"comm_find_f16",
        Float::Bf16 => c"comm_find_bf16",
        Float::F32 => c"comm_find_f32",
        Float::F64 => c"comm_find_f64",
    }
}

/// All kernels.
pub(super) fn all() -> impl Iterator<Item = &'static CStr> {
    const FLOATS: [Float; 4] = [Float::F16, Float::Bf16, Float::F32, Float::F64];
    const INTEGERS: [DType; 4] = [DType::U8, DType::U16, DType::U32, DType::U64];
    const OF_FLOATS: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];
    let pairs = FLOATS.into_iter().flat_map(|to| FLOATS.map(|from| (to, from)));
    let conversions = pairs.map(|(to, from)| convert(to, from));
    let additions = INTEGERS.into_iter().chain(OF_FLOATS).filter_map(add);
    let of_floats = FLOATS.into_iter().flat_map(|float| [scale(float), squares(float), find(float)]);
    conversions.chain(additions).chain(of_floats).chain([SUMS])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::module::MODULES;

    #[test]
    fn every_kernel_is_in_one_module_and_every_module_has_no_others() {
        let mut names: Vec<&str> = all().map(|name| name.to_str().unwrap()).collect();
        names.sort_unstable();
        let heads = MODULES.iter().flat_map(|text| text.split(".visible .entry ").skip(1));
        let mut defined: Vec<&str> = heads.filter_map(|head| Some(head.split_once('(')?.0)).collect();
        defined.sort_unstable();
        assert_eq!(names, defined);
    }
}
