//! Reading a complete checkpoint.

use std::path::PathBuf;
use std::sync::Arc;

use comm_core::{AsViewMut, DType, HostViewMut, Shape};
use serde::de::DeserializeOwned;

use crate::manifest::{Entry, Manifest};
use crate::{Error, Result, dtype, shard};

/// A complete checkpoint, saved by any number of ranks.
///
/// Reading is not a collective: every rank reads what it needs. All bytes are verified against
/// their checksums as they are read. A `Checkpoint` can be used from several threads. Later saves
/// may remove its files: see [`Options::keep`](crate::Options::keep).
#[derive(Debug, Clone)]
pub struct Checkpoint {
    folder: PathBuf,
    manifest: Arc<Manifest>,
}

impl Checkpoint {
    pub(crate) fn new(folder: PathBuf, manifest: Manifest) -> Self {
        Self { folder, manifest: Arc::new(manifest) }
    }

    /// Returns the step that was saved.
    #[must_use]
    pub fn step(&self) -> u64 {
        self.manifest.step
    }

    /// Returns the names of all tensors in alphabetical order.
    pub fn tensors(&self) -> impl Iterator<Item = &str> {
        self.manifest.tensors.keys().map(String::as_str)
    }

    /// Returns the shape and the element type of a tensor.
    ///
    /// # Errors
    /// [`Error::Missing`].
    pub fn shape(&self, name: &str) -> Result<(&[usize], DType)> {
        let entry = self.entry(name)?;
        Ok((&entry.shape, self.dtype(entry)?))
    }

    /// Reads a whole tensor in row-major order.
    ///
    /// # Errors
    /// [`Error::Missing`]; [`Error::Length`] if the buffer has another number of elements and
    /// [`Error::WrongType`] if it has another type; [`Error::Corrupt`] and [`Error::Io`], after
    /// which the contents of the buffer are unspecified.
    pub fn read(&self, name: &str, buffer: &mut (impl AsViewMut + ?Sized)) -> Result<()> {
        let buffer = buffer.as_view_mut()?;
        let (expected, got) = (elements(self.entry(name)?), buffer.len());
        if expected != got {
            return Err(Error::Length { name: name.to_owned(), expected, got });
        }
        self.read_view(name, 0, buffer)
    }

    /// Reads elements of a tensor in row-major order, beginning at `start`, until the buffer is
    /// full. The range need not match the parts that the ranks saved.
    ///
    /// # Errors
    /// As [`Checkpoint::read`]; [`Error::Length`] if the range ends beyond the tensor.
    pub fn read_range(&self, name: &str, start: usize, buffer: &mut (impl AsViewMut + ?Sized)) -> Result<()> {
        self.read_view(name, start, buffer.as_view_mut()?)
    }

    fn read_view(&self, name: &str, start: usize, buffer: HostViewMut<'_>) -> Result<()> {
        let entry = self.entry(name)?;
        let (expected, got) = (self.dtype(entry)?, buffer.dtype());
        if expected != got {
            return Err(Error::WrongType { name: name.to_owned(), expected, got });
        }
        let (left, got) = (elements(entry).saturating_sub(start), buffer.len());
        if got > left {
            return Err(Error::Length { name: name.to_owned(), expected: left, got });
        }
        let (size, wanted) = (expected.size(), start..start + got);
        let bytes = buffer.into_bytes();
        for shard in &entry.shards {
            let held = &shard.elements;
            let part = wanted.start.max(held.start)..wanted.end.min(held.end);
            if part.is_empty() {
                continue;
            }
            let path = self.folder.join(&self.manifest.files[shard.file].name);
            let range = size * (part.start - held.start)..size * (part.end - held.start);
            let into = &mut bytes[size * (part.start - start)..size * (part.end - start)];
            shard::read(&path, name, shard, size * held.len(), range, into)?;
        }
        Ok(())
    }

    /// Returns a value.
    ///
    /// # Errors
    /// [`Error::Missing`]; [`Error::Value`] if it is not a `T`.
    pub fn value<T: DeserializeOwned>(&self, name: &str) -> Result<T> {
        let missing = || Error::Missing { name: name.to_owned() };
        let value = self.manifest.values.get(name).ok_or_else(missing)?;
        serde_json::from_value(value.clone())
            .map_err(|source| Error::Value { name: name.to_owned(), source: Arc::new(source) })
    }

    fn entry(&self, name: &str) -> Result<&Entry> {
        self.manifest.tensors.get(name).ok_or_else(|| Error::Missing { name: name.to_owned() })
    }

    fn dtype(&self, entry: &Entry) -> Result<DType> {
        let unknown = || Error::corrupt(&self.folder, format!("unknown element type {:?}", entry.dtype));
        dtype::from_safetensors(entry.dtype).ok_or_else(unknown)
    }
}

fn elements(entry: &Entry) -> usize {
    entry.shape.iter().product()
}
