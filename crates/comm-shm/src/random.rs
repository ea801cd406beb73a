//! Random numbers from the kernel.

use std::io;

use rustix::io::{Errno, retry_on_intr};
use rustix::rand::{GetRandomFlags, getrandom};

/// Returns a random number that no other process can guess.
pub(crate) fn number() -> io::Result<u128> {
    let mut bytes = [0; size_of::<u128>()];
    // The kernel returns up to 256 bytes at once or an error.
    let drawn = retry_on_intr(|| getrandom(&mut bytes, GetRandomFlags::empty()))?;
    if drawn == bytes.len() { Ok(u128::from_ne_bytes(bytes)) } else { Err(Errno::IO.into()) }
}
