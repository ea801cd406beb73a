//! Elements that small whole numbers can be turned into.

use comm::Element;
use half::{bf16, f16};

/// An element type with whole numbers in it. Every whole number up to 256 is exact in all of them,
/// modulo the range of an integer type.
pub(crate) trait Number: Element {
    /// The number as an element: what does not fit into an integer type is cut off, as by its
    /// arithmetic.
    fn of(number: u64) -> Self;
}

macro_rules! integers {
    ($($integer:ty),+) => {
        $(impl Number for $integer {
            fn of(number: u64) -> Self {
                number as Self
            }
        })+
    };
}

integers!(i8, u8, i16, u16, i32, u32, i64, u64);

impl Number for f16 {
    fn of(number: u64) -> Self {
        Self::from_f64(number as f64)
    }
}

impl Number for bf16 {
    fn of(number: u64) -> Self {
        Self::from_f64(number as f64)
    }
}

impl Number for f32 {
    fn of(number: u64) -> Self {
        number as Self
    }
}

impl Number for f64 {
    fn of(number: u64) -> Self {
        number as Self
    }
}
