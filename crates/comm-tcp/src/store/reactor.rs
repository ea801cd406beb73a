//! The loop of the server's thread: waits for any connection, and serves it without blocking.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use comm_mesh::{Acceptor, RateLimit, descriptor_limit, timespec};
use comm_rendezvous::random_bytes;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::io::Errno;
use socket2::Socket;

use super::StoreConfig;
use super::accept::StoreProtocol;
use super::connection::{Connection, Gone, Phase, Told};
use super::frame::Frame;
use super::ledger::Ledger;
use super::protocol::Response;
use super::table::Table;
use crate::accept::Accepted;
use crate::socket::Options;

/// The names of the two descriptors that are no connections.
const LISTENER: u64 = 0;
const STOP: u64 = 1;
const FIRST_CONNECTION: u64 = 2;
/// The most that is done before the thread looks whether it is to stop.
const EVENTS_PER_TURN: usize = 64;

/// All that the server's thread owns.
#[derive(Debug)]
pub(super) struct Reactor {
    protocol: StoreProtocol,
    epoll: OwnedFd,
    /// `None` once no new connections are accepted.
    acceptor: Option<Acceptor<StoreProtocol>>,
    /// Clients, which have completed their handshakes.
    connections: HashMap<u64, Connection>,
    next: u64,
    /// The deadlines of connections, and the one by which the server stops.
    deadlines: BTreeSet<(Instant, u64)>,
    warnings: RateLimit,
    pub(super) table: Table,
    ledger: Ledger,
    census: Arc<Census>,
    /// A number that no other server has.
    pub(super) identity: u64,
}

/// What the server's thread and its handle tell each other.
#[derive(Debug)]
pub(super) struct Census {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    connections: usize,
    /// Whether new connections are taken.
    listens: bool,
    /// Until when those that are there are still served, once no new ones are to be taken.
    drain_until: Option<Instant>,
}

impl Default for Census {
    fn default() -> Self {
        let state = State { connections: 0, listens: true, drain_until: None };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }
}

impl Census {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, connections: usize, listens: bool) {
        let mut state = self.lock();
        (state.connections, state.listens) = (connections, listens);
        self.changed.notify_all();
    }

    /// Tells the server to take no new connections, and to end when the others have, or at this time.
    pub(super) fn drain(&self, until: Instant) {
        self.lock().drain_until = Some(until);
    }

    /// Waits until no new connections are taken, which comes at once, and then until there are none left, but for `wait` at
    /// the most. Returns whether there are none left.
    pub(super) fn wait_drained(&self, wait: Duration, grace: Duration) -> bool {
        let listens = |state: &mut State| state.listens;
        let (state, _) = self
            .changed
            .wait_timeout_while(self.lock(), grace, listens)
            .unwrap_or_else(PoisonError::into_inner);
        let (state, _) = self
            .changed
            .wait_timeout_while(state, wait, |state| state.connections > 0)
            .unwrap_or_else(PoisonError::into_inner);
        state.connections == 0 && !state.listens
    }
}

impl Reactor {
    pub(super) fn new(
        listener: Socket,
        options: Options,
        stop: BorrowedFd<'_>,
        config: StoreConfig,
        census: Arc<Census>,
    ) -> io::Result<Self> {
        let identity = u64::from_ne_bytes(random_bytes()?);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let acceptor = Acceptor::new(listener)?;
        epoll::add(&epoll, &acceptor, EventData::new_u64(LISTENER), EventFlags::IN)?;
        // It may ring twice: to drain, and to stop.
        epoll::add(&epoll, stop, EventData::new_u64(STOP), EventFlags::IN | EventFlags::ET)?;
        let ledger = Ledger::new(config.stored_bytes_max);
        Ok(Self {
            table: Table::new(ledger.clone()),
            ledger,
            protocol: StoreProtocol { config, options },
            epoll,
            acceptor: Some(acceptor),
            connections: HashMap::new(),
            next: FIRST_CONNECTION,
            deadlines: BTreeSet::new(),
            warnings: RateLimit::default(),
            census,
            identity,
        })
    }

    /// Serves until it is told to stop.
    pub(super) fn run(mut self) {
        let mut events = Vec::with_capacity(EVENTS_PER_TURN);
        loop {
            match self.wait(&mut events) {
                Ok(()) => {}
                Err(errno) => {
                    tracing::error!(%errno, "the store cannot wait for its connections and stops");
                    return;
                }
            }
            if events.iter().any(|event| event.data.u64() == STOP) && !self.begin_drain() {
                return;
            }
            for event in &events {
                match event.data.u64() {
                    STOP | LISTENER => {}
                    id => self.serve(id, Self::advance),
                }
            }
            if events.iter().any(|event| event.data.u64() == LISTENER) || self.is_accept_due() {
                self.accept();
            }
            let is_over = self.expire();
            self.census.set(self.connections.len(), self.acceptor.is_some());
            if is_over || self.is_draining() && self.connections.is_empty() {
                return;
            }
        }
    }

    fn wait(&self, events: &mut Vec<Event>) -> rustix::io::Result<()> {
        let handshakes = self.acceptor.as_ref().and_then(Acceptor::next_deadline);
        let due = self.deadlines.first().map(|(at, _)| *at).into_iter().chain(handshakes).min();
        let timeout = due.and_then(|due| timespec(due.saturating_duration_since(Instant::now())));
        events.clear();
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Whether no new connections are taken.
    pub(super) const fn is_draining(&self) -> bool {
        self.acceptor.is_none()
    }

    /// Takes no new connections any more, and tells those that wait for keys. Returns false if it is to stop at once.
    fn begin_drain(&mut self) -> bool {
        let until = self.census.lock().drain_until;
        let (Some(until), Some(acceptor)) = (until, self.acceptor.take()) else { return false };
        // This closes the listener and all connections that are not authenticated: they are made again.
        drop(acceptor);
        self.deadlines.insert((until, STOP));
        let parked = |connection: &Connection| matches!(connection.phase, Phase::Parked(_));
        let ids: Vec<u64> =
            self.connections.iter().filter(|(_, connection)| parked(connection)).map(|(id, _)| *id).collect();
        for id in ids {
            self.serve(id, Self::turn_away);
        }
        true
    }

    /// Whether a handshake has reached its deadline, or the listener is to be watched again.
    fn is_accept_due(&self) -> bool {
        let due = self.acceptor.as_ref().and_then(Acceptor::next_deadline);
        due.is_some_and(|due| due <= Instant::now())
    }

    /// Accepts connections and continues handshakes, a bounded number at a time.
    fn accept(&mut self) {
        let Some(acceptor) = &mut self.acceptor else { return };
        // Half of the descriptors are for the rest of the program.
        let max = self.protocol.config.connections_max.min(descriptor_limit() / 2);
        match acceptor.turn(&self.protocol, max.saturating_sub(self.connections.len())) {
            Ok(accepted) => accepted.into_iter().for_each(|accepted| self.admit(accepted)),
            Err(error) => tracing::error!(%error, "the store cannot wait for new connections"),
        }
    }

    fn admit(&mut self, Accepted { socket, address, .. }: Accepted<()>) {
        let id = self.next;
        let connection = Connection::new(socket, address, self.ledger.open());
        let data = EventData::new_u64(id);
        if let Err(errno) = epoll::add(&self.epoll, &connection.socket, data, EventFlags::empty()) {
            tracing::warn!(%address, %errno, "the store cannot watch a client");
            return;
        }
        self.next += 1;
        self.connections.insert(id, connection);
        self.serve(id, Self::advance);
    }

    /// Lets something happen to a connection, and then keeps or closes it.
    pub(super) fn serve(
        &mut self,
        id: u64,
        happening: impl FnOnce(&mut Self, u64, &mut Connection) -> Result<(), Gone>,
    ) {
        let Some(mut connection) = self.connections.remove(&id) else { return };
        let outcome = happening(self, id, &mut connection)
            .and_then(|()| self.watch(id, &mut connection).map_err(|errno| Gone::Broken(errno.into())));
        match outcome {
            Ok(()) => {
                self.connections.insert(id, connection);
            }
            Err(gone) => self.bury(id, connection, &gone),
        }
    }

    /// Tells epoll and the deadlines what a connection waits for, if that has changed.
    fn watch(&mut self, id: u64, connection: &mut Connection) -> rustix::io::Result<()> {
        let now = Told { events: connection.events(), deadline: connection.deadline };
        if now.events != connection.told.events {
            epoll::modify(&self.epoll, &connection.socket, EventData::new_u64(id), now.events)?;
        }
        if now.deadline != connection.told.deadline {
            self.forget_deadline(id, connection);
            self.deadlines.extend(now.deadline.map(|at| (at, id)));
        }
        connection.told = now;
        Ok(())
    }

    fn forget_deadline(&mut self, id: u64, connection: &Connection) {
        if let Some(at) = connection.told.deadline {
            self.deadlines.remove(&(at, id));
        }
    }

    /// Closes a connection. Closing removes it from epoll.
    fn bury(&mut self, id: u64, connection: Connection, gone: &Gone) {
        self.forget_deadline(id, &connection);
        if let Phase::Parked(parked) = &connection.phase
            && let Some(key) = parked.awaited()
        {
            self.table.stop_waiting(key, id);
        }
        // Clients of a store that closes leave it because of that.
        if let Some(will) = connection.will.as_ref().filter(|_| !self.is_draining()) {
            self.execute_will(will);
        }
        let address = connection.address;
        let reason = match gone {
            Gone::Closed => return tracing::debug!(%address, "a client left the store"),
            Gone::Broken(error) => {
                return tracing::debug!(%address, %error, "a connection to the store broke");
            }
            Gone::TooLong(bytes) => format!("it sent a request of {bytes} bytes"),
            Gone::Garbage => "it sent a request that makes no sense".into(),
            Gone::Slow => "it took too long".into(),
        };
        if let Some(suppressed) = self.warnings.admit(Instant::now()) {
            tracing::warn!(%address, reason, suppressed, "the store closed a connection");
        }
    }

    /// Something can be read from or written to a connection.
    fn advance(&mut self, id: u64, connection: &mut Connection) -> Result<(), Gone> {
        match &mut connection.phase {
            Phase::Parked(_) => Err(Gone::Closed),
            Phase::Sending(_) => connection.flush(),
            Phase::Receiving(_) => {
                let deadline = self.operation_deadline();
                match connection.receive(self.protocol.config.frame_bytes_max, deadline)? {
                    Some(Frame::Whole(frame)) => self.execute(id, connection, &frame),
                    Some(Frame::Skipped) => connection.respond(&Response::Full, deadline),
                    None => Ok(()),
                }
            }
        }
    }

    /// By when a request or response that has begun must have ended.
    pub(super) fn operation_deadline(&self) -> Option<Instant> {
        Instant::now().checked_add(self.protocol.config.operation_timeout)
    }

    /// Does what is due. Returns whether the server is to end.
    fn expire(&mut self) -> bool {
        let now = Instant::now();
        while let Some(&(at, id)) = self.deadlines.first() {
            if at > now {
                return false;
            }
            self.deadlines.pop_first();
            match id {
                STOP => return true,
                id => self.serve(id, Self::be_late),
            }
        }
        false
    }

    /// The deadline of a connection has passed.
    fn be_late(&mut self, id: u64, connection: &mut Connection) -> Result<(), Gone> {
        connection.told.deadline = None;
        match connection.phase {
            Phase::Parked(_) => self.time_out(id, connection),
            _ => Err(Gone::Slow),
        }
    }
}

#[cfg(test)]
mod tests;
