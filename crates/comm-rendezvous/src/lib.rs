//! Rendezvous of the comm collective communication library, in which the ranks of a job find each
//! other through a store.
//!
//! [`Rendezvous::join`] makes the processes that share a [`Store`](comm_core::Store) a group: every
//! rank claims its number, settings that must be equal are compared, and every rank gets one line
//! of text from each other rank. A transport puts its addresses into that line. [`connect`] does
//! all of this for the [`Endpoint`] of a transport.
//!
//! A store can serve any number of rendezvous under the same job and round: a process that finds
//! its rank claimed by an earlier process starts a new attempt, which the others join. A restarted
//! job therefore needs no new number.
//!
//! The first failure decides the outcome: every rank returns the same error. `docs/wire-tcp.md`
//! specifies the keys and values.
//!
//! | part | file |
//! |---|---|
//! | the identity of a rank, and the settings that must be equal | `member.rs`, `settings.rs` |
//! | the order of events | `connect.rs`, `rendezvous.rs` |
//! | the keys of one attempt: claim, gather, fail | `attempt.rs` |
//! | the outcome of a phase, and its error | `outcome.rs`, `local.rs` |
//! | processes that join a running group | `wait_list.rs` |
//! | the view of a launcher on them | `admissions.rs` |
//! | a group that shrinks and grows | `elastic.rs` |
//! | reports of failures while a rank opens connections | `watch.rs` |
//!
//! # Example
//!
//! ```
//! use comm_core::{Membership, Result, Store};
//! use comm_rendezvous::{Rendezvous, Member};
//!
//! /// Publishes an address, and returns the addresses of all ranks.
//! fn exchange(store: &dyn Store, rank: usize, address: &str) -> Result<Vec<String>> {
//!     let mut member = Member::new(Membership { rank, size: 4 });
//!     member.settings.add("transport", "tcp");
//!     let (_, addresses) = Rendezvous::join(store, member, Ok(address.to_owned()))?;
//!     Ok(addresses)
//! }
//! ```
#![forbid(unsafe_code)]

mod admissions;
mod attempt;
mod backoff;
mod connect;
mod elastic;
mod leftovers;
mod local;
mod member;
mod outcome;
mod processors;
mod random;
mod rendezvous;
mod settings;
mod wait_list;
mod watch;

pub use admissions::Admissions;
pub use connect::{Endpoint, connect, parse_records};
pub use elastic::{ElasticGroup, GroupConnector, GrowOptions, ListId};
pub use member::Member;
pub use processors::Processors;
pub use random::random_bytes;
pub use rendezvous::Rendezvous;
pub use settings::Settings;
pub use wait_list::{Admission, Admitted, WaitList, WaitingProcess};
pub use watch::{Watch, WatchGuard};
