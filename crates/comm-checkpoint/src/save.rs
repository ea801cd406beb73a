//! Saving: every rank writes its shard, and the manifest makes the checkpoint complete.

use std::collections::BTreeMap;

use comm_core::Comm;

use crate::exchange::agree;
use crate::folder::Folder;
use crate::load::{self, leaders};
use crate::manifest::{Entry, FileEntry, Manifest, Shard};
use crate::offer::{Assigned, Offer, assign};
use crate::shard::{self, Written};
use crate::state::State;
use crate::{Error, Options, Result};

/// Saves the state of all ranks.
pub(crate) fn save(
    comm: &Comm,
    folder: &Folder,
    options: Options,
    step: u64,
    state: &State<'_>,
) -> Result<()> {
    let rank = comm.rank();
    let offers = agree(comm, Ok(Offer::new(state, rank, folder.has(step))))?;
    // A damaged checkpoint is replaced: a run that continued from an earlier step reaches this step
    // again.
    if offers.iter().any(|offer| offer.exists) && load::is_complete(comm, folder, step)? {
        return Err(Error::Exists { step });
    }
    let assigned = assign(&offers)?;
    let leaders = leaders(comm, folder, options.placement)?;
    let leads = leaders.contains(&rank);
    let as_leader = |act: &dyn Fn() -> Result<()>| if leads { act() } else { Ok(()) };
    agree(comm, as_leader(&|| folder.begin(step)))?;
    let path = folder.of(step).join(shard::file_name(rank, comm.size()));
    let saved = agree(comm, shard::write(&path, state, &assigned, rank)).and_then(|written| {
        let values = offers.into_iter().next().map(|offer| offer.values).unwrap_or_default();
        let manifest = manifest(step, values, assigned, &written).encode()?;
        // Rank 0 is last, so a checkpoint that it completes is complete in all folders.
        agree(comm, as_leader(&|| if rank == 0 { Ok(()) } else { folder.commit(step, &manifest) }))?;
        agree(comm, if rank == 0 { folder.commit(step, &manifest) } else { Ok(()) })
    });
    if let Err(error) = saved {
        if leads && let Err(error) = folder.discard(step) {
            tracing::warn!(step, %error, "the files of a failed checkpoint remain");
        }
        return Err(error);
    }
    // The checkpoint is complete, whatever happens from here on.
    if leads && let Err(error) = folder.prune(options.keep, step) {
        tracing::warn!(step, %error, "old checkpoints remain");
    }
    // The barrier ensures that no rank sees a folder in which another rank is still removing
    // checkpoints.
    if let Err(error) = comm.barrier() {
        tracing::warn!(step, %error, "the communicator failed after the checkpoint was complete");
    }
    Ok(())
}

/// Describes the files that the ranks have written.
fn manifest(
    step: u64,
    values: BTreeMap<String, serde_json::Value>,
    assigned: BTreeMap<String, Assigned>,
    written: &[Written],
) -> Manifest {
    let mut manifest = Manifest::new(step, values);
    let mut files = vec![0; written.len()];
    for (rank, file) in written.iter().enumerate() {
        files[rank] = manifest.files.len();
        let entry = |bytes| FileEntry { name: shard::file_name(rank, written.len()), bytes };
        manifest.files.extend(file.bytes.map(entry));
    }
    for (name, Assigned { dtype, shape, writers }) in assigned {
        let shard = |(rank, elements): (usize, std::ops::Range<usize>)| {
            let (offset, crc32c) = written[rank].tensors.get(&name)?.clone();
            Some(Shard { file: files[rank], elements, offset, crc32c })
        };
        let shards = writers.into_iter().filter_map(shard).collect();
        manifest.tensors.insert(name, Entry { dtype, shape, shards });
    }
    manifest
}
