//! Where the other ranks' connections arrive: the listener, the handshakes on it, and the connections that wait for
//! their lane to be opened here.
//!
//! There is no thread. Whoever opens a lane drives the reception while it waits, for every lane: two threads that open
//! two lanes drive it in turn, and ring each other's bell when they let in what the other one waits for.

use std::collections::{BTreeMap, HashMap};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use comm_core::{Bell, Error, LaneId, LaneKind, Refusal, Result};
use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::io::Errno;
use socket2::Socket;

use crate::config::TcpConfig;
use crate::handshake::{Handshake, Progress};
use crate::hello::{Hello, Purpose};
use crate::identity::Identity;
use crate::pending::{ACCEPT_PAUSE, ACCEPTS_PER_TURN, Pending, choose_victim, pending_max};
use crate::socket::{self, Options};
use crate::throttle::Throttle;

const LISTENER: u64 = 0;
/// Lanes for which connections are kept although nobody here has opened them.
const UNOPENED_MAX: usize = 4096;
const EVENTS_AT_ONCE: usize = 64;
/// Where the other ranks' connections arrive.
#[derive(Debug)]
pub(crate) struct Reception {
    /// Readable when somebody knocks or goes on talking.
    epoll: OwnedFd,
    desk: Mutex<Desk>,
}

#[derive(Debug)]
struct Desk {
    listener: Socket,
    paused_until: Option<Instant>,
    /// By number, so that the first is the oldest.
    guests: BTreeMap<u64, Guest>,
    next: u64,
    /// Connections whose lane nobody here has opened yet, or is just opening.
    arrived: HashMap<(LaneId, Seat), Socket>,
    openers: Vec<(LaneId, Arc<Bell>)>,
    warnings: Throttle,
}

/// One connection of a lane: the dialer's rank of the world, and the number of the socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Seat {
    pub(crate) rank: usize,
    pub(crate) socket: u8,
}

/// A connection that has not yet said who it is.
#[derive(Debug)]
struct Guest {
    socket: Socket,
    address: SocketAddr,
    handshake: Handshake,
    since: Instant,
    deadline: Instant,
    hello: Option<Hello>,
    writing: bool,
}

/// What became of a guest.
enum Visit {
    Stays,
    Member(Hello),
    Leaves,
}

impl Reception {
    pub(crate) fn new(listener: Socket) -> Result<Self> {
        let failed = |errno: Errno| Error::io("watch a listener", errno.into());
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN).map_err(failed)?;
        let desk = Desk {
            listener,
            paused_until: None,
            guests: BTreeMap::new(),
            next: LISTENER + 1,
            arrived: HashMap::new(),
            openers: Vec::new(),
            warnings: Throttle::default(),
        };
        Ok(Self { epoll, desk: Mutex::new(desk) })
    }

    /// Nothing is left half done behind the lock, so poison carries no news.
    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets `bell` ring when another thread lets in a connection for `lane`.
    pub(crate) fn announce(&self, lane: LaneId, bell: Arc<Bell>) {
        self.desk().openers.push((lane, bell));
    }

    /// Ends what [`Reception::announce`] began. Connections that nobody has collected by then are closed.
    pub(crate) fn withdraw(&self, lane: LaneId, bell: &Arc<Bell>) {
        let mut desk = self.desk();
        desk.openers.retain(|(_, other)| !Arc::ptr_eq(other, bell));
        desk.arrived.retain(|(other, _), _| *other != lane);
        if desk.openers.is_empty() {
            // Nobody would watch them until the next lane is opened. A peer among them connects again.
            desk.guests.clear();
        }
    }

    /// Serves whoever is at the door, without blocking, and hands out those of the `expected` connections of a lane
    /// that have arrived.
    pub(crate) fn collect(
        &self,
        identity: &Identity,
        config: &TcpConfig,
        lane: LaneId,
        expected: &[Seat],
    ) -> Result<Vec<(Seat, Socket)>> {
        let mut desk = self.desk();
        let service = Service { epoll: &self.epoll, identity, config, desk: &mut desk };
        service.serve()?;
        let arrived = |seat: &Seat| Some((*seat, desk.arrived.remove(&(lane, *seat))?));
        Ok(expected.iter().filter_map(arrived).collect())
    }

    /// When there is something to do although nobody moves.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let desk = self.desk();
        desk.guests.values().map(|guest| guest.deadline).chain(desk.paused_until).min()
    }
}

impl AsFd for Reception {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// The reception while somebody serves at its desk.
struct Service<'a> {
    epoll: &'a OwnedFd,
    identity: &'a Identity,
    config: &'a TcpConfig,
    desk: &'a mut Desk,
}

impl Service<'_> {
    /// Handles one batch of events, so that its caller keeps its deadline in a flood of connections.
    fn serve(mut self) -> Result<()> {
        self.expire();
        let mut room = [const { MaybeUninit::<Event>::uninit() }; EVENTS_AT_ONCE];
        let events = match epoll::wait(self.epoll, &mut room, Some(&Timespec::default())) {
            Ok((events, _)) => events,
            Err(Errno::INTR) => return Ok(()),
            Err(errno) => return Err(Error::io("look at a listener", errno.into())),
        };
        for event in &*events {
            match event.data.u64() {
                LISTENER => self.accept_some(),
                id => self.attend(id),
            }
        }
        Ok(())
    }

    fn expire(&mut self) {
        let now = Instant::now();
        if self.desk.paused_until.is_some_and(|until| until <= now) {
            self.listen(None);
        }
        let Desk { guests, warnings, .. } = &mut *self.desk;
        guests.retain(|_, guest| {
            let late = guest.deadline <= now;
            if late {
                refuse(warnings, guest.address, "it took too long to say who it is");
            }
            !late
        });
    }

    /// Watches the listener again, or not before a time.
    fn listen(&mut self, paused_until: Option<Instant>) {
        let events = if paused_until.is_none() { EventFlags::IN } else { EventFlags::empty() };
        match epoll::modify(self.epoll, &self.desk.listener, EventData::new_u64(LISTENER), events) {
            Ok(()) => self.desk.paused_until = paused_until,
            Err(errno) => tracing::error!(%errno, "cannot watch the listener"),
        }
    }

    fn accept_some(&mut self) {
        for _ in 0..ACCEPTS_PER_TURN {
            if self.desk.guests.len() >= pending_max() && !self.close_pending() {
                return self.listen(Instant::now().checked_add(ACCEPT_PAUSE));
            }
            match socket::accept(&self.desk.listener) {
                Ok(Some((socket, address))) => self.admit(socket, address),
                Ok(None) => return,
                Err(error) => {
                    if let Some(withheld) = self.desk.warnings.admit(Instant::now()) {
                        tracing::warn!(%error, withheld, "cannot accept a connection");
                    }
                    if !self.close_pending() {
                        return self.listen(Instant::now().checked_add(ACCEPT_PAUSE));
                    }
                }
            }
        }
    }

    /// Closes a connection that has not authenticated, if one is to be had.
    fn close_pending(&mut self) -> bool {
        let describe = |(&id, guest): (&u64, &Guest)| {
            let (source, has_greeted) = (guest.address.ip(), guest.handshake.has_greeted());
            Pending { id, source, since: guest.since, has_greeted }
        };
        let pending: Vec<Pending> = self.desk.guests.iter().map(describe).collect();
        let victim = choose_victim(&pending, Instant::now());
        let Some(guest) = victim.and_then(|id| self.desk.guests.remove(&id)) else { return false };
        refuse(&mut self.desk.warnings, guest.address, "it said nothing while many others came");
        true
    }

    fn admit(&mut self, socket: Socket, address: SocketAddr) {
        let id = self.desk.next;
        let admitted = || {
            Options::lane(self.config, false).apply_accepted(&socket, &self.desk.listener)?;
            epoll::add(self.epoll, &socket, EventData::new_u64(id), EventFlags::IN)?;
            Handshake::accept(self.identity.secret.clone())
        };
        match admitted() {
            Ok(handshake) => {
                self.desk.next += 1;
                let since = Instant::now();
                let deadline = socket::after(self.config.handshake_timeout);
                let guest =
                    Guest { socket, address, handshake, since, deadline, hello: None, writing: false };
                self.desk.guests.insert(id, guest);
                self.attend(id);
            }
            Err(error) => tracing::warn!(%address, %error, "cannot serve a connection"),
        }
    }

    /// Goes on with a guest's handshake.
    fn attend(&mut self, id: u64) {
        let Some(mut guest) = self.desk.guests.remove(&id) else { return };
        match self.shake(&mut guest) {
            Visit::Stays => match self.watch(id, &mut guest) {
                Ok(()) => drop(self.desk.guests.insert(id, guest)),
                Err(errno) => tracing::warn!(address = %guest.address, %errno, "cannot watch a connection"),
            },
            Visit::Member(hello) => self.seat(guest, &hello),
            Visit::Leaves => {}
        }
    }

    fn shake(&mut self, guest: &mut Guest) -> Visit {
        loop {
            match guest.handshake.advance(&guest.socket) {
                Ok(Progress::Pending) => return Visit::Stays,
                Ok(Progress::Judge(hello)) => {
                    guest.hello = Some(hello);
                    guest.handshake.judge(self.judge(&hello));
                }
                Ok(Progress::Done) => return guest.hello.map_or(Visit::Leaves, Visit::Member),
                Ok(Progress::Refused(refusal)) => {
                    refuse(&mut self.desk.warnings, guest.address, refusal);
                    return Visit::Leaves;
                }
                Err(error) => {
                    tracing::debug!(address = %guest.address, %error, "a connection broke in its handshake");
                    return Visit::Leaves;
                }
            }
        }
    }

    fn judge(&self, hello: &Hello) -> Result<(), Refusal> {
        self.identity.judge(hello)?;
        let sockets = self.identity.members.len() * usize::from(hello.sockets);
        if self.desk.arrived.len() >= UNOPENED_MAX.max(sockets * 16) {
            tracing::warn!("too many connections wait for lanes that nobody opens here");
            return Err(Refusal::Stranger);
        }
        Ok(())
    }

    fn watch(&self, id: u64, guest: &mut Guest) -> Result<(), Errno> {
        let writing = guest.handshake.wants_write();
        if writing != guest.writing {
            let events = if writing { EventFlags::OUT } else { EventFlags::IN };
            epoll::modify(self.epoll, &guest.socket, EventData::new_u64(id), events)?;
            guest.writing = writing;
        }
        Ok(())
    }

    /// Keeps a member's connection until its lane is opened. A later connection replaces an earlier one: its dialer
    /// has given the earlier one up.
    fn seat(&mut self, guest: Guest, hello: &Hello) {
        let Purpose::Lane(lane) = hello.purpose else { return };
        let options = Options::lane(self.config, lane.kind == LaneKind::Control);
        let seated = epoll::delete(self.epoll, &guest.socket)
            .map_err(std::io::Error::from)
            .and_then(|()| options.apply(&guest.socket));
        if let Err(error) = seated {
            tracing::warn!(rank = hello.rank, address = %guest.address, %error, "lost a connection");
            return;
        }
        let seat = Seat { rank: hello.rank as usize, socket: hello.socket };
        self.desk.arrived.insert((lane, seat), guest.socket);
        for (_, bell) in self.desk.openers.iter().filter(|(other, _)| *other == lane) {
            bell.ring();
        }
    }
}

fn refuse(warnings: &mut Throttle, address: SocketAddr, reason: impl std::fmt::Display) {
    if let Some(withheld) = warnings.admit(Instant::now()) {
        tracing::warn!(%address, %reason, withheld, "refused a connection");
    }
}

#[cfg(test)]
mod tests;
