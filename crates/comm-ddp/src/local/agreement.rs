//! The agreement of ranks that begin or continue to train together.

use comm_core::Comm;

use super::options::{SETTINGS, Setting};
use crate::consensus::minority;
use crate::{Disagreement, Error, LocalOptions, ParameterSet, Result, check_parameters};

/// The state of a rank before it joins a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct JoinState {
    /// Whether the rank cannot join, because its arguments are wrong.
    pub(super) refuses: bool,
    /// Whether the rank has global parameters.
    pub(super) has_state: bool,
    /// Whether the rank's last group failed, so that it may lack the last outer steps.
    pub(super) has_failed: bool,
    pub(super) inner_steps: u64,
    /// The number of outer gradients that were averaged.
    pub(super) averages: u64,
    /// A digest of the global parameters, the momentum, and the averages that are not yet applied.
    pub(super) digest: u64,
}

/// The number of words of a join state and the settings.
const WORDS: usize = SETTINGS + 4;

impl JoinState {
    /// The state of a new rank.
    pub(super) const NEW: Self =
        Self { refuses: false, has_state: false, has_failed: false, inner_steps: 0, averages: 0, digest: 0 };

    fn to_words(self) -> [u64; 4] {
        let flags =
            u64::from(self.refuses) | u64::from(self.has_state) << 1 | u64::from(self.has_failed) << 2;
        [flags, self.inner_steps, self.averages, self.digest]
    }

    const fn from_words([flags, inner_steps, averages, digest]: [u64; 4]) -> Self {
        Self {
            refuses: flags & 1 != 0,
            has_state: flags & 2 != 0,
            has_failed: flags & 4 != 0,
            inner_steps,
            averages,
            digest,
        }
    }

    /// Returns whether two ranks have the same state.
    pub(super) const fn agrees(&self, other: &Self) -> bool {
        self.has_state && other.has_state && self.averages == other.averages && self.digest == other.digest
    }
}

/// Compares the parameters and settings of all ranks. Returns their states, in rank order.
///
/// # Errors
/// The same on every rank: [`Error::Mismatch`], [`Error::Refused`], [`Error::Disagreement`] and
/// [`Error::Setting`]; [`Error::Comm`].
pub(super) fn agree(
    comm: &Comm,
    parameters: &ParameterSet,
    options: &LocalOptions,
    state: JoinState,
) -> Result<Vec<JoinState>> {
    check_parameters(comm, parameters)?;
    let settings = options.settings();
    let mut own = [0; WORDS];
    own[..4].copy_from_slice(&state.to_words());
    own.iter_mut().skip(4).zip(&settings).for_each(|(word, setting)| *word = setting.word);
    let mut all = vec![0; WORDS * comm.size()];
    comm.all_gather(&own, &mut all)?;
    let (all, _) = all.as_chunks::<WORDS>();
    let states: Vec<JoinState> =
        all.iter().map(|[a, b, c, d, ..]| JoinState::from_words([*a, *b, *c, *d])).collect();
    let ranks = ranks_of(&states, |state| state.refuses);
    if !ranks.is_empty() {
        return Err(Error::Refused { ranks });
    }
    for (at, setting) in settings.iter().enumerate() {
        let words: Vec<u64> = all.iter().map(|words| words[4 + at]).collect();
        compare(setting, &words)?;
    }
    options.check(parameters.len())?;
    Ok(states)
}

/// Returns the rank from whose state all others continue, which is the most advanced one, or `None`
/// if all ranks are new.
///
/// # Errors
/// The same on every rank: [`Error::Disagreement`] or [`Error::Diverged`] if a rank has another
/// state, although its last group has not failed.
pub(super) fn find_leader(states: &[JoinState]) -> Result<Option<usize>> {
    let advance = |rank: &usize| (states[*rank].averages, !states[*rank].has_failed);
    let with_state = || (0..states.len()).filter(|&rank| states[rank].has_state);
    let Some(leader) = with_state().rev().max_by_key(advance) else { return Ok(None) };
    let others = with_state().filter(|&rank| rank == leader || !states[rank].has_failed);
    let ranks: Vec<usize> = others.collect();
    let words = |word: fn(&JoinState) -> u64| ranks.iter().map(|&rank| word(&states[rank])).collect();
    let count = |name| Setting { name, word: 0, text: |word| word.to_string() };
    let averages: Vec<u64> = words(|state| state.averages);
    let inner_steps: Vec<u64> = words(|state| state.inner_steps);
    for (name, words) in [("the number of outer steps", averages), ("the number of inner steps", inner_steps)]
    {
        compare(&count(name), &words).map_err(|error| in_group(error, &ranks))?;
    }
    let digests: Vec<u64> = words(|state| state.digest);
    match minority(&digests) {
        None => Ok(Some(leader)),
        Some((_, odd)) => Err(Error::Diverged {
            name: "global parameters".to_owned(),
            ranks: odd.into_iter().map(|at| ranks[at]).collect(),
        }),
    }
}

/// Returns an error if ranks have different values.
fn compare(setting: &Setting, words: &[u64]) -> Result<()> {
    let Some((reference, odd)) = minority(words) else { return Ok(()) };
    let text = setting.text;
    let found = odd.first().map_or(0, |&rank| words[rank]);
    // Ranks can differ in several ways; the error names those that differ in the same way as the
    // first.
    let ranks = odd.into_iter().filter(|&rank| words[rank] == found).collect();
    let (expected, found) = (text(words[reference]), text(found));
    Err(Error::Disagreement(Box::new(Disagreement { what: setting.name, expected, found, ranks, reference })))
}

/// Replaces positions in a list of ranks by the ranks.
fn in_group(error: Error, group: &[usize]) -> Error {
    let Error::Disagreement(mut found) = error else { return error };
    found.reference = group[found.reference];
    found.ranks.iter_mut().for_each(|rank| *rank = group[*rank]);
    Error::Disagreement(found)
}

fn ranks_of(states: &[JoinState], condition: impl Fn(&JoinState) -> bool) -> Vec<usize> {
    (0..states.len()).filter(|&rank| condition(&states[rank])).collect()
}
