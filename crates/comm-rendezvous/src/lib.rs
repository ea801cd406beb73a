//! Rendezvous of the comm collective communication library: how the ranks of a job find each other through a store.
//!
//! [`Rendezvous::join`] makes the processes that share a [`Store`](comm_core::Store) a group: every rank claims its number,
//! settings that must be equal are compared, and every rank gets one line of text from each other rank. A transport puts
//! into that line how it is reached. [`meet`] is all of it for an
//! [`Endpoint`] of a transport.
//!
//! Ranks may meet any number of times in one store, under the same job and round: a process that finds its rank taken by an
//! earlier process starts a new meeting, and the others follow it. So a restarted job needs no number of its own.
//!
//! The first cause of a failure decides for all: every rank returns the same error, whoever found it. `docs/wire-tcp.md`
//! specifies the keys and values.
//!
//! | question | file |
//! |---|---|
//! | who am I, and what must be equal | `member.rs`, `settings.rs` |
//! | what happens in which order | `meet.rs`, `rendezvous.rs` |
//! | how are keys used: claim, gather, fail | `meeting.rs` |
//! | how did a phase end, and which error is that | `outcome.rs`, `own.rs` |
//! | who tells a rank that waits for something else | `watch.rs` |
//!
//! # Example
//!
//! ```
//! use comm_core::{Membership, Result, Store};
//! use comm_rendezvous::{Rendezvous, Member};
//!
//! /// Tells the other ranks an address, and returns those of all.
//! fn exchange(store: &dyn Store, rank: usize, address: &str) -> Result<Vec<String>> {
//!     let mut member = Member::new(Membership { rank, size: 4 });
//!     member.settings.add("transport", "tcp");
//!     let (_, addresses) = Rendezvous::join(store, member, Ok(address.to_owned()))?;
//!     Ok(addresses)
//! }
//! ```
#![forbid(unsafe_code)]

mod meet;
mod meeting;
mod member;
mod outcome;
mod own;
mod random;
mod rendezvous;
mod settings;
mod watch;

pub use meet::{Endpoint, meet};
pub use member::Member;
pub use random::random_bytes;
pub use rendezvous::Rendezvous;
pub use settings::Settings;
pub use watch::{Watch, WatchGuard};
