//! Where the other ranks' connections arrive, and wait for their lane to be opened.
//!
//! There is no thread. Whoever opens a lane drives the reception while it waits, for every lane: two threads that open
//! two lanes drive it in turn, and ring each other's bell when they let in what the other one waits for.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use comm_core::{Bell, Error, Result};
use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::credentials;
use crate::hello::{HELLO_BYTES, Hello, LaneKey};
use crate::identity::Identity;
use crate::segment::Segment;
use crate::socket;

const LISTENER: u64 = 0;
/// The most connections to accept before the caller looks at its deadline.
const ACCEPTS_PER_TURN: usize = 16;
/// The most connections on which nothing was said yet, in a small world; a further one takes the place of the oldest.
/// A peer that dials speaks at once. One that waits to be dialed is silent, and connects again where it was closed.
const PENDING_MAX: usize = 64;
/// How many silent connections a peer may have: one for each lane that it is opening.
const PENDING_PER_PEER: usize = 4;
/// Lanes for which connections are kept although nobody here has opened them.
const UNOPENED_MAX: usize = 1024;
const EVENTS_AT_ONCE: usize = 64;

/// Where the other ranks' connections arrive.
#[derive(Debug)]
pub(crate) struct Reception {
    /// Readable when somebody knocks or says what it wants.
    epoll: OwnedFd,
    desk: Mutex<Desk>,
}

#[derive(Debug)]
struct Desk {
    listener: OwnedFd,
    /// Connections on which nothing was said yet, by number, so that the first is the oldest.
    guests: BTreeMap<u64, OwnedFd>,
    next: u64,
    /// Connections whose lane nobody here has opened yet, or is just opening, with the rank of the dialer.
    arrived: HashMap<(LaneKey, usize), Arrival>,
    openers: Vec<(LaneKey, Arc<Bell>)>,
    /// Any user of the host can connect at will, so that one warning must do.
    warned: bool,
}

/// A connection of a member, and the memory that it wants to share.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) socket: OwnedFd,
    pub(crate) segment: OwnedFd,
    pub(crate) capacity: u64,
}

impl Reception {
    pub(crate) fn new(listener: OwnedFd) -> Result<Self> {
        let failed = |errno: Errno| Error::io("watch a listener", errno.into());
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN).map_err(failed)?;
        let desk = Desk {
            listener,
            guests: BTreeMap::new(),
            next: LISTENER + 1,
            arrived: HashMap::new(),
            openers: Vec::new(),
            warned: false,
        };
        Ok(Self { epoll, desk: Mutex::new(desk) })
    }

    /// Nothing is left half done behind the lock, so poison carries no news.
    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets `bell` ring when another thread lets in a connection for this lane.
    pub(crate) fn announce(&self, key: LaneKey, bell: Arc<Bell>) {
        self.desk().openers.push((key, bell));
    }

    /// Ends what [`Reception::announce`] began. Connections that nobody has collected by then are closed.
    pub(crate) fn withdraw(&self, key: LaneKey, bell: &Arc<Bell>) {
        let mut desk = self.desk();
        desk.openers.retain(|(_, other)| !Arc::ptr_eq(other, bell));
        desk.arrived.retain(|(other, _), _| *other != key);
        if desk.openers.is_empty() {
            // Nobody would watch them until the next lane is opened. A peer among them connects again.
            desk.guests.clear();
        }
    }

    /// Serves whoever is at the door, without blocking, and hands out the connections for a lane that have arrived
    /// from the ranks in `expected`.
    pub(crate) fn collect(
        &self,
        identity: &Identity,
        key: LaneKey,
        expected: impl Iterator<Item = usize>,
    ) -> Result<Vec<(usize, Arrival)>> {
        let mut desk = self.desk();
        Service { epoll: &self.epoll, identity, desk: &mut desk }
            .serve()
            .map_err(|error| Error::io("let in a connection", error))?;
        Ok(expected.filter_map(|rank| Some((rank, desk.arrived.remove(&(key, rank))?))).collect())
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
    desk: &'a mut Desk,
}

impl Service<'_> {
    /// Handles one batch of events, so that its caller keeps its deadline in a flood of connections.
    fn serve(mut self) -> io::Result<()> {
        let mut room = [const { MaybeUninit::<Event>::uninit() }; EVENTS_AT_ONCE];
        let events = match epoll::wait(self.epoll, &mut room, Some(&Timespec::default())) {
            Ok((events, _)) => events,
            Err(Errno::INTR) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        };
        for event in &*events {
            match event.data.u64() {
                LISTENER => self.accept_some()?,
                id => self.attend(id),
            }
        }
        Ok(())
    }

    fn accept_some(&mut self) -> io::Result<()> {
        for _ in 0..ACCEPTS_PER_TURN {
            match socket::let_in(&self.desk.listener) {
                Ok(Some(socket)) => self.admit(socket)?,
                Ok(None) => return Ok(()),
                // What strangers hold is given up before this process goes without descriptors.
                Err(_) if self.desk.guests.pop_first().is_some() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn admit(&mut self, socket: OwnedFd) -> io::Result<()> {
        if credentials::user(&socket)? != credentials::own_user() {
            self.refuse("it belongs to another user");
            return Ok(());
        }
        let peers = self.identity.members.iter().flatten().count();
        if self.desk.guests.len() >= pending_max(peers) {
            drop(self.desk.guests.pop_first());
            self.refuse("it was silent while many others came");
        }
        let id = self.desk.next;
        self.desk.next += 1;
        epoll::add(self.epoll, &socket, EventData::new_u64(id), EventFlags::IN)?;
        self.desk.guests.insert(id, socket);
        self.attend(id);
        Ok(())
    }

    /// Listens to what a guest says, if it says anything yet.
    fn attend(&mut self, id: u64) {
        let Some(socket) = self.desk.guests.remove(&id) else { return };
        let mut said = [0; HELLO_BYTES];
        match socket::recv(&socket, &mut said) {
            Ok(None) => drop(self.desk.guests.insert(id, socket)),
            // It went away again.
            Ok(Some(packet)) if packet.len == 0 => {}
            Ok(Some(packet)) => {
                let hello = Hello::decode(&said)
                    .filter(|hello| packet.len == HELLO_BYTES && self.identity.knows(hello));
                match (hello, packet.descriptor) {
                    (Some(hello), Some(_)) if !Segment::can_hold(hello.capacity) => {
                        self.refuse("it offers rings of an impossible capacity");
                    }
                    (Some(hello), Some(segment)) => self.seat(socket, &hello, segment),
                    _ => self.refuse("it is no member of this job"),
                }
            }
            Err(error) => tracing::debug!(%error, "a connection broke before anything was said"),
        }
    }

    /// Keeps a member's connection until its lane is opened. A later connection replaces an earlier one: its dialer
    /// has given the earlier one up.
    fn seat(&mut self, socket: OwnedFd, hello: &Hello, segment: OwnedFd) {
        if self.desk.arrived.len() >= UNOPENED_MAX.max(self.identity.members.len() * 16) {
            return self.refuse("too many others wait for lanes that nobody opens here");
        }
        if let Err(errno) = epoll::delete(self.epoll, &socket) {
            tracing::warn!(rank = hello.rank, %errno, "lost a connection");
            return;
        }
        let arrival = Arrival { socket, segment, capacity: hello.capacity };
        self.desk.arrived.insert((hello.key, hello.rank as usize), arrival);
        for (_, bell) in self.desk.openers.iter().filter(|(other, _)| *other == hello.key) {
            bell.ring();
        }
    }

    fn refuse(&mut self, reason: &str) {
        if std::mem::replace(&mut self.desk.warned, true) {
            tracing::debug!(reason, "refused a connection");
        } else {
            tracing::warn!(reason, "refused a connection; further ones are refused in silence");
        }
    }
}

/// The most silent connections at a time: a small part of the descriptors, but one for each lane of each peer.
fn pending_max(peers: usize) -> usize {
    let descriptors = getrlimit(Resource::Nofile).current.and_then(|soft| usize::try_from(soft).ok());
    let part = descriptors.unwrap_or(usize::MAX) / 16;
    part.clamp(1, PENDING_MAX).max(peers * PENDING_PER_PEER)
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests;
