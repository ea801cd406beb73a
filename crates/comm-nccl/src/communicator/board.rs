//! What ranks tell each other apart from NCCL, which compares nothing and passes nothing on: through the store in which they
//! met. Two things: which call a rank has been waiting in for long, and why one has given up.

use std::sync::Arc;
use std::time::Duration;

use comm_core::wire::{self, Reader};
use comm_core::{Error, Group, GroupId, Result, Signature, Store};

/// How many others a rank looks at, so that a large group in trouble does not bring down its store.
const PEERS_MAX: usize = 64;

/// The place in a store where the ranks of one group write.
#[derive(Clone)]
pub(super) struct Board {
    store: Arc<dyn Store>,
    place: String,
    group: Group,
}

/// The call that a rank waits in, by its number among the collectives.
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
    pub(super) const fn new(store: Arc<dyn Store>, place: String, group: Group) -> Self {
        Self { store, place, group }
    }

    /// Where those of its ranks meet that are left: apart from others who have another host in mind, their lowest rank.
    pub(super) fn place_of(&self, members: &[usize]) -> (&dyn Store, String) {
        let host = members.iter().min().unwrap_or(&0);
        (&*self.store, format!("{}/left/{host}", self.place))
    }

    /// That of those that are left and have met.
    pub(super) fn of_those_left(&self, place: String, group: Group) -> Self {
        Self { store: Arc::clone(&self.store), place, group }
    }

    /// That of a group made of this one.
    pub(super) fn of_group(&self, group: Group) -> Self {
        let GroupId(id) = group.id();
        Self { store: Arc::clone(&self.store), place: format!("{}/{id:x}", self.place), group }
    }

    /// Writes down which call this rank waits in.
    pub(super) fn announce(&self, announcement: &Announcement) -> Result<()> {
        self.store.set(&self.seat(self.group.rank()), &announcement.encode())
    }

    /// What others have announced last, each with its rank.
    pub(super) fn announced(&self) -> Result<Vec<(usize, Announcement)>> {
        let (rank, size) = (self.group.rank(), self.group.size());
        let peers = (1..size).take(PEERS_MAX).map(|step| (rank + step) % size);
        let said = peers.map(|peer| {
            let said = self.look(&self.seat(peer))?;
            Ok(said.and_then(|bytes| Announcement::decode(&bytes).ok()).map(|said| (peer, said)))
        });
        said.filter_map(Result::transpose).collect()
    }

    /// Writes down that this rank has given up, and why; unless another was first.
    pub(super) fn give_up(&self, reason: &str) -> Result<()> {
        let bytes = wire::encode(|to| _ = to.size::<u64>(self.group.rank()).raw(reason.as_bytes()));
        self.store.compare_set(&self.end(), &[], &bytes).map(drop)
    }

    /// The first rank that has given up, if any has, with its reason.
    pub(super) fn given_up(&self) -> Result<Option<Error>> {
        let Some(bytes) = self.look(&self.end())? else { return Ok(None) };
        let mut r = Reader::new(&bytes);
        let Ok(by) = r.size::<u64>() else { return Ok(None) };
        Ok(Some(Error::Aborted { by, reason: String::from_utf8_lossy(r.rest()).into_owned() }))
    }

    /// Removes what this rank has announced.
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
