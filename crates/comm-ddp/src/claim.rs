//! The agreement of ranks on the state with which they continue.

use std::array;

use comm_core::{Comm, Membership};

use crate::consensus::minority;
use crate::shard_state::{Content, ShardState};
use crate::{Error, Result};

/// The number of states that a rank may hold: the last one, and those that an update and a rejoin
/// have computed without knowing whether all ranks did.
const STATES: usize = 3;

/// The number of words of a [`StateId`].
const ID: usize = 7;

/// The number of words of a [`Claim`].
const WORDS: usize = 3 + STATES * ID;

/// The states that a rank holds, as it reports them to the others.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Claim {
    /// Whether this rank cannot continue, because of an error in its arguments.
    pub(crate) refuses: bool,
    /// A digest of the names of states of all parameters.
    pub(crate) digest: u64,
    /// Whether this rank has the parameters that belong to its last state.
    pub(crate) has_parameters: bool,
    /// The last state first.
    pub(crate) states: [StateId; STATES],
}

/// Identifies a state, and the part of it that a rank holds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct StateId {
    pub(crate) content: Content,
    pub(crate) rejoins: u64,
    pub(crate) steps: u64,
    pub(crate) member: Membership,
    pub(crate) has_replica: bool,
    pub(crate) has_masters: bool,
}

/// The state with which all ranks continue, and the ranks that have it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Takeover {
    /// The state; `None` if all ranks are new and the run begins.
    pub(crate) target: Option<StateId>,
    /// A rank that has its parameters.
    pub(crate) root: usize,
    /// The rank that sends the block of each rank among which it was divided.
    pub(crate) sources: Vec<usize>,
    /// The number of groups in which the run will have continued.
    pub(crate) rejoins: u64,
}

impl StateId {
    /// Returns the identity of a state.
    pub(crate) const fn of<T>(state: &ShardState<T>) -> Self {
        let ShardState { content, rejoins, steps, member, has_replica, has_masters, .. } = *state;
        Self { content, rejoins, steps, member, has_replica, has_masters }
    }

    /// Returns the identity of a state that does not exist.
    pub(crate) const NONE: Self = Self {
        content: Content::None,
        rejoins: 0,
        steps: 0,
        member: Membership { rank: 0, size: 1 },
        has_replica: false,
        has_masters: false,
    };

    /// Returns whether this is the same state, on the same or another rank.
    pub(crate) fn is_part_of(&self, other: &Self) -> bool {
        let key = |id: &Self| (id.content, id.rejoins, id.steps, id.member.size);
        self.content == Content::Complete && key(self) == key(other)
    }

    fn is_complete(&self) -> bool {
        self.content == Content::Complete
    }

    const fn to_words(self) -> [u64; ID] {
        let Self { content, rejoins, steps, member, has_replica, has_masters } = self;
        let content = match content {
            Content::None => 0,
            Content::Partial => 1,
            Content::Complete => 2,
        };
        let Membership { rank, size } = member;
        [content, rejoins, steps, rank as u64, size as u64, has_replica as u64, has_masters as u64]
    }

    const fn from_words(words: [u64; ID]) -> Self {
        let [content, rejoins, steps, rank, size, has_replica, has_masters] = words;
        let content = match content {
            0 => Content::None,
            1 => Content::Partial,
            _ => Content::Complete,
        };
        let member = Membership { rank: rank as usize, size: size as usize };
        Self { content, rejoins, steps, member, has_replica: has_replica != 0, has_masters: has_masters != 0 }
    }
}

impl Claim {
    /// Returns the claims of all ranks. This is a collective.
    pub(crate) fn all_gather(&self, comm: &Comm) -> Result<Vec<Self>> {
        let mut all = vec![0; WORDS * comm.size()];
        comm.all_gather(&self.to_words()[..], &mut all)?;
        Ok(all.as_chunks::<WORDS>().0.iter().map(Self::from_words).collect())
    }

    fn to_words(&self) -> [u64; WORDS] {
        let head = [u64::from(self.refuses), self.digest, u64::from(self.has_parameters)];
        let mut words = head.into_iter().chain(self.states.iter().flat_map(|id| id.to_words()));
        array::from_fn(|_| words.next().unwrap_or_default())
    }

    fn from_words(words: &[u64; WORDS]) -> Self {
        let mut words = words.iter().copied();
        let mut next = || words.next().unwrap_or_default();
        let (refuses, digest, has_parameters) = (next() != 0, next(), next() != 0);
        let states = array::from_fn(|_| StateId::from_words(array::from_fn(|_| next())));
        Self { refuses, digest, has_parameters, states }
    }

    /// Returns the part of a state that this rank holds.
    fn part_of(&self, target: &StateId) -> Option<&StateId> {
        self.states.iter().find(|id| id.is_part_of(target))
    }
}

/// Chooses the state with which ranks continue, the same on every rank because the claims are.
///
/// This is the most recent one that some rank has made its last. A rank does that only when it
/// knows that all ranks have computed this state, so all have it.
///
/// # Errors
/// [`Error::Refused`], [`Error::Diverged`] and [`Error::StateLost`].
pub(crate) fn choose(claims: &[Claim]) -> Result<Takeover> {
    let refusing = ranks_of(claims, |claim| claim.refuses);
    if !refusing.is_empty() {
        return Err(Error::Refused { ranks: refusing });
    }
    let digests: Vec<u64> = claims.iter().map(|claim| claim.digest).collect();
    if let Some((_, ranks)) = minority(&digests) {
        return Err(Error::Diverged { name: "the names of the states of the optimizer".into(), ranks });
    }
    let known = claims.iter().flat_map(|claim| &claim.states);
    let rejoins = 1 + known.map(|id| id.rejoins).max().unwrap_or_default();
    let last = claims.iter().map(|claim| claim.states[0]);
    let target = last.clone().filter(StateId::is_complete).max_by_key(|id| (id.rejoins, id.steps));
    let Some(target) = target else {
        let partial = last.filter(|id| id.content == Content::Partial);
        let mut ranks: Vec<usize> = partial.map(|id| id.member.rank).collect();
        ranks.sort_unstable();
        let begins = Takeover { target: None, root: 0, sources: Vec::new(), rejoins };
        return if ranks.is_empty() { Ok(begins) } else { Err(Error::StateLost { ranks }) };
    };
    let sources = find_sources(claims, &target)?;
    let has_parameters = |claim: &Claim| claim.has_parameters && claim.states[0].is_part_of(&target);
    let Some(root) = claims.iter().position(has_parameters) else {
        return Err(Error::StateLost { ranks: (0..target.member.size).collect() });
    };
    Ok(Takeover { target: Some(target), root, sources, rejoins })
}

/// Returns the rank that has the block of each former rank: that rank itself, or the one with its
/// copy.
fn find_sources(claims: &[Claim], target: &StateId) -> Result<Vec<usize>> {
    let size = target.member.size;
    let holder = |former: usize, is_copy: bool| {
        let rank = if is_copy { (former + 1) % size } else { former };
        let holds = |id: &StateId| id.member.rank == rank && (id.has_replica || !is_copy);
        claims.iter().position(|claim| claim.part_of(target).is_some_and(holds))
    };
    let found: Vec<Option<usize>> =
        (0..size).map(|former| holder(former, false).or_else(|| holder(former, true))).collect();
    let lost: Vec<usize> = (0..size).filter(|former| found[*former].is_none()).collect();
    if lost.is_empty() {
        Ok(found.into_iter().flatten().collect())
    } else {
        Err(Error::StateLost { ranks: lost })
    }
}

fn ranks_of(claims: &[Claim], condition: impl Fn(&Claim) -> bool) -> Vec<usize> {
    (0..claims.len()).filter(|rank| condition(&claims[*rank])).collect()
}
