//! Element types, and the bytes of tensors as they are sent.

use burn::tensor::{DType, DataError, Element, TensorData, bf16, f16};
use comm_core::{DType as SentType, HostView, HostViewMut};

/// Returns the type in which elements are sent: their own, except that booleans, which backends
/// store in different types, are sent as bytes. Returns `None` for types that cannot be sent.
pub(crate) const fn sent_type(dtype: DType) -> Option<SentType> {
    Some(match dtype {
        DType::F64 => SentType::F64,
        DType::F32 => SentType::F32,
        DType::F16 => SentType::F16,
        DType::BF16 => SentType::BF16,
        DType::I64 => SentType::I64,
        DType::I32 => SentType::I32,
        DType::I16 => SentType::I16,
        DType::I8 => SentType::I8,
        DType::U64 => SentType::U64,
        DType::U32 => SentType::U32,
        DType::U16 => SentType::U16,
        DType::U8 | DType::Bool(_) => SentType::U8,
        DType::Flex32 | DType::QFloat(_) => return None,
    })
}

/// Converts a value to the type in which it is sent.
pub(crate) fn to_sent(data: TensorData) -> TensorData {
    if data.dtype().is_bool() {
        let bytes: Vec<u8> = data.iter::<bool>().map(u8::from).collect();
        return TensorData::new(bytes, data.shape().clone());
    }
    data
}

/// Converts a value from the type in which it was sent to booleans.
pub(crate) fn to_bools(data: &TensorData) -> TensorData {
    let bools: Vec<bool> = data.as_bytes().iter().map(|byte| *byte != 0).collect();
    TensorData::new(bools, data.shape().clone())
}

/// Creates a value from the bytes of its elements. Returns `None` for types that burn does not
/// have.
pub(crate) fn from_bytes(dtype: SentType, shape: &[usize], bytes: &[u8]) -> Option<TensorData> {
    let create = match dtype {
        SentType::F64 => typed::<f64>,
        SentType::F32 => typed::<f32>,
        SentType::F16 => typed::<f16>,
        SentType::BF16 => typed::<bf16>,
        SentType::I64 => typed::<i64>,
        SentType::I32 => typed::<i32>,
        SentType::I16 => typed::<i16>,
        SentType::I8 => typed::<i8>,
        SentType::U64 => typed::<u64>,
        SentType::U32 => typed::<u32>,
        SentType::U16 => typed::<u16>,
        SentType::U8 => typed::<u8>,
        _ => return None,
    };
    Some(create(shape, bytes))
}

fn typed<T: Element + comm_core::Element>(shape: &[usize], bytes: &[u8]) -> TensorData {
    let mut elements = vec![T::default(); shape.iter().product()];
    HostViewMut::new(&mut elements[..]).into_bytes().copy_from_slice(bytes);
    TensorData::new(elements, shape.to_vec())
}

/// Returns the elements of a gradient.
pub(crate) fn view(data: &TensorData) -> Result<HostView<'_>, DataError> {
    Ok(match data.dtype() {
        DType::F16 => HostView::new(data.as_slice::<f16>()?),
        DType::BF16 => HostView::new(data.as_slice::<bf16>()?),
        DType::F32 => HostView::new(data.as_slice::<f32>()?),
        DType::F64 => HostView::new(data.as_slice::<f64>()?),
        actual => return Err(DataError::DTypeMismatch { expected: DType::F32, actual }),
    })
}

/// Returns the elements of a gradient for writing.
pub(crate) fn view_mut(data: &mut TensorData) -> Result<HostViewMut<'_>, DataError> {
    Ok(match data.dtype() {
        DType::F16 => HostViewMut::new(data.as_mut_slice::<f16>()?),
        DType::BF16 => HostViewMut::new(data.as_mut_slice::<bf16>()?),
        DType::F32 => HostViewMut::new(data.as_mut_slice::<f32>()?),
        DType::F64 => HostViewMut::new(data.as_mut_slice::<f64>()?),
        actual => return Err(DataError::DTypeMismatch { expected: DType::F32, actual }),
    })
}

#[cfg(test)]
mod tests {
    use burn::tensor::BoolStore;

    use super::*;

    #[test]
    fn element_types_keep_their_names_and_sizes() {
        let floats = [DType::F64, DType::F32, DType::F16, DType::BF16];
        let integers =
            [DType::I64, DType::I32, DType::I16, DType::I8, DType::U64, DType::U32, DType::U16, DType::U8];
        for theirs in floats.into_iter().chain(integers) {
            let ours = sent_type(theirs).unwrap();
            assert_eq!((ours.name(), ours.size()), (theirs.name(), theirs.size()));
            let bytes: Vec<u8> = (1..).take(2 * ours.size()).collect();
            let data = from_bytes(ours, &[2, 1], &bytes).unwrap();
            assert_eq!((data.dtype(), data.shape().as_slice()), (theirs, &[2, 1][..]));
            assert_eq!(data.as_bytes(), bytes);
        }
        assert_eq!(sent_type(DType::Flex32), None);
        for store in [BoolStore::Native, BoolStore::U8, BoolStore::U32] {
            assert_eq!(sent_type(DType::Bool(store)), Some(SentType::U8));
        }
    }

    #[test]
    fn booleans_round_trip() {
        let bools = TensorData::new(vec![true, false, true], [3]);
        let sent = to_sent(bools.clone());
        assert_eq!((sent.dtype(), sent.as_bytes()), (DType::U8, &[1, 0, 1][..]));
        assert_eq!(to_bools(&sent), bools);
    }
}
