//! A first word between all ranks of a channel.

use std::io::IoSlice;
use std::thread;
use std::time::Instant;

use comm_core::{Result, Transport};

use super::port::limit;

/// Every rank of a channel that was just opened calls this: everybody tells everybody who it is, in
/// two bytes, and hears that streams lead where they should.
///
/// # Errors
/// As the transport.
///
/// # Panics
/// If anything else comes, or nothing for long.
pub fn introduce<T: Transport>(transport: &mut T) -> Result<()> {
    let group = transport.group();
    let limit = limit();
    for peer in group.peers() {
        let own = [group.rank() as u8, peer as u8];
        let mut sent = 0;
        while sent < own.len() {
            sent += transport.try_send(peer, &[IoSlice::new(&own[sent..])])?;
            assert!(Instant::now() < limit, "nothing goes to {peer}");
        }
    }
    for peer in group.peers() {
        let (mut theirs, mut heard) = ([0; 2], 0);
        while heard < theirs.len() {
            heard += transport.try_recv(peer, &mut theirs[heard..])?;
            assert!(Instant::now() < limit, "nothing comes from {peer}");
            thread::yield_now();
        }
        assert_eq!(theirs, [peer as u8, group.rank() as u8]);
    }
    Ok(())
}
