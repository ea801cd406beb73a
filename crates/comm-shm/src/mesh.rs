//! Opens one lane: dials the ranks below, lets in the ranks above, and waits for both in one loop.
//!
//! Ranks are those of the lane here, except where the world's are meant.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

use crate::dial::{Dial, Dialed, Watch};
use crate::hello::{LaneKey, WELCOME};
use crate::identity::Identity;
use crate::peer::Connection;
use crate::process::Processes;
use crate::reception::{Arrival, Reception};
use crate::segment::{Direction, Segment};
use crate::socket;
use comm_core::{Bell, During, Error, Loss, Refusal, Result};

const DURING: During = During::Connect;

/// A lane that is being opened.
#[derive(Debug)]
pub(crate) struct Opening<'a> {
    identity: &'a Identity,
    reception: &'a Reception,
    processes: &'a Processes,
    key: LaneKey,
    /// The ranks of the world that the lane connects.
    members: &'a [usize],
    began: Instant,
    /// Rings when another thread has let in a connection for this lane.
    bell: Arc<Bell>,
    dials: Vec<(usize, Dial)>,
    /// The ranks that are to dial us, and how we hear if they die before they do.
    expected: Vec<(usize, Watch)>,
    open: Vec<(usize, Connection)>,
}

impl<'a> Opening<'a> {
    /// Opens the lane between members of the world, this rank among them. Those on other hosts are left out.
    pub(crate) fn new(
        (identity, reception, processes): (&'a Identity, &'a Reception, &'a Processes),
        key: LaneKey,
        members: &'a [usize],
        capacity: usize,
    ) -> Result<Self> {
        let bell = Arc::new(Bell::new()?);
        reception.announce(key, Arc::clone(&bell));
        let here = || {
            let member = |(rank, world): (usize, &usize)| {
                Some((rank, *world, identity.members.get(*world).copied().flatten()?))
            };
            members.iter().enumerate().filter_map(member)
        };
        let below = here().filter(|(_, world, _)| *world < identity.rank);
        let above = here().filter(|(_, world, _)| *world > identity.rank);
        Ok(Self {
            identity,
            reception,
            processes,
            key,
            members,
            began: Instant::now(),
            bell,
            dials: below
                .map(|(rank, _, to)| (rank, Dial::new(to.door, identity.hello(to, key, capacity))))
                .collect(),
            expected: above.map(|(rank, _, to)| (rank, Watch::new(to.door))).collect(),
            open: Vec::with_capacity(members.len()),
        })
    }

    /// Goes on without blocking. Tells whether every other rank is connected.
    pub(crate) fn advance(&mut self) -> Result<bool> {
        self.dial(Instant::now())?;
        self.let_in()?;
        self.check_expected()?;
        Ok(self.dials.is_empty() && self.expected.is_empty())
    }

    /// The connections, with their ranks of the lane.
    pub(crate) fn finish(mut self) -> Vec<(usize, Connection)> {
        std::mem::take(&mut self.open)
    }

    fn dial(&mut self, now: Instant) -> Result<()> {
        let mut at = 0;
        while let Some((rank, dial)) = self.dials.get_mut(at) {
            match dial.advance(now) {
                Ok(Dialed::Open(socket, segment)) => {
                    let process = self.processes.watch(&socket).map_err(|error| failed(*rank, error))?;
                    let connection = Connection { socket, process, segment, outgoing: Direction::Out };
                    self.open.push((*rank, connection));
                    self.dials.swap_remove(at);
                }
                Ok(Dialed::Pending) => at += 1,
                Ok(Dialed::Stranger) => {
                    let with = format!("rank {rank}");
                    return Err(Error::Handshake { with, refusal: Refusal::Stranger });
                }
                Err(error) => return Err(failed(*rank, error)),
            }
        }
        Ok(())
    }

    fn let_in(&mut self) -> Result<()> {
        // The bell is silenced before the look at what it rang for.
        self.bell.silence();
        let expected = self.expected.iter().map(|(rank, _)| self.members[*rank]);
        for (world, arrival) in self.reception.collect(self.identity, self.key, expected)? {
            let is_it = |(rank, _): &(usize, Watch)| self.members[*rank] == world;
            let Some(at) = self.expected.iter().position(is_it) else { continue };
            match agree(arrival, self.processes) {
                Ok(connection) => self.open.push((self.expected.swap_remove(at).0, connection)),
                // Its dialer has given up, or tries again.
                Err(error) => tracing::debug!(rank = world, %error, "a connection came to nothing"),
            }
        }
        Ok(())
    }

    /// A rank that has died will not dial us.
    fn check_expected(&mut self) -> Result<()> {
        for (rank, watch) in &mut self.expected {
            watch.check().map_err(|error| failed(*rank, error))?;
        }
        Ok(())
    }

    /// One of these becomes readable when it may go on.
    pub(crate) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let dials = self.dials.iter().filter_map(|(_, dial)| dial.descriptor());
        let expected = self.expected.iter().filter_map(|(_, watch)| watch.descriptor());
        dials.chain(expected).chain([self.reception.as_fd(), self.bell.as_fd()]).collect()
    }

    /// When it is to go on although nobody moves.
    pub(crate) fn next_attempt(&self) -> Option<Instant> {
        self.dials.iter().filter_map(|(_, dial)| dial.next_attempt()).min()
    }

    pub(crate) fn timeout(&self) -> Error {
        let mut waiting_for: Vec<usize> = self.dials.iter().map(|(rank, _)| *rank).collect();
        waiting_for.extend(self.expected.iter().map(|(rank, _)| *rank));
        waiting_for.sort_unstable();
        Error::Timeout { waiting_for, after: self.began.elapsed(), during: DURING }
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        self.reception.withdraw(self.key, &self.bell);
    }
}

/// Takes the memory that a dialer offers, and tells it so.
fn agree(arrival: Arrival, processes: &Processes) -> io::Result<Connection> {
    let capacity = usize::try_from(arrival.capacity).unwrap_or(0);
    let segment = Segment::open(&arrival.segment, capacity)?;
    let process = processes.watch(&arrival.socket)?;
    socket::send(&arrival.socket, &WELCOME, None)?;
    Ok(Connection { socket: arrival.socket, process, segment, outgoing: Direction::Back })
}

/// A member whose door is gone is gone; everything else went wrong on this side.
fn failed(rank: usize, error: io::Error) -> Error {
    if error.kind() == io::ErrorKind::ConnectionRefused {
        let words = "nobody is behind its door: it has ended, or its machine is a copy of this one that was made while it ran";
        let loss = Loss::Io(Arc::new(io::Error::new(error.kind(), words)));
        return Error::PeerLost { peer: rank, during: DURING, loss };
    }
    Error::io(format!("share memory with rank {rank}"), error)
}
