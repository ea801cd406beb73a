//! The safetensors file of a rank.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use comm_core::wire;
use safetensors::tensor::{Metadata, TensorView};
use serde::{Deserialize, Serialize};

use crate::folder::sync;
use crate::manifest::{BLOCK_BYTES, Shard, checksums};
use crate::offer::Assigned;
use crate::state::State;
use crate::{Error, Result};

/// The size of the number at the beginning of a safetensors file, which is the length of the
/// header.
const HEADER_LENGTH_BYTES: usize = 8;

/// A description of a file that was written, for the manifest.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Written {
    /// The length of the file, or `None` if the rank had nothing to write.
    pub(crate) bytes: Option<u64>,
    /// The position and the checksums of each tensor.
    pub(crate) tensors: BTreeMap<String, (u64, Vec<u32>)>,
}

/// Returns the name of the file that a rank writes.
pub(crate) fn file_name(rank: usize, size: usize) -> String {
    format!("shard-{rank:05}-of-{size:05}.safetensors")
}

/// Writes the tensors that are assigned to `rank`. The file is on disk when it returns.
pub(crate) fn write(
    path: &Path,
    state: &State<'_>,
    assigned: &BTreeMap<String, Assigned>,
    rank: usize,
) -> Result<Written> {
    let mut views = Vec::new();
    let mut written = Written::default();
    for (name, Assigned { dtype, shape, writers }) in assigned {
        let Some(elements) = writers.iter().find(|(writer, _)| *writer == rank).map(|(_, range)| range)
        else {
            continue;
        };
        let Some(tensor) = state.tensors.get(name) else { continue };
        let shape = if tensor.start.is_some() { vec![elements.len()] } else { shape.clone() };
        let view = TensorView::new(*dtype, shape, &tensor.bytes).map_err(|error| invalid(name, &error))?;
        views.push((name, view));
        written.tensors.insert(name.clone(), (0, checksums(&tensor.bytes)));
    }
    if views.is_empty() {
        return Ok(written);
    }
    safetensors::serialize_to_file(views, None, path).map_err(|error| match error {
        safetensors::SafeTensorError::IoError(error) => Error::io("write", path)(error),
        other => invalid("the header", &other),
    })?;
    sync(path)?;
    path.parent().map_or(Ok(()), sync)?;
    let (data, header) = read_header(path)?;
    for (name, (offset, _)) in &mut written.tensors {
        let info = header.info(name).ok_or_else(|| Error::corrupt(path, format!("it has no {name:?}")))?;
        *offset = data + info.data_offsets.0 as u64;
    }
    written.bytes = Some(data + header.data_len() as u64);
    Ok(written)
}

fn invalid(name: &str, error: &safetensors::SafeTensorError) -> Error {
    comm_core::Error::Internal(format!("{name} cannot be written: {error}")).into()
}

/// Returns the position of the data in a file, and its header.
fn read_header(path: &Path) -> Result<(u64, Metadata)> {
    let read = || {
        let mut file = File::open(path)?;
        let mut length = [0; HEADER_LENGTH_BYTES];
        file.read_exact(&mut length)?;
        let [length] = wire::read_words(&length);
        let mut header = Vec::new();
        file.take(length).read_to_end(&mut header)?;
        Ok((HEADER_LENGTH_BYTES as u64 + length, header))
    };
    let (data, header) = read().map_err(Error::io("read", path))?;
    let header = serde_json::from_slice(&header).map_err(|error| Error::corrupt(path, error))?;
    Ok((data, header))
}

/// Reads a range of a shard's bytes, and verifies the checksums of the blocks that contain it.
///
/// `range` is relative to the first byte of the shard, which has `length` bytes.
pub(crate) fn read(
    path: &Path,
    name: &str,
    shard: &Shard,
    length: usize,
    range: Range<usize>,
    into: &mut [u8],
) -> Result<()> {
    let file = File::open(path).map_err(Error::io("open", path))?;
    let mut block = Vec::new();
    let blocks = range.start / BLOCK_BYTES..range.end.div_ceil(BLOCK_BYTES);
    for index in blocks {
        let bytes = index * BLOCK_BYTES..length.min((index + 1) * BLOCK_BYTES);
        let wanted = range.start.max(bytes.start)..range.end.min(bytes.end);
        let target = &mut into[wanted.start - range.start..wanted.end - range.start];
        let is_whole = wanted == bytes;
        block.resize(if is_whole { 0 } else { bytes.len() }, 0);
        let buffer = if is_whole { &mut *target } else { &mut block[..] };
        file.read_exact_at(buffer, shard.offset + bytes.start as u64).map_err(|error| {
            match error.kind() {
                std::io::ErrorKind::UnexpectedEof => Error::corrupt(path, format!("it ends within {name:?}")),
                _ => Error::io("read", path)(error),
            }
        })?;
        if shard.crc32c.get(index) != Some(&crc32c::crc32c(buffer)) {
            return Err(Error::corrupt(path, format!("the checksum of {name:?} differs")));
        }
        if !is_whole {
            target.copy_from_slice(&block[wanted.start - bytes.start..wanted.end - bytes.start]);
        }
    }
    Ok(())
}
