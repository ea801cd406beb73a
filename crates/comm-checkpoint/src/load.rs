//! Selects a checkpoint on all ranks, and copies its files to the hosts that lack them.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;

use comm_core::Comm;
use serde::{Deserialize, Serialize};

use crate::checkpoint::Checkpoint;
use crate::exchange::agree;
use crate::folder::{Folder, sync};
use crate::manifest::{FileEntry, Manifest};
use crate::{Error, Placement, Result};

/// The size of the pieces in which a file is copied to other hosts.
const PIECE_BYTES: usize = 16 << 20;

/// A checkpoint in the folder of a rank, as the rank describes it to the others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Found {
    step: u64,
    /// The fingerprint of the manifest.
    digest: u32,
    /// Whether each file is present with the right length.
    present: Vec<bool>,
}

/// Opens the checkpoint of this step.
pub(crate) fn load(comm: &Comm, folder: &Folder, placement: Placement, step: u64) -> Result<Checkpoint> {
    let read = match find(folder, step) {
        // Other hosts may have it.
        Err(Error::NoSuchStep { .. }) if placement == Placement::PerHost => Ok((None, None)),
        other => other.map(|(manifest, found)| (Some(manifest), Some(found))),
    };
    let found = read.as_ref().map(|(_, found)| found.clone()).map_err(Clone::clone);
    let all = agree(comm, found)?;
    let manifest = share_manifest(comm, step, read?.0, &all)?;
    let own = folder.of(step);
    if placement == Placement::PerHost {
        copy_missing(comm, folder, &manifest, &all)?;
    } else if let Some(file) = (0..manifest.files.len()).find(|file| !has(&all, 0, *file)) {
        let path = own.join(&manifest.files[file].name);
        return Err(Error::corrupt(&path, "it is missing or has the wrong length"));
    }
    Ok(Checkpoint::new(own, manifest))
}

fn has(all: &[Option<Found>], rank: usize, file: usize) -> bool {
    all[rank].as_ref().is_some_and(|found| found.present.get(file) == Some(&true))
}

/// Returns the manifest, even on ranks that lack it.
fn share_manifest(comm: &Comm, step: u64, own: Option<Manifest>, all: &[Option<Found>]) -> Result<Manifest> {
    let mut digests = all.iter().flatten().map(|found| found.digest);
    let Some(first) = digests.next() else { return Err(Error::NoSuchStep { step }) };
    if digests.any(|digest| digest != first) {
        return Err(Error::Diverged { step });
    }
    let source = all.iter().position(Option::is_some);
    if !all.contains(&None) {
        return own.ok_or(Error::NoSuchStep { step });
    }
    let shared = agree(comm, Ok(own.filter(|_| source == Some(comm.rank()))))?;
    shared.into_iter().flatten().next().ok_or(Error::NoSuchStep { step })
}

/// Copies the files of a checkpoint to the hosts that lack them.
fn copy_missing(comm: &Comm, folder: &Folder, manifest: &Manifest, all: &[Option<Found>]) -> Result<()> {
    let leaders = leaders(comm, folder, Placement::PerHost)?;
    let leads = leaders.contains(&comm.rank());
    let own = folder.of(manifest.step);
    let created = if leads { fs::create_dir_all(&own).map_err(Error::io("create", &own)) } else { Ok(()) };
    agree(comm, created)?;
    for (index, file) in manifest.files.iter().enumerate() {
        if leaders.iter().all(|&rank| has(all, rank, index)) {
            continue;
        }
        let Some(source) = (0..comm.size()).find(|&rank| has(all, rank, index)) else {
            return Err(Error::corrupt(&own.join(&file.name), "it is missing or has the wrong length"));
        };
        copy(comm, &own, file, source, leads && !has(all, comm.rank(), index))?;
    }
    let lacks = leads && all[comm.rank()].is_none();
    let commit = || folder.commit(manifest.step, &manifest.encode()?);
    agree(comm, if lacks { commit() } else { Ok(()) }).map(drop)
}

/// Returns the manifest of a step, and which of its files are present.
fn find(folder: &Folder, step: u64) -> Result<(Manifest, Found)> {
    let manifest = folder.manifest(step)?;
    let is_present = |file: &FileEntry| {
        fs::metadata(folder.of(step).join(&file.name)).is_ok_and(|found| found.len() == file.bytes)
    };
    let present = manifest.files.iter().map(is_present).collect();
    let digest = crc32c::crc32c(manifest.encode()?.as_bytes());
    Ok((manifest, Found { step, digest, present }))
}

/// Returns whether the checkpoint of a step is complete and undamaged, like [`newest`]. This is a
/// collective.
pub(crate) fn is_complete(comm: &Comm, folder: &Folder, step: u64) -> Result<bool> {
    let steps = if folder.has(step) { vec![step] } else { Vec::new() };
    Ok(newest_of(comm, folder, Ok(steps))?.is_some())
}

/// Returns the newest step whose checkpoint is complete and undamaged, as far as the names and
/// lengths of its files on all ranks show. This is a collective.
pub(crate) fn newest(comm: &Comm, folder: &Folder) -> Result<Option<u64>> {
    newest_of(comm, folder, folder.steps())
}

/// Does the same as [`newest`] for steps whose manifests are in this rank's folder.
fn newest_of(comm: &Comm, folder: &Folder, steps: Result<Vec<u64>>) -> Result<Option<u64>> {
    let found = || -> Result<Vec<Found>> {
        let mut all = Vec::new();
        for step in steps? {
            match find(folder, step) {
                Ok((_, found)) => all.push(found),
                Err(error @ Error::Corrupt { .. }) => tracing::warn!(step, %error, "skipping a checkpoint"),
                Err(error) => return Err(error),
            }
        }
        Ok(all)
    };
    let mut all: Vec<Found> = agree(comm, found())?.into_iter().flatten().collect();
    all.sort_by_key(|found| found.step);
    for of_step in all.chunk_by(|a, b| a.step == b.step).rev() {
        let step = of_step[0].step;
        let mut files = 0..of_step[0].present.len();
        if files.all(|file| of_step.iter().any(|found| found.present.get(file) == Some(&true))) {
            return Ok(Some(step));
        }
        tracing::warn!(step, "skipping a checkpoint, because files are missing or have the wrong length");
    }
    Ok(None)
}

/// Returns the ranks that change the folder: rank 0, or the lowest rank of each folder.
pub(crate) fn leaders(comm: &Comm, folder: &Folder, placement: Placement) -> Result<Vec<usize>> {
    if placement == Placement::Shared {
        return Ok(vec![0]);
    }
    let ids = agree(comm, folder.id())?;
    let is_first = |rank: &usize| ids.iter().position(|id| *id == ids[*rank]) == Some(*rank);
    Ok((0..ids.len()).filter(is_first).collect())
}

/// Copies a file of `source` to the ranks that lack it.
fn copy(comm: &Comm, folder: &Path, file: &FileEntry, source: usize, lacks: bool) -> Result<()> {
    let path = folder.join(&file.name);
    let partial = path.with_extension("partial");
    let open = || match (comm.rank() == source, lacks) {
        (true, _) => File::open(&path).map(Some).map_err(Error::io("open", &path)),
        (_, true) => File::create(&partial).map(Some).map_err(Error::io("create", &partial)),
        _ => Ok(None),
    };
    let opened = open();
    let (mut handle, outcome) = match opened {
        Ok(handle) => (handle, Ok(())),
        Err(error) => (None, Err(error)),
    };
    agree(comm, outcome)?;
    let mut left = file.bytes;
    let mut outcome = Ok(());
    let mut piece = vec![0_u8; PIECE_BYTES.min(usize::try_from(left).unwrap_or(usize::MAX))];
    while left > 0 {
        let length = usize::try_from(left).map_or(piece.len(), |left| left.min(piece.len()));
        let piece = &mut piece[..length];
        // After an error the pieces are still broadcast, so that all ranks make the same calls.
        if let (true, Some(from), Ok(())) = (comm.rank() == source, &mut handle, &outcome) {
            outcome = from.read_exact(piece).map_err(Error::io("read", &path));
        }
        comm.broadcast(source, piece)?;
        if let (true, Some(to), Ok(())) = (lacks, &mut handle, &outcome) {
            outcome = to.write_all(piece).map_err(Error::io("write", &partial));
        }
        left -= length as u64;
    }
    let finish = || {
        if let (true, Some(to)) = (lacks, &handle) {
            to.sync_all().map_err(Error::io("sync", &partial))?;
            fs::rename(&partial, &path).map_err(Error::io("rename", &partial))?;
            sync(folder)?;
        }
        Ok(())
    };
    agree(comm, outcome.and_then(|()| finish())).map(drop)
}
