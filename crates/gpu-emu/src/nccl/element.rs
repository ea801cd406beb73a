//! Element types and their arithmetic.

use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use nccl_sys::ncclDataType_t;

use crate::settings::{self, Setting};

use super::failure::{Failure, Outcome};

/// An element type of the emulated version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Element(ncclDataType_t);

/// The arithmetic in which a type is reduced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// In wide integers, which are truncated to the size of the type.
    Integer {
        signed: bool,
    },
    /// In f32, rounded once at the end.
    Single,
    Double,
}

/// The version that introduced 8-bit floats.
const FLOAT8_SINCE: u64 = 22_400;

impl Element {
    pub(super) fn new(kind: ncclDataType_t) -> Outcome<Self> {
        let newest = if settings::get(Setting::NcclVersion) < FLOAT8_SINCE {
            ncclDataType_t::ncclBfloat16
        } else {
            ncclDataType_t::ncclFloat8e5m2
        };
        let known = kind.0 <= newest.0;
        known.then_some(Self(kind)).ok_or_else(|| Failure::argument(format!("invalid type {}", kind.0)))
    }

    pub(super) fn number(self) -> u8 {
        u8::try_from(self.0.0).unwrap_or(u8::MAX)
    }

    pub(super) fn size(self) -> usize {
        match self.0 {
            ncclDataType_t::ncclFloat16 | ncclDataType_t::ncclBfloat16 => 2,
            ncclDataType_t::ncclInt32 | ncclDataType_t::ncclUint32 | ncclDataType_t::ncclFloat32 => 4,
            ncclDataType_t::ncclInt64 | ncclDataType_t::ncclUint64 | ncclDataType_t::ncclFloat64 => 8,
            _ => 1,
        }
    }

    pub(super) fn class(self) -> Class {
        match self.0 {
            ncclDataType_t::ncclInt8 | ncclDataType_t::ncclInt32 | ncclDataType_t::ncclInt64 => {
                Class::Integer { signed: true }
            }
            ncclDataType_t::ncclUint8 | ncclDataType_t::ncclUint32 | ncclDataType_t::ncclUint64 => {
                Class::Integer { signed: false }
            }
            ncclDataType_t::ncclFloat64 => Class::Double,
            _ => Class::Single,
        }
    }

    /// Decodes a floating point element of at most 32 bits.
    pub(super) fn to_f32(self, bytes: &[u8]) -> f32 {
        match (self.0, bytes) {
            (ncclDataType_t::ncclFloat16, &[a, b]) => f16::from_ne_bytes([a, b]).to_f32(),
            (ncclDataType_t::ncclBfloat16, &[a, b]) => bf16::from_ne_bytes([a, b]).to_f32(),
            (ncclDataType_t::ncclFloat8e4m3, &[bits]) => F8E4M3::from_bits(bits).to_f32(),
            (ncclDataType_t::ncclFloat8e5m2, &[bits]) => F8E5M2::from_bits(bits).to_f32(),
            (_, &[a, b, c, d]) => f32::from_ne_bytes([a, b, c, d]),
            _ => f32::NAN,
        }
    }

    /// Appends the nearest element, ties to even.
    pub(super) fn put_f32(self, value: f32, out: &mut Vec<u8>) {
        match self.0 {
            ncclDataType_t::ncclFloat16 => out.extend(f16::from_f32(value).to_ne_bytes()),
            ncclDataType_t::ncclBfloat16 => out.extend(bf16::from_f32(value).to_ne_bytes()),
            ncclDataType_t::ncclFloat8e4m3 => out.push(F8E4M3::from_f32(value).to_bits()),
            ncclDataType_t::ncclFloat8e5m2 => out.push(F8E5M2::from_f32(value).to_bits()),
            _ => out.extend(value.to_ne_bytes()),
        }
    }
}
