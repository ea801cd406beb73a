//! Versions of NCCL.

use std::fmt;

use crate::{NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH};

/// A version of NCCL, ordered by age.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct Version {
    /// The major version.
    pub major: u32,
    /// The minor version.
    pub minor: u32,
    /// The patch version, which may add calls too.
    pub patch: u32,
}

impl Version {
    /// The oldest supported version.
    pub const FLOOR: Self = Self::new(2, 18, 0);

    /// The version of the header of the bindings.
    pub const BINDINGS: Self = Self::new(NCCL_MAJOR as u32, NCCL_MINOR as u32, NCCL_PATCH as u32);

    /// Creates a version.
    pub const fn new(major: u32, minor: u32, patch: u32) -> Self {
        Self { major, minor, patch }
    }

    /// Returns the version of a code of `ncclGetVersion`: 21803 is 2.18.3, and 2804 is 2.8.4,
    /// because the minor version had one digit up to 2.8.
    pub const fn from_code(code: u32) -> Self {
        let major_unit = if code < 10_000 { 1_000 } else { 10_000 };
        Self::new(code / major_unit, code % major_unit / 100, code % 100)
    }
}

/// Formats the version as NCCL does: `2.18.3`.
impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NCCL_VERSION_CODE;

    #[test]
    fn codes_of_both_formats_are_read() {
        for (code, text) in
            [(21803, "2.18.3"), (23203, "2.32.3"), (20905, "2.9.5"), (2804, "2.8.4"), (2000, "2.0.0")]
        {
            assert_eq!(Version::from_code(code).to_string(), text);
        }
        assert_eq!(Version::from_code(NCCL_VERSION_CODE as u32), Version::BINDINGS);
    }

    #[test]
    fn versions_are_ordered_by_number_and_not_by_text() {
        assert!(Version::new(2, 9, 5) < Version::FLOOR);
        assert!(Version::FLOOR < Version::new(2, 18, 1));
        assert!(Version::new(2, 32, 3) < Version::new(3, 0, 0));
    }
}
