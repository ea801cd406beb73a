//! The loop of the server's thread: waits for any connection, and serves it without blocking.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use comm_core::simulation;
use comm_mesh::{Acceptor, RateLimit, descriptor_limit, timespec};
use comm_rendezvous::random_bytes;
use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::io::Errno;
use socket2::Socket;

use super::StoreConfig;
use super::accept::StoreProtocol;
use super::budget::MemoryBudget;
use super::connection::{CloseReason, Phase, Registration, StoreConnection};
use super::frame::Frame;
use super::protocol::Response;
use super::table::Table;
use crate::accept::Accepted;
use crate::socket::Options;

/// The epoll tokens that are not connections.
const LISTENER: u64 = 0;
const STOP: u64 = 1;
const FIRST_CONNECTION: u64 = 2;
/// The maximum number of events that are handled before the thread checks whether to stop.
const EVENTS_PER_TURN: usize = 64;

/// The state of the server's thread.
#[derive(Debug)]
pub(super) struct Reactor {
    protocol: StoreProtocol,
    epoll: OwnedFd,
    /// `None` once no new connections are accepted.
    acceptor: Option<Acceptor<StoreProtocol>>,
    /// Clients, which have completed their handshakes.
    connections: HashMap<u64, StoreConnection>,
    next: u64,
    /// The deadlines of connections, and of a drain.
    deadlines: BTreeSet<(Instant, u64)>,
    warnings: RateLimit,
    pub(super) table: Table,
    status: Arc<Status>,
    /// A random id of the server.
    pub(super) identity: u64,
}

/// The state that the server's thread shares with its handle.
#[derive(Debug)]
pub(super) struct Status {
    pub(super) budget: MemoryBudget,
    state: Mutex<ReactorState>,
    changed: Condvar,
}

#[derive(Debug)]
struct ReactorState {
    connections: usize,
    /// Whether new connections are accepted.
    listens: bool,
    /// The deadline of a drain, once it was requested.
    drain_until: Option<Instant>,
}

impl Status {
    pub(super) fn new(budget: MemoryBudget) -> Self {
        let state = ReactorState { connections: 0, listens: true, drain_until: None };
        Self { budget, state: Mutex::new(state), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, ReactorState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, connections: usize, listens: bool) {
        let mut state = self.lock();
        (state.connections, state.listens) = (connections, listens);
        self.changed.notify_all();
    }

    /// Asks the server to accept no more connections, and to stop when all have ended or at this
    /// time.
    pub(super) fn drain(&self, until: Instant) {
        self.lock().drain_until = Some(until);
    }

    /// Waits up to `grace` until no new connections are accepted, which should be soon, and then up
    /// to `wait` until there are no connections left. Returns whether there are none left.
    pub(super) fn wait_drained(&self, wait: Duration, grace: Duration) -> bool {
        let listens = |state: &mut ReactorState| state.listens;
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
        status: Arc<Status>,
    ) -> io::Result<Self> {
        let identity = u64::from_ne_bytes(random_bytes()?);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let acceptor = Acceptor::new([listener])?;
        epoll::add(&epoll, &acceptor, EventData::new_u64(LISTENER), EventFlags::IN)?;
        // It is notified twice: to drain, and to stop.
        epoll::add(&epoll, stop, EventData::new_u64(STOP), EventFlags::IN | EventFlags::ET)?;
        Ok(Self {
            table: Table::new(status.budget.clone()),
            protocol: StoreProtocol { config, options },
            epoll,
            acceptor: Some(acceptor),
            connections: HashMap::new(),
            next: FIRST_CONNECTION,
            deadlines: BTreeSet::new(),
            warnings: RateLimit::default(),
            status,
            identity,
        })
    }

    /// Serves until it is stopped.
    pub(super) fn run(mut self) {
        let mut events = Vec::with_capacity(EVENTS_PER_TURN);
        loop {
            if let Err(errno) = self.wait(&mut events) {
                tracing::error!(%errno, "the store stops: epoll failed");
                return;
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
            self.status.set(self.connections.len(), self.acceptor.is_some());
            if is_over || self.is_draining() && self.connections.is_empty() {
                return;
            }
        }
    }

    fn wait(&self, events: &mut Vec<Event>) -> rustix::io::Result<()> {
        let handshakes = self.acceptor.as_ref().and_then(Acceptor::next_deadline);
        let due = self.deadlines.first().map(|(at, _)| *at).into_iter().chain(handshakes).min();
        let system = simulation::simulated();
        let timeout = match system {
            Some(_) => Some(Timespec::default()),
            None => due.and_then(|due| timespec(due.saturating_duration_since(simulation::now()))),
        };
        events.clear();
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), timeout.as_ref()) {
            Ok(0) if let Some(system) = system => system.sleep(due).map_err(|_| Errno::IO),
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Whether no new connections are accepted.
    pub(super) const fn is_draining(&self) -> bool {
        self.acceptor.is_none()
    }

    /// Stops accepting connections, and responds to requests that wait for keys. Returns false if
    /// the server is to stop immediately.
    fn begin_drain(&mut self) -> bool {
        let until = self.status.lock().drain_until;
        let (Some(until), Some(acceptor)) = (until, self.acceptor.take()) else { return false };
        // This closes the listener and all connections that are not authenticated; their clients
        // connect again.
        drop(acceptor);
        self.deadlines.insert((until, STOP));
        let parked = |connection: &StoreConnection| matches!(connection.phase, Phase::Parked(_));
        let mut ids: Vec<u64> =
            self.connections.iter().filter(|(_, connection)| parked(connection)).map(|(id, _)| *id).collect();
        ids.sort_unstable();
        for id in ids {
            self.serve(id, Self::respond_closing);
        }
        true
    }

    /// Whether a handshake has reached its deadline, or the listener is to be watched again.
    fn is_accept_due(&self) -> bool {
        let due = self.acceptor.as_ref().and_then(Acceptor::next_deadline);
        due.is_some_and(|due| due <= simulation::now())
    }

    /// Accepts connections and continues handshakes, a bounded number at a time.
    fn accept(&mut self) {
        let Some(acceptor) = &mut self.acceptor else { return };
        // Half of the descriptors are left for the rest of the program.
        let max = self.protocol.config.connections_max.min(descriptor_limit() / 2);
        match acceptor.turn(&self.protocol, max.saturating_sub(self.connections.len())) {
            Ok(accepted) => accepted.into_iter().for_each(|accepted| self.admit(accepted)),
            Err(error) => tracing::error!(%error, "the store cannot accept connections: epoll failed"),
        }
    }

    fn admit(&mut self, Accepted { established, address, .. }: Accepted<()>) {
        let id = self.next;
        let connection = StoreConnection::new(established, address, self.status.budget.open());
        let data = EventData::new_u64(id);
        if let Err(errno) = epoll::add(&self.epoll, &connection.established.socket, data, EventFlags::empty())
        {
            tracing::warn!(%address, %errno, "the store cannot watch a client");
            return;
        }
        self.next += 1;
        self.connections.insert(id, connection);
        self.serve(id, Self::advance);
    }

    /// Applies an action to a connection, and then keeps or closes it.
    pub(super) fn serve(
        &mut self,
        id: u64,
        action: impl FnOnce(&mut Self, u64, &mut StoreConnection) -> Result<(), CloseReason>,
    ) {
        let Some(mut connection) = self.connections.remove(&id) else { return };
        let outcome = action(self, id, &mut connection).and_then(|()| {
            self.watch(id, &mut connection).map_err(|errno| CloseReason::Broken(errno.into()))
        });
        match outcome {
            Ok(()) => {
                self.connections.insert(id, connection);
            }
            Err(reason) => self.close(id, connection, &reason),
        }
    }

    /// Registers the events and the deadline of a connection, if they have changed.
    fn watch(&mut self, id: u64, connection: &mut StoreConnection) -> rustix::io::Result<()> {
        let now = Registration { events: connection.events(), deadline: connection.deadline };
        if now.events != connection.registration.events {
            epoll::modify(&self.epoll, &connection.established.socket, EventData::new_u64(id), now.events)?;
        }
        if now.deadline != connection.registration.deadline {
            self.forget_deadline(id, connection);
            self.deadlines.extend(now.deadline.map(|at| (at, id)));
        }
        connection.registration = now;
        Ok(())
    }

    fn forget_deadline(&mut self, id: u64, connection: &StoreConnection) {
        if let Some(at) = connection.registration.deadline {
            self.deadlines.remove(&(at, id));
        }
    }

    /// Closes a connection. Closing removes it from epoll.
    fn close(&mut self, id: u64, connection: StoreConnection, reason: &CloseReason) {
        self.forget_deadline(id, &connection);
        if let Phase::Parked(parked) = &connection.phase {
            self.table.stop_waiting(parked.missing_key(), id);
        }
        // Clients of a draining store disconnect because it drains, so their wills do not apply.
        if let Some(will) = connection.will.as_ref().filter(|_| !self.is_draining()) {
            self.execute_will(will);
        }
        let address = connection.address;
        let reason = match reason {
            CloseReason::Closed => {
                return tracing::debug!(%address, "a client closed its connection to the store");
            }
            CloseReason::Broken(error) => {
                return tracing::debug!(%address, %error, "a connection to the store broke");
            }
            CloseReason::TooLong(bytes) => format!("it sent a request of {bytes} bytes"),
            CloseReason::Malformed => "it sent a malformed request".into(),
            CloseReason::Corrupted(corruption) => corruption.to_string(),
            CloseReason::TimedOut => "it took too long".into(),
        };
        if let Some(suppressed) = self.warnings.admit(simulation::now()) {
            tracing::warn!(%address, reason, suppressed, "the store closed a connection");
        }
    }

    /// Handles an event on a connection.
    fn advance(&mut self, id: u64, connection: &mut StoreConnection) -> Result<(), CloseReason> {
        match &mut connection.phase {
            Phase::Parked(_) => Err(CloseReason::Closed),
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

    /// The deadline of a request or response that begins now.
    pub(super) fn operation_deadline(&self) -> Option<Instant> {
        simulation::now().checked_add(self.protocol.config.operation_timeout)
    }

    /// Handles the deadlines that have passed. Returns whether the server is to stop.
    fn expire(&mut self) -> bool {
        let now = simulation::now();
        while let Some(&(at, id)) = self.deadlines.first() {
            if at > now {
                return false;
            }
            self.deadlines.pop_first();
            match id {
                STOP => return true,
                id => self.serve(id, Self::handle_timeout),
            }
        }
        false
    }

    /// Handles the deadline of a connection.
    fn handle_timeout(&mut self, id: u64, connection: &mut StoreConnection) -> Result<(), CloseReason> {
        connection.registration.deadline = None;
        match connection.phase {
            Phase::Parked(_) => self.respond_timeout(id, connection),
            _ => Err(CloseReason::TimedOut),
        }
    }
}
