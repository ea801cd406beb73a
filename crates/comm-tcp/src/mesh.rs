//! Opens one lane: dials the members below, lets in the members above, and waits for both in one loop.
//!
//! Who dials whom goes by the ranks of the world, by which processes know each other. Everybody else, errors included,
//! knows the members by their ranks of the lane.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use comm_core::{Bell, During, Error, LaneId, LaneKind, Loss, Refusal, Result};
use rustix::event::{PollFd, PollFlags};
use socket2::Socket;

use crate::config::TcpConfig;
use crate::dial::{Dial, Dialed, REFUSALS_MAX};
use crate::identity::Identity;
use crate::probe::Probe;
use crate::reception::{Reception, Seat};
use crate::socket::{self, Options};
use crate::stripes::Stripes;

const DURING: During = During::Connect;

/// A lane that is being opened.
#[derive(Debug)]
pub(crate) struct Opening<'a> {
    identity: &'a Identity,
    config: &'a TcpConfig,
    reception: &'a Reception,
    lane: LaneId,
    began: Instant,
    /// Rings when another thread has let in a connection for this lane.
    bell: Arc<Bell>,
    /// One for each socket to a member below.
    dials: Vec<(Place, Dial)>,
    /// The sockets with which members above are to dial us.
    expected: Vec<Place>,
    /// Tells whether they still can.
    probe: Probe,
    open: Vec<(Place, Socket)>,
}

/// A socket of the lane: the two numbers of the member at its other end, and its own among those to this member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    lane: usize,
    world: usize,
    socket: u8,
}

impl<'a> Opening<'a> {
    /// Opens the lane to members, which have their number of the lane and their rank of the world. This rank is none
    /// of them, or left out.
    pub(crate) fn new(
        identity: &'a Identity,
        config: &'a TcpConfig,
        reception: &'a Reception,
        lane: LaneId,
        members: &[(usize, usize)],
    ) -> Result<Self> {
        let bell = Arc::new(Bell::new()?);
        reception.announce(lane, Arc::clone(&bell));
        let options = Options::lane(config, lane.kind == LaneKind::Control);
        let dial = |to: Place| {
            let address = identity.members[to.world].address;
            let hello = identity.hello(to.world, lane, to.socket);
            (to, Dial::new(address, hello, identity.secret.clone(), options.clone()))
        };
        let began = Instant::now();
        let sockets = identity.stripes(lane).sockets;
        let places = || {
            let members = members.iter();
            members.flat_map(|&(lane, world)| (0..sockets).map(move |socket| Place { lane, world, socket }))
        };
        Ok(Self {
            identity,
            config,
            reception,
            lane,
            began,
            bell,
            dials: places().filter(|place| place.world < identity.rank).map(dial).collect(),
            expected: places().filter(|place| place.world > identity.rank).collect(),
            probe: Probe::new(options.clone(), began),
            open: Vec::new(),
        })
    }

    /// Goes on without blocking. Tells whether every other member is connected.
    pub(crate) fn advance(&mut self) -> Result<bool> {
        let now = Instant::now();
        self.dial(now)?;
        self.let_in()?;
        self.ask(now)?;
        Ok(self.dials.is_empty() && self.expected.is_empty())
    }

    /// How streams are spread over the sockets to a member.
    pub(crate) fn stripes(&self) -> Stripes {
        self.identity.stripes(self.lane)
    }

    /// The sockets to each of those who are connected, in their order, with its rank of the lane.
    pub(crate) fn finish(mut self) -> Vec<(usize, Vec<Socket>)> {
        by_member(std::mem::take(&mut self.open))
    }

    fn dial(&mut self, now: Instant) -> Result<()> {
        let mut at = 0;
        while let Some((place, dial)) = self.dials.get_mut(at) {
            match dial.advance(now) {
                Dialed::Open(socket) => {
                    self.open.push((*place, socket));
                    self.dials.swap_remove(at);
                }
                Dialed::Refused(refusal) => return Err(refused(place.lane, dial, refusal)),
                Dialed::Pending if dial.refusals() >= REFUSALS_MAX => return Err(lost(place.lane, dial)),
                Dialed::Pending => at += 1,
            }
        }
        Ok(())
    }

    fn let_in(&mut self) -> Result<()> {
        // The bell is silenced before the look at what it rang for.
        self.bell.silence();
        let seat = |place: &Place| Seat { rank: place.world, socket: place.socket };
        let seats: Vec<Seat> = self.expected.iter().map(seat).collect();
        for (arrived, socket) in self.reception.collect(self.identity, self.config, self.lane, &seats)? {
            if let Some(at) = self.expected.iter().position(|place| seat(place) == arrived) {
                self.open.push((self.expected.swap_remove(at), socket));
            }
        }
        Ok(())
    }

    /// Fails if a member that is to dial us is gone.
    fn ask(&mut self, now: Instant) -> Result<()> {
        let mut awaited: Vec<usize> = self.expected.iter().map(|place| place.world).collect();
        if awaited.is_empty() {
            return Ok(());
        }
        awaited.sort_unstable();
        awaited.dedup();
        let members = &self.identity.members;
        let Some((gone, dial)) = self.probe.advance(now, &awaited, |rank| members[rank].address) else {
            return Ok(());
        };
        let place = self.expected.iter().find(|place| place.world == gone);
        place.map_or(Ok(()), |place| Err(lost(place.lane, dial)))
    }

    /// Sleeps until it may go on, one of the others is readable, or the time has come.
    pub(crate) fn sleep(&self, others: &[BorrowedFd<'_>], until: Instant) -> Result<()> {
        let dials = || self.dials.iter().map(|(_, dial)| dial);
        let due = dials().filter_map(Dial::next_attempt).chain(self.reception.next_deadline());
        let probe = (!self.expected.is_empty()).then_some(&self.probe);
        let until = due.chain(probe.map(Probe::next_attempt)).fold(until, Instant::min);
        let mut descriptors: Vec<_> = dials().filter_map(Dial::poll_fd).collect();
        descriptors.extend(probe.and_then(Probe::poll_fd));
        descriptors.push(PollFd::new(self.reception, PollFlags::IN));
        descriptors.push(PollFd::new(&*self.bell, PollFlags::IN));
        descriptors.extend(others.iter().map(|other| PollFd::from_borrowed_fd(*other, PollFlags::IN)));
        let slept = socket::wait(&mut descriptors, Some(until));
        slept.map(drop).map_err(|e| Error::io("wait for connections", e))
    }

    /// If a rank could not be reached, how that failed says more than that the time is over.
    pub(crate) fn timeout(&self) -> Error {
        for (Place { lane: rank, .. }, dial) in &self.dials {
            let (address, attempts, reason) = (dial.address(), dial.attempts(), dial.excuse());
            tracing::warn!(rank, %address, attempts, %reason, "a rank did not answer");
        }
        if let Some((place, dial)) = self.dials.iter().find(|(_, dial)| dial.last_error().is_some()) {
            return lost(place.lane, dial);
        }
        let dialed = self.dials.iter().map(|(place, _)| place);
        let mut waiting_for: Vec<usize> = dialed.chain(&self.expected).map(|place| place.lane).collect();
        waiting_for.sort_unstable();
        waiting_for.dedup();
        Error::Timeout { waiting_for, after: self.began.elapsed(), during: DURING }
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        self.reception.withdraw(self.lane, &self.bell);
    }
}

/// The sockets to each member in their order.
fn by_member(mut open: Vec<(Place, Socket)>) -> Vec<(usize, Vec<Socket>)> {
    open.sort_unstable_by_key(|(place, _)| *place);
    let mut members: Vec<(usize, Vec<Socket>)> = Vec::new();
    for (place, socket) in open {
        match members.last_mut() {
            Some((rank, sockets)) if *rank == place.lane => sockets.push(socket),
            _ => members.push((place.lane, vec![socket])),
        }
    }
    members
}

fn refused(rank: usize, dial: &Dial, refusal: Refusal) -> Error {
    Error::Handshake { with: format!("rank {rank} at {}", dial.address()), refusal }
}

fn lost(rank: usize, dial: &Dial) -> Error {
    let excuse = dial.excuse();
    let (address, attempts) = (dial.address(), dial.attempts());
    let words = format!("{excuse} at {address}, in {attempts} attempts");
    let error = std::io::Error::new(excuse.kind(), words);
    Error::PeerLost { peer: rank, during: DURING, loss: Loss::Io(Arc::new(error)) }
}
