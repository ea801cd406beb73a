//! The state that a rank saves.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use comm_core::{AsView, DType, Shape};
use serde::Serialize;

use crate::{Error, Result, dtype};

/// The state that a rank saves: named tensors and values.
///
/// A *replicated* tensor ([`State::tensor`]) is equal on all ranks, and one of them writes it. The
/// elements of a *sharded* tensor ([`State::shard`]) are divided among the ranks, for example the
/// moments of a sharded optimizer. Values are anything that serde can convert to JSON: counters,
/// the state of a sampler or a loss scaler. The values of rank 0 are saved.
///
/// A `State` borrows the buffers.
#[derive(Debug, Clone, Default)]
pub struct State<'a> {
    pub(crate) tensors: BTreeMap<String, Tensor<'a>>,
    pub(crate) values: BTreeMap<String, serde_json::Value>,
}

/// A tensor, or the part of it that a rank holds.
#[derive(Debug, Clone)]
pub(crate) struct Tensor<'a> {
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
    /// The index of the first element of this rank's part, or `None` for a replicated tensor.
    pub(crate) start: Option<usize>,
    pub(crate) bytes: Cow<'a, [u8]>,
}

impl<'a> State<'a> {
    /// Creates an empty state.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tensor that is equal on all ranks. `buffer` holds its elements in row-major order.
    ///
    /// # Errors
    /// [`Error::Length`] if the shape does not have as many elements as the buffer;
    /// [`Error::NameTaken`] and [`Error::Unsupported`].
    pub fn tensor(
        &mut self,
        name: impl Into<String>,
        shape: &[usize],
        buffer: &'a (impl AsView + ?Sized),
    ) -> Result<&mut Self> {
        self.add(name.into(), shape, None, buffer)
    }

    /// Adds the part of a tensor that this rank holds: its elements in row-major order, beginning
    /// at `start`. The parts of all ranks must cover the tensor without overlap; an empty part may
    /// be omitted.
    ///
    /// # Errors
    /// [`Error::Length`] if the part extends beyond the shape; [`Error::NameTaken`] and
    /// [`Error::Unsupported`].
    pub fn shard(
        &mut self,
        name: impl Into<String>,
        shape: &[usize],
        start: usize,
        buffer: &'a (impl AsView + ?Sized),
    ) -> Result<&mut Self> {
        self.add(name.into(), shape, Some(start), buffer)
    }

    /// Adds a value that serde can convert to JSON.
    ///
    /// # Errors
    /// [`Error::Value`] if it cannot be converted; [`Error::NameTaken`].
    pub fn value(&mut self, name: impl Into<String>, value: &impl Serialize) -> Result<&mut Self> {
        let name = name.into();
        match serde_json::to_value(value) {
            Ok(_) if self.values.contains_key(&name) => Err(Error::NameTaken { name }),
            Ok(value) => {
                self.values.insert(name, value);
                Ok(self)
            }
            Err(source) => Err(Error::Value { name, source: Arc::new(source) }),
        }
    }

    fn add(
        &mut self,
        name: String,
        shape: &[usize],
        start: Option<usize>,
        buffer: &'a (impl AsView + ?Sized),
    ) -> Result<&mut Self> {
        let view = buffer.as_view()?;
        let (dtype, got) = (view.dtype(), view.len());
        let elements = shape.iter().try_fold(1, |product: usize, &length| product.checked_mul(length));
        let expected = elements.and_then(|elements| elements.checked_sub(start.unwrap_or(0))).unwrap_or(0);
        if got > expected || (start.is_none() && got != expected) {
            return Err(Error::Length { name, expected, got });
        }
        if dtype::to_safetensors(dtype).is_none() {
            return Err(Error::Unsupported { name, dtype });
        }
        // Safetensors files use this name for metadata.
        if name == "__metadata__" || self.tensors.contains_key(&name) {
            return Err(Error::NameTaken { name });
        }
        let tensor = Tensor { dtype, shape: shape.to_vec(), start, bytes: Cow::Borrowed(view.bytes()) };
        self.tensors.insert(name, tensor);
        Ok(self)
    }

    /// Copies the buffers.
    pub(crate) fn into_owned(self) -> State<'static> {
        let own = |(name, tensor): (String, Tensor<'_>)| {
            let Tensor { dtype, shape, start, bytes } = tensor;
            (name, Tensor { dtype, shape, start, bytes: Cow::Owned(bytes.into_owned()) })
        };
        State { tensors: self.tensors.into_iter().map(own).collect(), values: self.values }
    }
}
