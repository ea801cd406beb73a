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
        complete(comm, folder, &manifest(step, values, assigned, &written), leads)
    });
    if let Err(error) = saved {
        if leads {
            clean_up(folder, step, &error);
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

/// Makes a checkpoint complete. All its shards must already be on disk.
fn complete(comm: &Comm, folder: &Folder, manifest: &Manifest, leads: bool) -> Result<()> {
    let text = manifest.encode()?;
    let commit = |commits| {
        let committed = if commits { folder.commit(manifest.step, &text) } else { Ok(()) };
        agree(comm, committed).map(drop)
    };
    // Rank 0 is last, so a checkpoint that it completes is complete in all folders.
    commit(leads && comm.rank() != 0)?;
    commit(comm.rank() == 0)
}

/// Removes the files of a save that has failed on every rank.
fn clean_up(folder: &Folder, step: u64, error: &Error) {
    // A rank that has lost the others does not know whether they have completed the checkpoint.
    if matches!(error, Error::Comm(_)) {
        return;
    }
    if let Err(error) = folder.discard(step) {
        tracing::warn!(step, %error, "the files of a failed checkpoint remain");
    }
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_complete_checkpoint_remains_if_a_rank_is_lost_before_it_hears_of_it() {
        let root = tempfile::tempdir().unwrap();
        let folder = Folder::open(root.path()).unwrap();
        folder.begin(7).unwrap();
        comm::threads::run(2, |comm| {
            if comm.rank() == 1 {
                agree(&comm, Ok(())).unwrap();
                return comm.abort("lost");
            }
            let error = complete(&comm, &folder, &Manifest::new(7, BTreeMap::new()), true).unwrap_err();
            assert!(matches!(error, Error::Comm(_)), "{error}");
            clean_up(&folder, 7, &error);
            assert!(folder.has(7));
            clean_up(&folder, 7, &Error::Peer { rank: 1, reason: "its disk is full".into() });
            assert!(!folder.has(7));
        })
        .unwrap();
    }
}
