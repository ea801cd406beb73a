//! Random numbers of the system.

use comm_core::{Error, Result};
use rustix::io::{Errno, retry_on_intr};
use rustix::rand::{GetRandomFlags, getrandom};

/// Draws a number that no other process draws.
pub(crate) fn number() -> Result<u64> {
    let mut bytes = [0; size_of::<u64>()];
    let failed = |errno: Errno| Error::io("draw a random number", errno.into());
    // Up to 256 bytes come at once or not at all.
    let drawn = retry_on_intr(|| getrandom(&mut bytes, GetRandomFlags::empty())).map_err(failed)?;
    if drawn == bytes.len() { Ok(u64::from_ne_bytes(bytes)) } else { Err(failed(Errno::IO)) }
}
