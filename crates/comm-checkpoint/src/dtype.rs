//! Element types in safetensors files.

use comm_core::DType;
use safetensors::Dtype;

/// The corresponding element types.
const TYPES: [(DType, Dtype); 14] = [
    (DType::I8, Dtype::I8),
    (DType::U8, Dtype::U8),
    (DType::I16, Dtype::I16),
    (DType::U16, Dtype::U16),
    (DType::I32, Dtype::I32),
    (DType::U32, Dtype::U32),
    (DType::I64, Dtype::I64),
    (DType::U64, Dtype::U64),
    (DType::F16, Dtype::F16),
    (DType::BF16, Dtype::BF16),
    (DType::F32, Dtype::F32),
    (DType::F64, Dtype::F64),
    (DType::F8E4M3, Dtype::F8_E4M3),
    (DType::F8E5M2, Dtype::F8_E5M2),
];

pub(crate) fn to_safetensors(dtype: DType) -> Option<Dtype> {
    TYPES.iter().find(|(ours, _)| *ours == dtype).map(|(_, theirs)| *theirs)
}

pub(crate) fn from_safetensors(dtype: Dtype) -> Option<DType> {
    TYPES.iter().find(|(_, theirs)| *theirs == dtype).map(|(ours, _)| *ours)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_type_has_a_safetensors_type_of_equal_size() {
        for dtype in DType::ALL {
            let theirs = to_safetensors(dtype).unwrap();
            assert_eq!((from_safetensors(theirs), theirs.bitsize()), (Some(dtype), 8 * dtype.size()));
        }
    }
}
