//! Random numbers from the operating system.

use std::io;

use comm_core::simulation;
use rustix::io::retry_on_intr;
use rustix::rand::{GetRandomFlags, getrandom};

/// Returns random bytes that no other process can guess.
///
/// # Errors
/// [`io::Error`] if the system cannot supply them.
pub fn random_bytes<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    if let Some(system) = simulation::simulated() {
        bytes
            .chunks_mut(8)
            .for_each(|chunk| chunk.copy_from_slice(&system.random().to_ne_bytes()[..chunk.len()]));
        return Ok(bytes);
    }
    let mut filled = 0;
    while filled < N {
        filled += retry_on_intr(|| getrandom(&mut bytes[filled..], GetRandomFlags::empty()))?;
    }
    Ok(bytes)
}
