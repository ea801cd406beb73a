//! A faulty network in virtual time: everything in one thread, and repeatable from a seed.
//!
//! Ranks are state machines that are called in turn until none can go on; then [`Network::advance`] moves the clock to
//! the next thing that happens. If nothing ever will, the ranks are deadlocked, and that is certain: no timeout is
//! needed to find out. [`Network::drive`] is this loop.
//!
//! ```
//! use std::io::IoSlice;
//!
//! use comm_core::Transport;
//! use comm_sim::network::{FaultPlan, Network, Outcome, Turn};
//!
//! let (mut network, mut transports) = Network::new(2, 42, &FaultPlan::rough())?;
//! let (mut sent, mut received) = (0, 0);
//! let outcome = network.drive(2, |rank| {
//!     let transport = &mut transports[rank];
//!     let moved = match rank {
//!         0 => transport.try_send(1, &[IoSlice::new(&[7; 100][sent..])]),
//!         _ => transport.try_recv(0, &mut [0; 100][received..]),
//!     };
//!     let (done, moved) = (if rank == 0 { &mut sent } else { &mut received }, moved.unwrap());
//!     *done += moved;
//!     if *done == 100 { Turn::Done } else { Turn::of(moved > 0) }
//! });
//! assert_eq!(outcome, Outcome::Done);
//! # Ok::<(), comm_core::Error>(())
//! ```

mod link;
mod transport;
mod world;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use comm_core::{Group, GroupId, Membership, Result};

use crate::Release;
use crate::random::Random;
pub use transport::NetworkTransport;
use world::World;

/// How the network behaves, and what goes wrong when.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FaultPlan {
    /// The time that every byte takes at least.
    pub latency: Duration,
    /// The time that may come on top, at random. Bytes never overtake each other.
    pub jitter: Duration,
    /// How many bytes per second a link carries.
    pub bytes_per_second: u64,
    /// How many bytes fit between a sender and a receiver.
    pub capacity: usize,
    /// Whether every call moves a random part of what it could, sometimes nothing.
    pub short: bool,
    /// How often, and for how long, a link carries nothing: once in so many sends, on average.
    pub stalls: Option<(usize, Duration)>,
    /// When the sender's bytes count as released.
    pub release: Release,
    /// What goes wrong, and how long after the start.
    pub incidents: Vec<(Duration, Incident)>,
}

/// Something that goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Incident {
    /// A rank dies: what it has not put on the wire is lost.
    Death {
        /// The rank.
        rank: usize,
    },
    /// The link between two ranks breaks, with everything that is on it.
    Break {
        /// The two ranks.
        between: (usize, usize),
    },
}

impl FaultPlan {
    /// A network that delivers everything promptly.
    #[must_use]
    pub const fn calm() -> Self {
        Self {
            latency: Duration::from_micros(10),
            jitter: Duration::ZERO,
            bytes_per_second: 10_000_000_000,
            capacity: 64 << 10,
            short: false,
            stalls: None,
            release: Release::OnAccept,
            incidents: Vec::new(),
        }
    }

    /// A network that is slow and uneven, holds few bytes, and lends. Nothing is lost on it.
    #[must_use]
    pub const fn rough() -> Self {
        Self {
            latency: Duration::from_micros(50),
            jitter: Duration::from_micros(500),
            bytes_per_second: 10_000_000,
            capacity: 61,
            short: true,
            stalls: Some((20, Duration::from_millis(5))),
            release: Release::OnConsume,
            incidents: Vec::new(),
        }
    }

    /// The network with this time for every byte.
    #[must_use]
    pub const fn latency(mut self, latency: Duration) -> Self {
        self.latency = latency;
        self
    }

    /// The network with up to this time on top, at random.
    #[must_use]
    pub const fn jitter(mut self, jitter: Duration) -> Self {
        self.jitter = jitter;
        self
    }

    /// The network with links that carry so many bytes per second.
    #[must_use]
    pub const fn bytes_per_second(mut self, bytes_per_second: u64) -> Self {
        self.bytes_per_second = bytes_per_second;
        self
    }

    /// The network with room for so many bytes between a sender and a receiver.
    #[must_use]
    pub const fn capacity(mut self, capacity: usize) -> Self {
        self.capacity = capacity;
        self
    }

    /// The network with calls that move a random part of what they could, or not.
    #[must_use]
    pub const fn short(mut self, short: bool) -> Self {
        self.short = short;
        self
    }

    /// The network with links that carry nothing for this long, once in so many sends on average.
    #[must_use]
    pub const fn stalls(mut self, sends: usize, duration: Duration) -> Self {
        self.stalls = Some((sends, duration));
        self
    }

    /// The network with bytes released then.
    #[must_use]
    pub const fn release(mut self, release: Release) -> Self {
        self.release = release;
        self
    }

    /// The same network, on which this goes wrong too.
    #[must_use]
    pub fn and(mut self, after: Duration, incident: Incident) -> Self {
        self.incidents.push((after, incident));
        self
    }
}

/// The network: what moves its clock.
#[derive(Debug)]
pub struct Network {
    world: Shared,
    random: Random,
}

/// What a rank came to in its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// Something moved: the rank wants another turn before time passes.
    Moved,
    /// Nothing can move.
    Blocked,
    /// The rank has ended, well or not, and wants no more turns.
    Done,
}

impl Turn {
    /// The turn of a rank that has not ended.
    #[must_use]
    pub const fn of(moved: bool) -> Self {
        if moved { Self::Moved } else { Self::Blocked }
    }
}

/// How a drive ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// Every rank that lives has ended.
    Done,
    /// These ranks wait for something that will never happen.
    Deadlock(Vec<usize>),
}

/// The world, as all its users share it.
#[derive(Debug, Clone)]
struct Shared(Arc<Mutex<World>>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Network {
    /// A network of `n` ranks, and their transports in rank order. Everything random depends on the seed alone, and on
    /// the order of calls.
    ///
    /// # Errors
    /// [`Error::Io`](comm_core::Error::Io) if the system has no descriptors left.
    pub fn new(n: usize, seed: u64, plan: &FaultPlan) -> Result<(Self, Vec<NetworkTransport>)> {
        let world = Shared(Arc::new(Mutex::new(World::new(n, seed, plan))));
        let transport = |rank| {
            NetworkTransport::new(Group::new(GroupId::WORLD, Membership { rank, size: n })?, world.clone())
        };
        let transports = (0..n).map(transport).collect::<Result<_>>()?;
        Ok((Self { world, random: Random::new(seed, 1) }, transports))
    }

    /// Moves the clock to the next thing that happens. False if nothing will ever happen.
    pub fn advance(&mut self) -> bool {
        self.world.lock().advance(None)
    }

    /// Moves the clock by this much, and lets happen what happens on the way.
    pub fn advance_by(&mut self, time: Duration) {
        let mut world = self.world.lock();
        let until = world.now() + time;
        while world.advance(Some(until)) {}
    }

    /// The time on the network's clock.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.world.lock().instant()
    }

    /// How much time has passed since the start.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.world.lock().now()
    }

    /// Whether a rank has died. A dead rank's transport does nothing.
    #[must_use]
    pub fn is_dead(&self, rank: usize) -> bool {
        self.world.lock().is_dead(rank)
    }

    /// Gives the ranks turns, in random order, and lets time pass when none can go on, until all have ended.
    pub fn drive(&mut self, ranks: usize, mut turn: impl FnMut(usize) -> Turn) -> Outcome {
        let mut waiting: Vec<usize> = (0..ranks).collect();
        loop {
            let mut moved = false;
            let start = self.random.below(waiting.len());
            waiting.rotate_left(start);
            waiting.retain(|&rank| {
                let outcome = if self.is_dead(rank) { Turn::Done } else { turn(rank) };
                moved |= outcome != Turn::Blocked;
                outcome != Turn::Done
            });
            if waiting.is_empty() {
                return Outcome::Done;
            }
            if !moved && !self.advance() {
                waiting.sort_unstable();
                return Outcome::Deadlock(waiting);
            }
        }
    }
}
