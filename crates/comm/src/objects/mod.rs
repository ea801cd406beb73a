//! Collectives of any type that [serde](https://serde.rs) can serialize: configurations,
//! statistics, lists of names.
//!
#![cfg_attr(feature = "sim", doc = "```")]
#![cfg_attr(not(feature = "sim"), doc = "```ignore")]
//! use comm::ObjectCollectives;
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Debug, PartialEq, Serialize, Deserialize)]
//! struct Settings {
//!     run: String,
//!     rates: Vec<f64>,
//! }
//!
//! comm::threads::run(3, |comm| {
//!     let read = || Settings { run: "first".into(), rates: vec![0.1, 0.01] };
//!     let mine = (comm.rank() == 0).then(read);
//!     let settings: Settings = comm.broadcast_object(0, mine.as_ref()).unwrap();
//!     assert_eq!(settings, read());
//!
//!     let name = format!("{} on rank {}", settings.run, comm.rank());
//!     let names = comm.all_gather_object(&name).unwrap();
//!     assert_eq!(names, ["first on rank 0", "first on rank 1", "first on rank 2"]);
//! })?;
//! # Ok::<_, comm::Error>(())
//! ```
//!
//! Each of these calls performs two collectives, one for the sizes and one for the bytes, because objects differ in size
//! from rank to rank. Use them for small, infrequent data, and the collectives of [`Comm`], which neither encode nor
//! allocate, for large arrays.
//!
//! # Encoding
//!
//! Objects are encoded as MessagePack with field names. The format is self-describing, so ranks with different types get an
//! error instead of wrong values, and serde's attributes (`flatten`, `untagged`, `skip_serializing_if`) work. As in JSON,
//! `Some(None)` and `Some(())` are decoded as `None`. A `Vec<u8>` takes up to two bytes per byte unless it is marked
//! with `serde_bytes`.

mod codec;
mod error;
mod sizes;

use comm_core::{Collective, Comm, Received, Signature, Source, TagMatch};
use serde_core::Serialize;
use serde_core::de::DeserializeOwned;

pub use error::{ObjectError, ObjectFailure};
use sizes::Sizes;

/// The default limit for the total size of the encoded objects of a call, in bytes: 4 GiB.
pub const OBJECT_LIMIT: u64 = 4 << 30;

/// Collectives of objects, for [`Comm`].
///
/// Every rank makes the same calls in the same order, as with any other collective. If the handle
/// sets an algorithm, both collectives of a call must support it. The handle's timeout applies to
/// each collective.
///
/// All ranks, including the senders, get decoded copies of the objects, so all hold the same
/// values.
///
/// # Errors
/// An error before the objects are sent is returned by every rank in the same call, and the
/// communicator stays usable:
///
/// - the rank whose object cannot be encoded gets [`ObjectError::Encode`], a root that passes the
///   wrong number of objects gets [`ObjectError::Count`], and all other ranks get
///   [`ObjectError::Peer`] with that rank;
/// - if the objects are larger than the limit, every rank gets [`ObjectError::TooLarge`], before
///   anything is allocated.
///
/// A rank that cannot decode an object gets [`ObjectError::Decode`] with the rank that sent it. No
/// other rank is notified, and the communicator stays usable. All other errors are
/// [`ObjectError::Comm`].
pub trait ObjectCollectives: endpoint::Endpoint {
    /// Returns a handle to the same communicator with another limit than [`OBJECT_LIMIT`] for the
    /// total size of the encoded objects of a call. The limit must be equal on every rank;
    /// otherwise the ranks get [`Error::Desync`](comm_core::Error::Desync).
    #[must_use]
    fn with_object_limit(&self, bytes: u64) -> LimitedObjects {
        LimitedObjects { comm: self.comm().clone(), limit: bytes }
    }

    /// Returns the object of `root` on every rank. The arguments of other ranks are ignored.
    ///
    /// Performs two broadcasts: of the size, and of the object.
    ///
    /// # Errors
    /// As written at [`ObjectCollectives`].
    fn broadcast_object<T>(&self, root: usize, object: Option<&T>) -> Result<T, ObjectError>
    where
        T: Serialize + DeserializeOwned,
    {
        let comm = self.agreeing(Collective::Broadcast);
        comm.group().check_root(root)?;
        let own = (comm.rank() == root).then(|| codec::encode_all(object, 1));
        let sizes = Sizes::of_root(&comm, root, 1, own.as_ref())?;
        let own = own.transpose()?;
        let counts = sizes.agreed(self.limit())?;
        let mut bytes = own.map_or_else(|| vec![0; counts[0]], |(bytes, _)| bytes);
        comm.broadcast(root, &mut bytes)?;
        codec::decode(root, &bytes)
    }

    /// Returns the objects of all ranks on `root`, in rank order, and `None` on the other ranks.
    ///
    /// Performs an all-gather of the sizes, so that every rank learns of failures, and a gather of
    /// the objects.
    ///
    /// # Errors
    /// As written at [`ObjectCollectives`].
    fn gather_object<T>(&self, root: usize, object: &T) -> Result<Option<Vec<T>>, ObjectError>
    where
        T: Serialize + DeserializeOwned,
    {
        let comm = self.agreeing(Collective::Gather);
        comm.group().check_root(root)?;
        let own = codec::encode_all(Some(object), 1);
        let sizes = Sizes::of_all(&comm, &own)?;
        let (own, _) = own?;
        let counts = sizes.agreed(self.limit())?;
        if comm.rank() != root {
            comm.gather_v(root, &own, &mut [], &[])?;
            return Ok(None);
        }
        let mut bytes = vec![0; counts.iter().sum()];
        comm.gather_v(root, &own, &mut bytes, &counts)?;
        codec::decode_all(&bytes, &counts).map(Some)
    }

    /// Returns the objects of all ranks on every rank, in rank order.
    ///
    /// Performs two all-gathers: of the sizes, and of the objects.
    ///
    /// # Errors
    /// As written at [`ObjectCollectives`].
    fn all_gather_object<T>(&self, object: &T) -> Result<Vec<T>, ObjectError>
    where
        T: Serialize + DeserializeOwned,
    {
        let comm = self.agreeing(Collective::AllGather);
        let own = codec::encode_all(Some(object), 1);
        let sizes = Sizes::of_all(&comm, &own)?;
        let (own, _) = own?;
        let counts = sizes.agreed(self.limit())?;
        let mut bytes = vec![0; counts.iter().sum()];
        comm.all_gather_v(&own, &mut bytes, &counts)?;
        codec::decode_all(&bytes, &counts)
    }

    /// Sends an object to rank `to`, which receives it with [`ObjectCollectives::recv_object`].
    ///
    /// # Errors
    /// [`ObjectError::Encode`], [`ObjectError::TooLarge`] before anything is sent, and as
    /// [`Comm::send`].
    fn send_object<T: Serialize>(&self, to: usize, tag: u64, object: &T) -> Result<(), ObjectError> {
        let (bytes, _) = codec::encode_all([object], 1)?;
        self.check_size(self.comm().rank(), bytes.len())?;
        Ok(self.comm().send(to, tag, &bytes)?)
    }

    /// Receives an object sent with [`ObjectCollectives::send_object`], and returns it with its
    /// source and tag.
    ///
    /// # Errors
    /// [`ObjectError::TooLarge`] for a message that is larger than the limit, which is not
    /// received; [`ObjectError::Decode`], and as [`Comm::recv_vec`].
    fn recv_object<T: DeserializeOwned>(
        &self,
        from: impl Into<Source>,
        tag: impl Into<TagMatch>,
    ) -> Result<(T, Received), ObjectError> {
        let (from, tag) = (from.into(), tag.into());
        let probed = self.comm().probe(from, tag)?;
        self.check_size(probed.source, probed.len)?;
        let (bytes, received) = self.comm().recv_vec::<u8>(from, tag)?;
        Ok((codec::decode(received.source, &bytes)?, received))
    }

    /// Returns on rank `i` the `i`th of `root`'s objects; `root` passes one for each rank. The
    /// arguments of other ranks are ignored.
    ///
    /// Performs a broadcast of the sizes, so that every rank learns of failures, and a scatter of
    /// the objects.
    ///
    /// # Errors
    /// As written at [`ObjectCollectives`].
    fn scatter_object<T>(&self, root: usize, objects: Option<&[T]>) -> Result<T, ObjectError>
    where
        T: Serialize + DeserializeOwned,
    {
        let comm = self.agreeing(Collective::Scatter);
        comm.group().check_root(root)?;
        let own =
            (comm.rank() == root).then(|| codec::encode_all(objects.into_iter().flatten(), comm.size()));
        let sizes = Sizes::of_root(&comm, root, comm.size(), own.as_ref())?;
        let (own, _) = own.transpose()?.unwrap_or_default();
        let counts = sizes.agreed(self.limit())?;
        let mut bytes = vec![0; counts[comm.rank()]];
        comm.scatter_v(root, &own, &mut bytes, &counts)?;
        codec::decode(root, &bytes)
    }
}

impl ObjectCollectives for Comm {}

/// A handle to a communicator with its own limit for the size of objects. Created by
/// [`ObjectCollectives::with_object_limit`].
#[derive(Debug, Clone)]
pub struct LimitedObjects {
    comm: Comm,
    limit: u64,
}

impl ObjectCollectives for LimitedObjects {}

mod endpoint {
    use super::{Collective, Comm, LimitedObjects, OBJECT_LIMIT, ObjectError, Signature};

    /// Marks the extra fingerprint of a call of objects: their name in ASCII, little-endian.
    const MARK: u64 = 0x0073_7463_656a_626f;

    /// A communicator and a limit.
    pub trait Endpoint {
        fn comm(&self) -> &Comm;

        fn limit(&self) -> u64;

        /// Returns an error if an encoded object is larger than the limit.
        fn check_size(&self, rank: usize, bytes: usize) -> Result<(), ObjectError> {
            let (bytes, limit) = (bytes as u64, self.limit());
            if bytes > limit { Err(ObjectError::TooLarge { rank, bytes, limit }) } else { Ok(()) }
        }

        /// Returns a handle whose collectives match only collectives of the same object call with
        /// the same limit.
        fn agreeing(&self, kind: Collective) -> Comm {
            let detail = [MARK, u64::from(kind.code()), self.limit(), self.comm().extra_fingerprint()];
            self.comm().with_extra_fingerprint(Signature::fingerprint_of(detail))
        }
    }

    impl Endpoint for Comm {
        fn comm(&self) -> &Comm {
            self
        }

        fn limit(&self) -> u64 {
            OBJECT_LIMIT
        }
    }

    impl Endpoint for LimitedObjects {
        fn comm(&self) -> &Comm {
            &self.comm
        }

        fn limit(&self) -> u64 {
            self.limit
        }
    }
}
