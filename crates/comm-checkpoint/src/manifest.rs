//! The manifest of a checkpoint: the file whose appearance makes it complete.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use safetensors::Dtype;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{Error, Result};

/// The version of the format.
const VERSION: u32 = 1;
/// The number of bytes per checksum, so that parts of a shard can be verified.
pub(crate) const BLOCK_BYTES: usize = 4 << 20;

/// The contents of a checkpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    version: u32,
    pub(crate) step: u64,
    pub(crate) values: BTreeMap<String, serde_json::Value>,
    pub(crate) tensors: BTreeMap<String, Entry>,
    /// The safetensors file of each rank that wrote one.
    pub(crate) files: Vec<FileEntry>,
}

/// A tensor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    /// The shards, in the order of their elements.
    pub(crate) shards: Vec<Shard>,
}

/// A shard of a tensor: consecutive elements in one file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Shard {
    /// The index of the file.
    pub(crate) file: usize,
    pub(crate) elements: Range<usize>,
    /// The position of its first byte in the file.
    pub(crate) offset: u64,
    /// The checksum of each block of [`BLOCK_BYTES`].
    pub(crate) crc32c: Vec<u32>,
}

/// A file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileEntry {
    pub(crate) name: String,
    pub(crate) bytes: u64,
}

/// The file: a manifest and its checksum.
#[derive(Serialize, Deserialize)]
struct Envelope {
    /// The checksum of the text of the manifest.
    crc32c: u32,
    manifest: Box<RawValue>,
}

impl Manifest {
    pub(crate) fn new(step: u64, values: BTreeMap<String, serde_json::Value>) -> Self {
        Self { version: VERSION, step, values, tensors: BTreeMap::new(), files: Vec::new() }
    }

    /// Encodes the manifest with its checksum.
    pub(crate) fn encode(&self) -> Result<String> {
        let encode = || {
            let manifest = serde_json::value::to_raw_value(self)?;
            serde_json::to_string(&Envelope { crc32c: crc32c::crc32c(manifest.get().as_bytes()), manifest })
        };
        encode().map_err(|error| comm_core::Error::Internal(error.to_string()).into())
    }

    /// Decodes the text of the file at `path`, and verifies its checksum.
    pub(crate) fn decode(text: &[u8], path: &Path) -> Result<Self> {
        let envelope: Envelope = serde_json::from_slice(text).map_err(|error| Error::corrupt(path, error))?;
        let text = envelope.manifest.get();
        if crc32c::crc32c(text.as_bytes()) != envelope.crc32c {
            return Err(Error::corrupt(path, "its checksum differs"));
        }
        let manifest: Self = serde_json::from_str(text).map_err(|error| Error::corrupt(path, error))?;
        if manifest.version != VERSION {
            let version = manifest.version;
            return Err(Error::corrupt(
                path,
                format!("its format has version {version}, but this program reads version {VERSION}"),
            ));
        }
        Ok(manifest)
    }
}

/// Returns the checksums of the blocks of a shard.
pub(crate) fn checksums(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks(BLOCK_BYTES).map(crc32c::crc32c).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        let mut manifest = Manifest::new(7, BTreeMap::from([("rate".into(), serde_json::json!(0.1))]));
        let shards = vec![Shard { file: 0, elements: 0..6, offset: 80, crc32c: vec![1, 2] }];
        manifest.tensors.insert("w".into(), Entry { dtype: Dtype::F32, shape: vec![2, 3], shards });
        manifest.files.push(FileEntry { name: "0.safetensors".into(), bytes: 104 });
        manifest
    }

    #[test]
    fn a_manifest_round_trips_through_its_file() {
        let path = Path::new("manifest.json");
        assert_eq!(Manifest::decode(manifest().encode().unwrap().as_bytes(), path).unwrap(), manifest());
    }

    #[test]
    fn every_damaged_byte_and_every_shorter_file_is_detected() {
        let (text, path) = (manifest().encode().unwrap().into_bytes(), Path::new("manifest.json"));
        for at in 0..text.len() {
            let mut damaged = text.clone();
            damaged[at] ^= 1;
            for damaged in [&damaged[..], &text[..at]] {
                let outcome = Manifest::decode(damaged, path);
                assert!(matches!(outcome, Err(Error::Corrupt { .. })), "byte {at}: {outcome:?}");
            }
        }
    }
}
