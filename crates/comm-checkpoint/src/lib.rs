//! Checkpoints of distributed training.
//!
//! Every rank writes the tensors that are assigned to it into its own safetensors file. When
//! all files are on disk, rank 0 writes a manifest, whose appearance makes the checkpoint complete.
//! A checkpoint can be loaded on any number of ranks, and its files with any reader of safetensors.
//!
//! ```
//! use comm_checkpoint::{Checkpoints, Options, Result, State};
//!
//! # fn main() -> Result<()> {
//! # let folder = tempfile::tempdir().unwrap();
//! # let folder = folder.path();
//! // Four ranks save weights, which are equal on all of them, and the moments of an optimizer, of
//! // which each has a quarter.
//! comm::threads::run(4, |comm| -> Result<()> {
//!     let mut checkpoints = Checkpoints::open(&comm, folder, Options::default().keep(2))?;
//!     let (weights, moments) = ([0.5_f32; 12], [comm.rank() as f32; 3]);
//!     let mut state = State::new();
//!     state.tensor("weights", &[3, 4], &weights)?;
//!     state.shard("moments", &[12], 3 * comm.rank(), &moments)?;
//!     state.value("seen", &4800_u64)?;
//!     checkpoints.save(100, &state)
//! })?
//! .into_iter()
//! .collect::<Result<Vec<()>>>()?;
//!
//! // Two ranks continue, with half of the moments each.
//! comm::threads::run(2, |comm| -> Result<()> {
//!     let mut checkpoints = Checkpoints::open(&comm, folder, Options::default())?;
//!     if let Some(checkpoint) = checkpoints.load_latest()? {
//!         let (mut weights, mut moments) = ([0.0_f32; 12], [0.0_f32; 6]);
//!         checkpoint.read("weights", &mut weights)?;
//!         checkpoint.read_range("moments", 6 * comm.rank(), &mut moments)?;
//!         assert_eq!((checkpoint.step(), checkpoint.value::<u64>("seen")?), (100, 4800));
//!         assert_eq!((weights[0], moments[5]), (0.5, 1.0 + 2.0 * comm.rank() as f32));
//!     }
//!     Ok(())
//! })?
//! .into_iter()
//! .collect()
//! # }
//! ```
//!
//! | part | file |
//! |---|---|
//! | the interface | `checkpoints.rs`, `state.rs`, `checkpoint.rs` |
//! | the order of a save and of a load | `save.rs`, `load.rs` |
//! | the division of tensors among ranks | `offer.rs` |
//! | files: order of changes, shards, manifest | `folder.rs`, `shard.rs`, `manifest.rs` |
//! | agreement of all ranks | `exchange.rs` |

#![forbid(unsafe_code)]

mod checkpoint;
mod checkpoints;
mod dtype;
mod error;
mod exchange;
mod folder;
mod load;
mod manifest;
mod offer;
mod save;
mod shard;
mod state;

pub use checkpoint::Checkpoint;
pub use checkpoints::{Checkpoints, Options, Placement};
pub use error::{Coverage, Error, Result};
pub use state::State;
