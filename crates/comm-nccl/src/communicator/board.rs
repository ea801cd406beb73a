//! Messages between the ranks of a group through the store in which they met: the calls in which
//! they have waited for long, and the causes of failures. NCCL compares no calls and reports no
//! failures of other ranks.

use std::sync::Arc;
use std::time::Duration;

use comm_core::wire::{self, Reader};
use comm_core::{Error, Group, GroupId, Result, Signature, Store};

use crate::UniqueId;

/// The number of other ranks that a rank reads, so that a large group in trouble does not overload
/// its store.
const PEERS_MAX: usize = 64;

/// The keys in a store under which the ranks of one group write.
#[derive(Clone)]
pub(super) struct Board {
    store: Arc<dyn Store>,
    place: String,
    group: Group,
}

/// The call in which a rank waits, with its number among the collectives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Announcement {
    pub(super) sequence: u64,
    pub(super) call: Signature,
}

impl Announcement {
    fn encode(&self) -> Vec<u8> {
        wire::encode(|to| self.call.encode(to.put(self.sequence)))
    }

    fn decode(bytes: &[u8]) -> wire::Result<Self> {
        wire::decode(bytes, |r| Ok(Self { sequence: r.get()?, call: Signature::decode(r)? }))
    }
}

impl Board {
    /// Returns the board of the ranks that an id connects, which no other group has.
    pub(super) fn new(store: Arc<dyn Store>, id: &UniqueId, group: Group) -> Self {
        Self { store, place: format!("nccl/{:x}", id.fingerprint()), group }
    }

    /// Returns the prefix under which the surviving `members` rendezvous. It contains their lowest
    /// rank, so that ranks with another leader use other keys.
    pub(super) fn place_of(&self, members: &[usize]) -> (&dyn Store, String) {
        let host = members.iter().min().unwrap_or(&0);
        (&*self.store, format!("{}/left/{host}", self.place))
    }

    /// Returns the board of a group made of this one.
    pub(super) fn of_group(&self, group: Group) -> Self {
        let GroupId(id) = group.id();
        Self { store: Arc::clone(&self.store), place: format!("{}/{id:x}", self.place), group }
    }

    /// Writes the call in which this rank waits.
    pub(super) fn announce(&self, announcement: &Announcement) -> Result<()> {
        self.store.set(&self.seat(self.group.rank()), &announcement.encode())
    }

    /// Reads the last announcements of other ranks.
    pub(super) fn announced(&self) -> Result<Vec<(usize, Announcement)>> {
        let (rank, size) = (self.group.rank(), self.group.size());
        let peers = (1..size).take(PEERS_MAX).map(|step| (rank + step) % size);
        let said = peers.map(|peer| {
            let said = self.look(&self.seat(peer))?;
            Ok(said.and_then(|bytes| Announcement::decode(&bytes).ok()).map(|said| (peer, said)))
        });
        said.filter_map(Result::transpose).collect()
    }

    /// Writes the cause of this rank's failure, unless another rank was first.
    pub(super) fn give_up(&self, reason: &str) -> Result<()> {
        let bytes = wire::encode(|to| _ = to.size::<u64>(self.group.rank()).raw(reason.as_bytes()));
        self.store.compare_set(&self.end(), &[], &bytes).map(drop)
    }

    /// Reads the failure of the first rank that has failed.
    pub(super) fn given_up(&self) -> Result<Option<Error>> {
        let Some(bytes) = self.look(&self.end())? else { return Ok(None) };
        let mut r = Reader::new(&bytes);
        let Ok(by) = r.size::<u64>() else { return Ok(None) };
        Ok(Some(Error::Aborted { by, reason: String::from_utf8_lossy(r.rest()).into_owned() }))
    }

    /// Deletes this rank's announcement.
    pub(super) fn leave(&self) -> Result<()> {
        self.store.delete(&self.seat(self.group.rank())).map(drop)
    }

    fn look(&self, key: &str) -> Result<Option<Vec<u8>>> {
        match self.store.get(key, Duration::ZERO) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(Error::Timeout { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn seat(&self, rank: usize) -> String {
        format!("{}/waiting/{rank}", self.place)
    }

    fn end(&self) -> String {
        format!("{}/end", self.place)
    }
}

impl std::fmt::Debug for Board {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Board").field("place", &self.place).finish_non_exhaustive()
    }
}
