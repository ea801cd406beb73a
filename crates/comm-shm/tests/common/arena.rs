//! Channels that send from memory that the fabric allocated.

use std::io::IoSlice;

use comm_core::{Allocation, ChannelId, Fabric, Result, Transport, Until};
use comm_shm::{SharedMemoryFabric, SharedMemoryTransport};
use comm_sim::{AlteredFabric, AlteredTransport};

/// The number of bytes that one rank can have in flight to each other rank.
const ARENA_BYTES: usize = 1 << 20;

/// Channels that allocate the bytes that they send.
pub(crate) fn arena_fabric(fabric: SharedMemoryFabric) -> impl Fabric {
    AlteredFabric { fabric, open }
}

/// Opens a channel that sends bytes from an arena per peer, where they stay until all of them are
/// released.
fn open(
    fabric: &SharedMemoryFabric,
    channel: ChannelId,
    members: &[usize],
    until: Until<'_>,
) -> Result<impl Transport + use<>> {
    let transport = fabric.open_among(channel, members, until)?;
    let arena = |_| Ok(Arena { memory: fabric.allocate(ARENA_BYTES)?, used: 0, accepted: 0 });
    let mut arenas: Vec<Arena> = members.iter().map(arena).collect::<Result<_>>()?;
    let send = move |transport: &mut SharedMemoryTransport, to: usize, bytes: &[IoSlice<'_>]| match arenas
        .get_mut(to)
    {
        Some(arena) => arena.send(transport, to, bytes),
        None => transport.try_send(to, bytes),
    };
    Ok(AlteredTransport { transport, alteration: send })
}

struct Arena {
    memory: Allocation,
    used: usize,
    accepted: u64,
}

impl Arena {
    fn send(
        &mut self,
        transport: &mut SharedMemoryTransport,
        to: usize,
        bytes: &[IoSlice<'_>],
    ) -> Result<usize> {
        if transport.released(to) >= self.accepted {
            self.used = 0;
        }
        let mut sent = 0;
        for piece in bytes {
            let space = self.memory.bytes_mut().get_mut(self.used..).unwrap_or_default();
            let len = piece.len().min(space.len());
            space[..len].copy_from_slice(&piece[..len]);
            let accepted = transport.try_send(to, &[IoSlice::new(&space[..len])])?;
            self.used += accepted;
            self.accepted += accepted as u64;
            sent += accepted;
            if accepted < piece.len() {
                break;
            }
        }
        Ok(sent)
    }
}
