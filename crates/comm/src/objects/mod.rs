//! Collectives of whatever [serde](https://serde.rs) can serialize: configurations, statistics, lists of names.
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
//!     let settings: Settings = comm.broadcast_object(0, (comm.rank() == 0).then(read).as_ref()).unwrap();
//!     assert_eq!(settings, read());
//!
//!     let names = comm.all_gather_object(&format!("{} on rank {}", settings.run, comm.rank())).unwrap();
//!     assert_eq!(names, ["first on rank 0", "first on rank 1", "first on rank 2"]);
//! })?;
//! # Ok::<_, comm::Error>(())
//! ```
//!
//! Objects differ in size from rank to rank, so each of these calls is two collectives: one of sizes, one of bytes. They
//! are for what is small and rare. Numbers by the million belong in the collectives of [`Comm`], which neither encode nor
//! allocate.
//!
//! # Encoding
//!
//! Objects travel as MessagePack, with the names of fields. It describes itself, so that ranks whose types differ get an
//! error instead of nonsense, and serde's attributes (`flatten`, `untagged`, `skip_serializing_if`) work. As in JSON, an
//! `Option` directly inside an `Option`, and `Some(())`, come out as `None`. A `Vec<u8>` takes up to two bytes per byte
//! unless it is marked with `serde_bytes`.

mod codec;
mod error;
mod sizes;

use comm_core::{Collective, Comm, Received, Signature, Source, TagMatch};
use serde_core::Serialize;
use serde_core::de::DeserializeOwned;

pub use error::{ObjectError, ObjectFailure};
use sizes::Sizes;

/// How many bytes all objects of a call may have together, once encoded, unless the caller says otherwise: 4 GiB.
pub const OBJECT_LIMIT: u64 = 4 << 30;

/// Collectives of objects, for [`Comm`].
///
/// Every rank makes the same calls in the same order, as with any other collective, and an algorithm that the handle
/// names must be one for all collectives that a call is made of. Each collective has the timeout of the handle.
///
/// All ranks, those that sent included, get objects as they come out of their encoding, so all hold the same.
///
/// # Errors
/// What goes wrong before objects move is told to every rank in the same call, and the communicator stays usable:
///
/// - the rank whose object cannot be encoded gets [`ObjectError::Encode`], a root that does not give the objects that it
///   must gets [`ObjectError::Count`], and all others [`ObjectError::Peer`] with that rank;
/// - if the objects are larger than the limit, every rank gets [`ObjectError::TooLarge`], before anything is allocated.
///
/// A rank that cannot decode an object gets [`ObjectError::Decode`] with the rank that sent it. Nobody else learns of
/// that, and the communicator stays usable. What else can go wrong is [`ObjectError::Comm`].
pub trait ObjectCollectives: endpoint::Endpoint {
    /// A handle to the same communicator on which all objects of a call may have this many bytes together, once encoded,
    /// instead of [`OBJECT_LIMIT`]. Every rank must give the same limit; otherwise they get
    /// [`Error::Desync`](comm_core::Error::Desync).
    #[must_use]
    fn with_object_limit(&self, bytes: u64) -> LimitedObjects {
        LimitedObjects { comm: self.comm().clone(), limit: bytes }
    }

    /// Every rank gets `root`'s object. What other ranks give is ignored.
    ///
    /// Two broadcasts: of the size, and of the object.
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

    /// `root` gets the objects of all ranks, in rank order; the others get nothing.
    ///
    /// An all-gather of the sizes, so that every rank knows of failures, and a gather of the objects.
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

    /// Every rank gets the objects of all ranks, in rank order.
    ///
    /// Two all-gathers: of the sizes, and of the objects.
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
    /// [`ObjectError::Encode`], [`ObjectError::TooLarge`] before anything is sent, and as [`Comm::send`].
    fn send_object<T: Serialize>(&self, to: usize, tag: u64, object: &T) -> Result<(), ObjectError> {
        let (bytes, _) = codec::encode_all([object], 1)?;
        self.check_size(self.comm().rank(), bytes.len())?;
        Ok(self.comm().send(to, tag, &bytes)?)
    }

    /// Receives an object that a rank sent with [`ObjectCollectives::send_object`], and tells its source and tag.
    ///
    /// # Errors
    /// [`ObjectError::TooLarge`] for a message that is larger than the limit, which is not received;
    /// [`ObjectError::Decode`], and as [`Comm::recv_vec`].
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

    /// Every rank gets one of `root`'s objects: that with its rank, of as many as there are ranks. What other ranks give
    /// is ignored.
    ///
    /// A broadcast of the sizes, so that every rank knows of failures, and a scatter of the objects.
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

/// A handle to a communicator with a limit of its own for the size of objects. See
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

        /// Refuses an encoded object that is larger than the limit.
        fn check_size(&self, rank: usize, bytes: usize) -> Result<(), ObjectError> {
            let (bytes, limit) = (bytes as u64, self.limit());
            if bytes > limit { Err(ObjectError::TooLarge { rank, bytes, limit }) } else { Ok(()) }
        }

        /// A handle whose collectives only agree with those of the same kind of call with the same limit.
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
