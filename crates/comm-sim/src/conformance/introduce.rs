//! The first message between all ranks of a channel.

use std::io::IoSlice;
use std::thread;
use std::time::Instant;

use comm_core::{Result, Transport};

use super::port::limit;

/// Sends two bytes to every peer, this rank and the rank of the peer, and checks the bytes from
/// each. Every rank of a channel that was just opened must call this.
///
/// # Errors
/// As the transport.
///
/// # Panics
/// If wrong bytes arrive, or none for 30 seconds.
pub fn introduce<T: Transport>(transport: &mut T) -> Result<()> {
    let group = transport.group();
    let limit = limit();
    for peer in group.peers() {
        let own = [group.rank() as u8, peer as u8];
        let mut sent = 0;
        while sent < own.len() {
            sent += transport.try_send(peer, &[IoSlice::new(&own[sent..])])?;
            assert!(Instant::now() < limit, "nothing can be sent to {peer}");
        }
    }
    for peer in group.peers() {
        let (mut theirs, mut received) = ([0; 2], 0);
        while received < theirs.len() {
            received += transport.try_recv(peer, &mut theirs[received..])?;
            assert!(Instant::now() < limit, "nothing arrives from {peer}");
            thread::yield_now();
        }
        assert_eq!(theirs, [peer as u8, group.rank() as u8]);
    }
    Ok(())
}
