//! The identity of this rank, and the authorization of its peers.

use comm_core::{ChannelId, ChannelKind, Refusal};
use comm_mesh::Destination;

use crate::hello::{Hello, Purpose};
use crate::protection::ProtectionConfig;
use crate::record::Record;
use crate::stripes::Stripes;

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
    /// Returns the stripes of a channel: those of rank 0, except on control channels, whose frames
    /// are few and short.
    pub(crate) fn stripes(&self, channel: ChannelId) -> Stripes {
        match channel.kind {
            ChannelKind::Control => Stripes::NONE,
            _ => self.members.first().map_or(Stripes::NONE, |first| first.stripes),
        }
    }

    /// Returns the hello for a connection to a member.
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
            sockets: self.stripes(channel).sockets,
        }
    }

    /// Authorizes a member with a higher rank whose hello is for this rank.
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
            || dialer <= self.rank
            || hello.sockets != self.stripes(channel).sockets
            || hello.socket >= hello.sockets
        {
            Err(Refusal::NotAPeer)
        } else if self.members.get(dialer).is_none_or(|member| member.process != hello.process) {
            Err(Refusal::DuplicateRank { rank: dialer })
        } else {
            Ok(Destination { key: channel, world_rank: dialer, index: hello.socket })
        }
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
        let member = |rank: u8| Record {
            process: u64::from(rank) + 100,
            address: "127.0.0.1:1".parse().unwrap(),
            // Only the setting of rank 0 counts.
            stripes: Stripes { sockets: 3 + rank, bytes: 10 },
        };
        Identity { rank, job: 7, protection: ProtectionConfig::NONE, members: (0..2).map(member).collect() }
    }

    const fn channel(kind: ChannelKind) -> ChannelId {
        ChannelId { group: GroupId::WORLD, kind }
    }

    #[test]
    fn a_channel_has_the_sockets_that_rank_zero_has_configured() {
        let (dialer, acceptor) = (identity(1), identity(0));
        for (kind, sockets) in
            [(ChannelKind::Control, 1), (ChannelKind::Collective, 3), (ChannelKind::PointToPoint, 3)]
        {
            for socket in 0..5 {
                let hello = dialer.hello(0, channel(kind), socket);
                assert_eq!(hello.sockets, sockets);
                let authorized = Destination { key: channel(kind), world_rank: 1, index: socket };
                let expected = if socket < sockets { Ok(authorized) } else { Err(Refusal::NotAPeer) };
                assert_eq!(acceptor.authorize(&hello), expected);
                let other = Hello { sockets: 4, ..hello };
                assert_eq!(acceptor.authorize(&other), Err(Refusal::NotAPeer));
            }
        }
    }
}
