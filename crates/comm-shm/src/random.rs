//! Numbers that nobody can guess.

use std::io;

use rustix::io::{Errno, retry_on_intr};
use rustix::rand::{GetRandomFlags, getrandom};

/// Draws one.
pub(crate) fn number() -> io::Result<u128> {
    let mut bytes = [0; size_of::<u128>()];
    // Up to 256 bytes come at once or not at all.
    let drawn = retry_on_intr(|| getrandom(&mut bytes, GetRandomFlags::empty()))?;
    if drawn == bytes.len() { Ok(u128::from_ne_bytes(bytes)) } else { Err(Errno::IO.into()) }
}
