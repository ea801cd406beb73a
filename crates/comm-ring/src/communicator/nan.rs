//! Finds contributions to reductions that are not numbers.

use comm_core::{DType, Error, Signature};

use super::checked_call::Bytes;
use super::session::Session;

impl Session {
    /// Ends the communicator if this rank's contribution to a reduction has a NaN and the
    /// configuration rejects these, so that all ranks learn of whom it is.
    #[inline]
    pub(super) fn check_nan(&mut self, signature: &Signature, bytes: &Bytes<'_>) -> Result<(), Error> {
        if !self.config.reject_nan || signature.op.is_none() {
            return Ok(());
        }
        let contribution = if bytes.in_place { &*bytes.output } else { bytes.input };
        match signature.dtype.and_then(|dtype| position(dtype, contribution)) {
            Some(element) => {
                let reason = format!("its contribution to {signature} is NaN at element {element}");
                Err(self.give_up_idle(Error::Aborted { by: self.group.rank(), reason }))
            }
            None => Ok(()),
        }
    }
}

/// Returns the index of the first element that is NaN.
fn position(dtype: DType, bytes: &[u8]) -> Option<usize> {
    match dtype {
        DType::F64 => find(bytes, |element| f64::from_ne_bytes(element).is_nan()),
        DType::F32 => find(bytes, |element| f32::from_ne_bytes(element).is_nan()),
        DType::BF16 => find(bytes, |element| is_above(element, 0x7f80)),
        DType::F16 => find(bytes, |element| is_above(element, 0x7c00)),
        _ => None,
    }
}

/// Returns whether a 16-bit float lies above infinity, ignoring its sign.
const fn is_above(element: [u8; 2], infinity: u16) -> bool {
    u16::from_ne_bytes(element) & 0x7fff > infinity
}

fn find<const N: usize>(bytes: &[u8], is_nan: impl Fn([u8; N]) -> bool) -> Option<usize> {
    let (elements, _) = bytes.as_chunks::<N>();
    elements.iter().position(|element| is_nan(*element))
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;

    #[test]
    fn the_first_nan_of_each_float_type_is_found_and_infinity_is_none() {
        let f32s = [1.0, f32::INFINITY, f32::NEG_INFINITY, -f32::NAN, f32::NAN];
        assert_eq!(position(DType::F32, bytemuck::bytes_of(&f32s)), Some(3));
        let f64s = [f64::INFINITY, 0.0, f64::NAN];
        assert_eq!(position(DType::F64, bytemuck::bytes_of(&f64s)), Some(2));
        let halves = [f16::INFINITY, f16::NEG_INFINITY, f16::MAX, f16::NAN];
        assert_eq!(position(DType::F16, bytemuck::cast_slice(&halves)), Some(3));
        let halves = [bf16::NAN, bf16::INFINITY];
        assert_eq!(position(DType::BF16, bytemuck::cast_slice(&halves)), Some(0));
        assert_eq!(position(DType::F32, bytemuck::cast_slice(&f32s[..3])), None);
        assert_eq!(position(DType::U32, &[0xff; 8]), None);
    }
}
