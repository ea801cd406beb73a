//! Versions of NCCL, which it gives as one number.

use std::fmt;

use crate::{NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH};

/// A version of NCCL. Later ones are greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct Version {
    /// Changes when programs have to.
    pub major: u32,
    /// Counts releases.
    pub minor: u32,
    /// Counts corrections of a release, which may add calls too.
    pub patch: u32,
}

impl Version {
    /// The oldest library that is accepted.
    pub const FLOOR: Self = Self::new(2, 18, 0);

    /// The version whose header the bindings were made from.
    pub const BINDINGS: Self = Self::new(NCCL_MAJOR as u32, NCCL_MINOR as u32, NCCL_PATCH as u32);

    /// The version of these three numbers.
    pub const fn new(major: u32, minor: u32, patch: u32) -> Self {
        Self { major, minor, patch }
    }

    /// The version that `ncclGetVersion` means by `code`: 21803 is 2.18.3, and 2804 is 2.8.4, as
    /// the minor number had one digit up to 2.8.
    pub const fn from_code(code: u32) -> Self {
        let major_unit = if code < 10_000 { 1_000 } else { 10_000 };
        Self::new(code / major_unit, code % major_unit / 100, code % 100)
    }
}

/// As NCCL writes it: `2.18.3`.
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
