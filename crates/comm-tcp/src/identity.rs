//! The identity of this rank, and the authorization of its peers.

use std::num::NonZero;

use comm_core::{ChannelId, ChannelKind, Refusal};
use comm_mesh::{ASK_INDEX, Destination};
use comm_rendezvous::Processors;

use crate::config::TcpConfig;
use crate::hello::{Hello, Purpose};
use crate::protection::ProtectionConfig;
use crate::record::Record;

/// The identity of this rank and of its peers.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) rank: usize,
    pub(crate) job: u64,
    pub(crate) protection: ProtectionConfig,
    /// All members in the order of their ranks.
    pub(crate) members: Vec<Record>,
}

impl Identity {
    /// Returns the number of processors that the ranks of this host may use together, if the system
    /// reports it.
    pub(crate) fn processors(&self) -> Option<NonZero<usize>> {
        let host = |member: &Record| member.address.ip();
        let own = self.members.get(self.rank).map(host);
        let here = self.members.iter().filter(|member| Some(host(member)) == own);
        Processors::count_together(here.map(|member| member.processors))
    }

    /// Returns the hello for a connection to a member: that with which the channel is opened, one
    /// of another number that is added to a stream, or one that asks the member to connect.
    pub(crate) fn hello(&self, to: usize, channel: ChannelId, socket: u8) -> Hello {
        Hello {
            purpose: Purpose::Channel(channel),
            job: self.job,
            rank: wire(self.rank),
            to: wire(to),
            world_size: wire(self.members.len()),
            process: self.members[self.rank].process,
            to_process: self.members[to].process,
            socket,
        }
    }

    /// Authorizes a member whose hello is for this rank. The higher rank connects to the lower one,
    /// which may ask it to do so; either may add sockets to its stream, except on control channels,
    /// whose frames are few and short.
    pub(crate) fn authorize(&self, hello: &Hello) -> Result<Destination<ChannelId>, Refusal> {
        let Purpose::Channel(channel) = hello.purpose else { return Err(Refusal::NotAPeer) };
        let (ours, theirs) = (self.members.len(), hello.world_size as usize);
        let dialer = hello.rank as usize;
        if hello.job != self.job {
            Err(Refusal::Job)
        } else if theirs != ours {
            Err(Refusal::WorldSize { ours, theirs })
        } else if hello.to_process != self.members[self.rank].process
            || hello.to != wire(self.rank)
            || dialer == self.rank
            || !may_connect(channel.kind, dialer > self.rank, hello.socket)
        {
            Err(Refusal::NotAPeer)
        } else if self.members.get(dialer).is_none_or(|member| member.process != hello.process) {
            Err(Refusal::DuplicateRank { rank: dialer })
        } else {
            Ok(Destination { key: channel, world_rank: dialer, index: hello.socket })
        }
    }
}

/// Whether a rank connects to a lower one, or to a higher one, with the socket of this number.
fn may_connect(kind: ChannelKind, to_lower: bool, socket: u8) -> bool {
    match socket {
        0 => to_lower,
        ASK_INDEX => !to_lower,
        added => kind != ChannelKind::Control && usize::from(added) <= TcpConfig::SOCKETS_MAX,
    }
}

/// Returns a rank as it is sent. No group has more ranks than fit into a `u32`.
fn wire(rank: usize) -> u32 {
    u32::try_from(rank).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use comm_core::GroupId;

    use super::*;

    fn identity(rank: usize) -> Identity {
        let address = "127.0.0.1:1".parse().unwrap();
        let member = |rank: u8| Record {
            process: u64::from(rank) + 100,
            processors: Processors::default(),
            address,
            others: Vec::new(),
        };
        Identity { rank, job: 7, protection: ProtectionConfig::NONE, members: (0..2).map(member).collect() }
    }

    const fn channel(kind: ChannelKind) -> ChannelId {
        ChannelId { group: GroupId::WORLD, kind }
    }

    #[test]
    fn the_higher_rank_connects_the_lower_one_asks_and_both_add_sockets_to_channels_of_data() {
        use ChannelKind::{Collective, Control, PointToPoint};
        for (dialer, acceptor) in [(0, 1), (1, 0)] {
            for kind in [Control, Collective, PointToPoint] {
                for socket in [0, 1, 64, 65, 255] {
                    let hello = identity(dialer).hello(acceptor, channel(kind), socket);
                    let authorized = Destination { key: channel(kind), world_rank: dialer, index: socket };
                    let is_added = kind != Control && (1..=64).contains(&socket);
                    let connects = socket == 0 && dialer > acceptor;
                    let expected = is_added || connects || socket == 255 && dialer < acceptor;
                    let expected = if expected { Ok(authorized) } else { Err(Refusal::NotAPeer) };
                    assert_eq!(identity(acceptor).authorize(&hello), expected, "{dialer} {kind:?} {socket}");
                }
            }
        }
    }
}
