//! Random numbers from the operating system.

use std::io;

use rustix::io::retry_on_intr;
use rustix::rand::{GetRandomFlags, getrandom};

/// Returns random bytes that no other process can guess.
///
/// # Errors
/// [`io::Error`] if the system cannot supply them.
pub fn random_bytes<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        filled += retry_on_intr(|| getrandom(&mut bytes[filled..], GetRandomFlags::empty()))?;
    }
    Ok(bytes)
}
