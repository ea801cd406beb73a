//! Encoding and decoding of objects.

use std::sync::Arc;

use rmp_serde::Deserializer;
use rmp_serde::decode::Error;
use serde_core::Serialize;
use serde_core::de::DeserializeOwned;

use super::ObjectError;

/// The concatenated encodings of several objects, and their sizes.
pub(super) type Encoded = (Vec<u8>, Vec<u64>);

/// Encodes exactly this number of objects.
pub(super) fn encode_all<'a, T: Serialize + 'a>(
    objects: impl IntoIterator<Item = &'a T>,
    expected: usize,
) -> Result<Encoded, ObjectError> {
    let (mut bytes, mut sizes) = Encoded::default();
    for object in objects {
        let start = bytes.len();
        rmp_serde::encode::write_named(&mut bytes, object)
            .map_err(|error| ObjectError::Encode { source: Arc::new(error) })?;
        sizes.push((bytes.len() - start) as u64);
    }
    if sizes.len() == expected {
        Ok((bytes, sizes))
    } else {
        Err(ObjectError::Count { expected, got: sizes.len() })
    }
}

/// Decodes one object of each rank from their concatenated encodings.
pub(super) fn decode_all<T: DeserializeOwned>(
    mut bytes: &[u8],
    counts: &[usize],
) -> Result<Vec<T>, ObjectError> {
    let object = |(rank, &count): (usize, &usize)| {
        let (object, rest) = bytes.split_at(count);
        bytes = rest;
        decode(rank, object)
    };
    counts.iter().enumerate().map(object).collect()
}

/// Decodes the object of a rank, which must take all of the bytes.
pub(super) fn decode<T: DeserializeOwned>(rank: usize, bytes: &[u8]) -> Result<T, ObjectError> {
    let failed = |error| ObjectError::Decode { rank, source: Arc::new(error) };
    let mut deserializer = Deserializer::new(bytes);
    let object = T::deserialize(&mut deserializer).map_err(failed)?;
    match deserializer.get_ref().len() {
        0 => Ok(object),
        left => Err(failed(Error::Uncategorized(format!("{left} bytes are left over")))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_left_over_are_an_error() {
        let (mut bytes, sizes) = encode_all(&[7_u32], 1).unwrap();
        assert_eq!((&bytes[..], &sizes[..]), (&[7][..], &[1][..]));
        assert_eq!(decode::<u32>(3, &bytes).unwrap(), 7);
        bytes.push(0);
        let error = decode::<u32>(3, &bytes).unwrap_err();
        assert!(matches!(error, ObjectError::Decode { rank: 3, .. }), "{error}");
        assert!(decode::<u32>(3, &[]).is_err());
    }

    #[test]
    fn an_excessive_length_allocates_no_memory() {
        // An array, and a string, of 2^32 - 1.
        assert!(decode::<Vec<u64>>(0, &[0xdd, 0xff, 0xff, 0xff, 0xff]).is_err());
        assert!(decode::<String>(0, &[0xdb, 0xff, 0xff, 0xff, 0xff]).is_err());
    }
}
