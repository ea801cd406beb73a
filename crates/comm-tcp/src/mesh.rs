//! Opens one lane: dials the members below, lets in the members above, and waits for both in one loop.
//!
//! Who dials whom goes by the ranks of the world, by which processes know each other. Everybody else, errors included,
//! knows the members by their ranks of the lane.

use std::sync::Arc;
use std::time::Instant;

use comm_core::{Bell, During, Error, LaneId, LaneKind, Loss, Refusal, Result};
use rustix::event::{PollFd, PollFlags};
use socket2::Socket;

use crate::config::TcpConfig;
use crate::dial::{Dial, Dialed, REFUSALS_MAX};
use crate::identity::Identity;
use crate::probe::Probe;
use crate::reception::Reception;
use crate::socket::{self, Options};

const DURING: During = During::Other("opening a lane");

/// A lane that is being opened.
pub(crate) struct Opening<'a> {
    identity: &'a Identity,
    config: &'a TcpConfig,
    reception: &'a Reception,
    lane: LaneId,
    began: Instant,
    /// Rings when another thread has let in a connection for this lane.
    bell: Arc<Bell>,
    /// With their ranks of the lane.
    dials: Vec<(usize, Dial)>,
    /// The members that are to dial us.
    expected: Vec<Member>,
    /// Tells whether they still can.
    probe: Probe,
    /// With their ranks of the lane.
    open: Vec<(usize, Socket)>,
}

/// The two numbers of a member.
#[derive(Debug, Clone, Copy)]
struct Member {
    lane: usize,
    world: usize,
}

impl<'a> Opening<'a> {
    pub(crate) fn new(
        identity: &'a Identity,
        config: &'a TcpConfig,
        reception: &'a Reception,
        lane: LaneId,
        members: &[usize],
    ) -> Result<Self> {
        let bell = Arc::new(Bell::new()?);
        reception.announce(lane, Arc::clone(&bell));
        let options = Options::lane(config, lane.kind == LaneKind::Control);
        let dial = |to: Member| {
            let (address, hello) = (identity.members[to.world].address, identity.hello(to.world, lane));
            (to.lane, Dial::new(address, hello, identity.secret.clone(), options.clone()))
        };
        let began = Instant::now();
        let members = || members.iter().enumerate().map(|(lane, &world)| Member { lane, world });
        Ok(Self {
            identity,
            config,
            reception,
            lane,
            began,
            bell,
            dials: members().filter(|member| member.world < identity.rank).map(dial).collect(),
            expected: members().filter(|member| member.world > identity.rank).collect(),
            probe: Probe::new(options.clone(), began),
            open: Vec::new(),
        })
    }

    /// Waits until every other member is connected. Returns the sockets with their ranks of the lane.
    pub(crate) fn run(mut self, deadline: Instant) -> Result<Vec<(usize, Socket)>> {
        loop {
            let now = Instant::now();
            self.dial(now)?;
            self.let_in()?;
            self.ask(now)?;
            if self.dials.is_empty() && self.expected.is_empty() {
                return Ok(std::mem::take(&mut self.open));
            }
            if now >= deadline {
                return Err(self.timeout());
            }
            self.sleep(deadline).map_err(|e| Error::io("wait for connections", e))?;
        }
    }

    fn dial(&mut self, now: Instant) -> Result<()> {
        let mut at = 0;
        while let Some((rank, dial)) = self.dials.get_mut(at) {
            match dial.advance(now) {
                Dialed::Open(socket) => {
                    self.open.push((*rank, socket));
                    self.dials.swap_remove(at);
                }
                Dialed::Refused(refusal) => return Err(refused(*rank, dial, refusal)),
                Dialed::Pending if dial.refusals() >= REFUSALS_MAX => return Err(lost(*rank, dial)),
                Dialed::Pending => at += 1,
            }
        }
        Ok(())
    }

    fn let_in(&mut self) -> Result<()> {
        // The bell is silenced before the look at what it rang for.
        self.bell.silence();
        for (world, socket) in
            self.reception.collect(self.identity, self.config, self.lane, &self.awaited())?
        {
            if let Some(at) = self.expected.iter().position(|member| member.world == world) {
                self.open.push((self.expected.swap_remove(at).lane, socket));
            }
        }
        Ok(())
    }

    /// The ranks of the world that are to dial us.
    fn awaited(&self) -> Vec<usize> {
        self.expected.iter().map(|member| member.world).collect()
    }

    /// Fails if a member that is to dial us is gone.
    fn ask(&mut self, now: Instant) -> Result<()> {
        let (awaited, members) = (self.awaited(), &self.identity.members);
        let Some((gone, dial)) = self.probe.advance(now, &awaited, |rank| members[rank].address) else {
            return Ok(());
        };
        let member = self.expected.iter().find(|member| member.world == gone);
        member.map_or(Ok(()), |member| Err(lost(member.lane, dial)))
    }

    fn sleep(&self, deadline: Instant) -> std::io::Result<()> {
        let dials = || self.dials.iter().map(|(_, dial)| dial);
        let until = dials().filter_map(Dial::next_attempt).chain(self.reception.next_deadline());
        let until = until.chain([self.probe.next_attempt()]).fold(deadline, Instant::min);
        let mut descriptors: Vec<_> = dials().filter_map(Dial::poll_fd).collect();
        descriptors.extend(self.probe.poll_fd());
        descriptors.push(PollFd::new(self.reception, PollFlags::IN));
        descriptors.push(PollFd::new(&*self.bell, PollFlags::IN));
        socket::wait(&mut descriptors, Some(until)).map(drop)
    }

    /// If a rank could not be reached, how that failed says more than that the time is over.
    fn timeout(&self) -> Error {
        for (rank, dial) in &self.dials {
            let (address, attempts, reason) = (dial.address(), dial.attempts(), dial.excuse());
            tracing::warn!(rank, %address, attempts, %reason, "a rank did not answer");
        }
        if let Some((rank, dial)) = self.dials.iter().find(|(_, dial)| dial.last_error().is_some()) {
            return lost(*rank, dial);
        }
        let mut waiting_for: Vec<usize> = self.dials.iter().map(|(rank, _)| *rank).collect();
        waiting_for.extend(self.expected.iter().map(|member| member.lane));
        waiting_for.sort_unstable();
        Error::Timeout { waiting_for, after: self.began.elapsed(), during: DURING }
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        self.reception.withdraw(self.lane, &self.bell);
    }
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
