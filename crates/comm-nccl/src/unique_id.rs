//! The unique id of a group.

use comm_core::wire::{Reader, Writer};
use comm_core::{Call, CallOptions, Error, HostCommunicator, HostViewMut, Invalid, Result, Signature};

use crate::error::{NCCL, unavailable};
use crate::{Library, handle};

/// NCCL's unique id: 128 bytes with which the ranks of a group connect. One rank creates it and
/// gives it to all.
///
/// It contains an address at which that rank listens, so it can be used for only one group. Anyone
/// who knows it can join.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct UniqueId {
    bytes: [u8; Self::BYTES],
}

impl UniqueId {
    /// The length of an id in bytes.
    pub const BYTES: usize = 128;

    /// Creates a unique id on a rank of the group, which then listens for the others.
    ///
    /// # Errors
    /// [`Error::Backend`] with NCCL's code, for example if there is no usable network interface.
    pub fn generate(library: &Library) -> Result<Self> {
        handle::unique_id(library.nccl())
    }

    pub(crate) const fn new(bytes: [u8; Self::BYTES]) -> Self {
        Self { bytes }
    }

    /// Returns the id with these bytes.
    ///
    /// # Errors
    /// [`Error::Invalid`] unless there are 128 of them.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let refused = || Invalid::Length { what: "the unique id", expected: Self::BYTES, got: bytes.len() };
        Ok(Self { bytes: bytes.try_into().map_err(|_| refused())? })
    }

    /// Creates an id on rank 0 of `host` and broadcasts it. Every rank calls this.
    ///
    /// # Errors
    /// On rank 0 as [`UniqueId::generate`], and then [`Error::BackendUnavailable`] with the reason
    /// on all others; the errors of the broadcast.
    pub fn share(library: &Library, host: &dyn HostCommunicator, options: &CallOptions) -> Result<Self> {
        let made = (host.group().rank() == 0).then(|| Self::generate(library)).transpose();
        // A flag that says whether there is an id, and then the id or the beginning of the error
        // message.
        let mut message = Writer::new();
        match &made {
            Ok(id) => _ = message.put(1_u8).put(id.map_or([0; Self::BYTES], |id| id.bytes)),
            Err(error) => _ = message.put(0_u8).text::<u16>(&error.to_string(), Self::BYTES - 2),
        }
        let mut message: [u8; 1 + Self::BYTES] = message.into_array();
        let call = Call::Broadcast { root: 0, buffer: HostViewMut::new(&mut message) };
        host.run(call, options)?;
        made?;
        let malformed = |error| Error::malformed("the unique id from rank 0", error);
        let mut r = Reader::new(&message);
        if r.flag("flag of an id").map_err(malformed)? {
            return r.get().map(Self::new).map_err(malformed);
        }
        let reason = r.text::<u16>(Self::BYTES).map_err(malformed)?;
        Err(unavailable(NCCL, format!("rank 0 could not create a unique id: {reason}")))
    }

    /// Returns a digest that identifies the id without revealing it.
    pub(crate) fn fingerprint(&self) -> u64 {
        Signature::fingerprint_of(self.bytes.iter().map(|byte| u64::from(*byte)))
    }

    /// Returns the bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; Self::BYTES] {
        &self.bytes
    }
}

/// Omits the bytes: anyone who knows them can join the group.
impl std::fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UniqueId").finish_non_exhaustive()
    }
}
