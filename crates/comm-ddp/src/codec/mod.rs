//! Block codecs: floats as small integers with a scale per block.
//!
//! A block has 64 elements, but the last one of a slice may have fewer. It is encoded as its scale,
//! an `f32` with the byte order of all elements, and an integer per element: in two's complement,
//! of 8 bits, or of 4 bits with the earlier element in the lower half of a byte. An element is its
//! integer times the scale. The largest magnitude of a block is the largest integer, so integers
//! are symmetric around zero. (Dettmers, 8-bit approximations for parallelism in deep learning,
//! 2015; by blocks as in Wang et al., ZeRO++, 2023.)

mod all_reduce;

use std::str::FromStr;

use comm_core::{Invalid, bytemuck};

pub use self::all_reduce::EncodedAllReduce;
use crate::{Error, Result};

/// The elements of a block.
const BLOCK: usize = 64;
/// The bytes of a scale.
const SCALE: usize = size_of::<f32>();
/// 1.5 * 2^23. Adding it to a float of magnitude below 2^22 rounds the float to an integer, ties to
/// even, which is then in the lower bits.
const ROUNDING: f32 = 12_582_912.0;

/// An encoding of `f32` elements by blocks of 64, each as a scale and an integer per element.
///
/// An element is rounded to the nearest multiple of the scale of its block, ties to even. The error
/// is at most half of the scale, and about 2^-24 of the element.
///
/// A block with an infinity or a NaN is decoded as NaN in all elements, so that it is noticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
#[non_exhaustive]
pub enum BlockCodec {
    /// Integers of 8 bits, from -127 to 127: 0.266 of the bytes of `f32`.
    Int8,
    /// Integers of 4 bits, from -7 to 7: 0.141 of the bytes of `f32`.
    Int4,
}

impl BlockCodec {
    /// The number of elements of a block.
    pub const BLOCK_LEN: usize = BLOCK;

    const ALL: [Self; 2] = [Self::Int8, Self::Int4];

    /// Returns the name, as in "int8".
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Int8 => "int8",
            Self::Int4 => "int4",
        }
    }

    /// Returns the number of bytes that encode `elements` elements.
    #[must_use]
    pub const fn encoded_len(self, elements: usize) -> usize {
        let (blocks, rest) = (elements / BLOCK, elements % BLOCK);
        let rest = if rest == 0 { 0 } else { SCALE + self.integer_bytes(rest) };
        blocks * (SCALE + self.integer_bytes(BLOCK)) + rest
    }

    const fn integer_bytes(self, elements: usize) -> usize {
        match self {
            Self::Int8 => elements,
            Self::Int4 => elements.div_ceil(2),
        }
    }

    /// Returns the largest integer.
    const fn levels(self) -> f32 {
        match self {
            Self::Int8 => 127.0,
            Self::Int4 => 7.0,
        }
    }

    /// Encodes elements.
    ///
    /// # Errors
    /// [`Error::Comm`](crate::Error::Comm) with [`Invalid::Length`] unless `into` has
    /// [`BlockCodec::encoded_len`] bytes.
    pub fn encode(self, elements: &[f32], into: &mut [u8]) -> Result<()> {
        check_len("the buffer for encoded elements", self.encoded_len(elements.len()), into.len())?;
        let blocks = into.chunks_mut(self.encoded_len(BLOCK));
        for (block, into) in elements.chunks(BLOCK).zip(blocks) {
            self.encode_block(block, into);
        }
        Ok(())
    }

    /// Decodes as many elements as `into` has.
    ///
    /// # Errors
    /// [`Error::Comm`](crate::Error::Comm) with [`Invalid::Length`] unless `encoded` has
    /// [`BlockCodec::encoded_len`] bytes.
    pub fn decode(self, encoded: &[u8], into: &mut [f32]) -> Result<()> {
        self.decode_with(encoded, into, |element, decoded| *element = decoded)
    }

    /// Decodes elements and adds them to the elements of `sum`.
    ///
    /// # Errors
    /// As [`BlockCodec::decode`].
    pub fn decode_add(self, encoded: &[u8], sum: &mut [f32]) -> Result<()> {
        self.decode_with(encoded, sum, |element, decoded| *element += decoded)
    }

    /// Calls a function with each element of `into` and the decoded one.
    fn decode_with(
        self,
        encoded: &[u8],
        into: &mut [f32],
        visit: impl Fn(&mut f32, f32) + Copy,
    ) -> Result<()> {
        check_len("the encoded elements", self.encoded_len(into.len()), encoded.len())?;
        let blocks = encoded.chunks(self.encoded_len(BLOCK));
        for (encoded, into) in blocks.zip(into.chunks_mut(BLOCK)) {
            let Some((scale, integers)) = encoded.split_first_chunk::<SCALE>() else { continue };
            self.decode_block(bytemuck::cast(*scale), integers, into, visit);
        }
        Ok(())
    }

    fn encode_block(self, block: &[f32], into: &mut [u8]) {
        let Some((scale_bytes, integers)) = into.split_first_chunk_mut::<SCALE>() else { return };
        let scale = scale(largest(block), self.levels());
        *scale_bytes = bytemuck::cast(scale);
        if scale.is_nan() || scale == 0.0 {
            integers.fill(0);
            return;
        }
        match self {
            Self::Int8 => {
                for (integer, element) in integers.iter_mut().zip(block) {
                    *integer = round(element / scale);
                }
            }
            Self::Int4 => {
                let (pairs, last) = block.as_chunks::<2>();
                for (integer, [low, high]) in integers.iter_mut().zip(pairs) {
                    *integer = round(low / scale) & 0xf | round(high / scale) << 4;
                }
                if let (Some(integer), [last]) = (integers.last_mut(), last) {
                    *integer = round(last / scale) & 0xf;
                }
            }
        }
    }

    fn decode_block(self, scale: f32, integers: &[u8], into: &mut [f32], visit: impl Fn(&mut f32, f32)) {
        match self {
            Self::Int8 => {
                for (element, integer) in into.iter_mut().zip(integers) {
                    visit(element, f32::from(integer.cast_signed()) * scale);
                }
            }
            Self::Int4 => {
                // Shifts of signed numbers copy the sign.
                let low = |pair: u8| f32::from((pair << 4).cast_signed() >> 4) * scale;
                let high = |pair: u8| f32::from(pair.cast_signed() >> 4) * scale;
                let (pairs, last) = into.as_chunks_mut::<2>();
                for ([first, second], pair) in pairs.iter_mut().zip(integers) {
                    visit(first, low(*pair));
                    visit(second, high(*pair));
                }
                if let ([last], Some(pair)) = (last, integers.last()) {
                    visit(last, low(*pair));
                }
            }
        }
    }
}

/// Parses the name.
impl FromStr for BlockCodec {
    type Err = Error;

    /// # Errors
    /// [`Error::Setting`] for any other text.
    fn from_str(name: &str) -> Result<Self> {
        let known = Self::ALL.into_iter().find(|codec| codec.name() == name);
        known.ok_or(Error::Setting { name: "codec", requirement: "int8 or int4" })
    }
}

/// Returns the largest magnitude of a block, which is not finite if an element is not.
fn largest(block: &[f32]) -> f32 {
    // Magnitudes have the same order as their bits, in which those that are not finite come last.
    let magnitude = |element: &f32| element.to_bits() & 0x7fff_ffff;
    f32::from_bits(block.iter().map(magnitude).fold(0, u32::max))
}

/// Returns the scale at which `largest` is the integer `levels`; NaN if it is not finite.
fn scale(largest: f32, levels: f32) -> f32 {
    if !largest.is_finite() {
        return f32::NAN;
    }
    let scale = largest / levels;
    // A subnormal scale has few bits. If it were rounded down, the largest integer would be out of
    // range.
    let scale = if scale * levels < largest { scale.next_up() } else { scale };
    // The largest element must not be decoded as infinity.
    if scale * levels > f32::MAX { scale.next_down() } else { scale }
}

/// Rounds to the nearest integer, ties to even, and returns its lowest byte.
const fn round(element: f32) -> u8 {
    (element + ROUNDING).to_bits() as u8
}

fn check_len(what: &'static str, expected: usize, got: usize) -> Result<()> {
    if expected == got {
        return Ok(());
    }
    Err(comm_core::Error::from(Invalid::Length { what, expected, got }).into())
}

#[cfg(test)]
mod tests;
