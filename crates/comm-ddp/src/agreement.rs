//! The agreement before the first step: all ranks train the same model and use the same buckets.

use comm_core::{AsView, AsViewMut, Comm, DType, Kernels, bytemuck, wire};

use crate::{Error, Options, Parameter, ParameterSet, Result, mismatch};

/// Compares names, shapes and element types across all ranks of `comm`. This is a collective: every
/// rank must call it.
///
/// It takes one all-gather of 16 bytes per rank if the models are equal.
///
/// # Errors
/// [`Error::Mismatch`], the same on every rank, if the models differ; [`Error::Comm`] if
/// communication fails.
pub fn check_parameters<M: Kernels>(comm: &Comm<M>, parameters: &ParameterSet) -> Result<()> {
    check_parameters_by(parameters, comm.size(), |own, all| all_gather(comm, own, all))
}

/// Does the same as [`check_parameters`] with a custom all-gather, for memory without
/// [`Kernels`].
///
/// `all_gather` receives the bytes of this rank and a buffer for those of all `size` ranks, all of
/// the same length. It is called with 16 bytes first, and a second time if the models differ.
///
/// # Errors
/// As [`check_parameters`], with the errors of `all_gather` as [`Error::Comm`].
pub fn check_parameters_by(
    parameters: &ParameterSet,
    size: usize,
    all_gather: impl FnMut(&[u8], &mut [u8]) -> comm_core::Result<()>,
) -> Result<()> {
    let description = mismatch::encode(parameters.sorted());
    let Some(descriptions) = gather_unequal_by(&description, size, all_gather)? else { return Ok(()) };
    let models: Vec<Vec<Parameter>> =
        descriptions.iter().map(|bytes| mismatch::decode(bytes).map_err(malformed)).collect::<Result<_>>()?;
    // Unequal fingerprints of equal descriptions would be a bug in the encoding.
    Err(mismatch::find(&models).map_or_else(
        || malformed("it is equal, but its hash is not"),
        |found| Error::Mismatch(Box::new(found)),
    ))
}

/// Returns the descriptions of all ranks, in rank order, or `None` if all are equal. This is a
/// collective.
pub(crate) fn gather_unequal<M: Kernels>(comm: &Comm<M>, description: &[u8]) -> Result<Option<Vec<Vec<u8>>>> {
    gather_unequal_by(description, comm.size(), |own, all| all_gather(comm, own, all))
}

fn gather_unequal_by(
    description: &[u8],
    size: usize,
    mut all_gather: impl FnMut(&[u8], &mut [u8]) -> comm_core::Result<()>,
) -> Result<Option<Vec<Vec<u8>>>> {
    let own: [u8; 16] = wire::words([mismatch::fingerprint(description), description.len() as u64]);
    let mut all = vec![0; 16 * size];
    all_gather(&own, &mut all)?;
    let (all, _) = all.as_chunks::<16>();
    if all.iter().all(|other| *other == own) {
        return Ok(None);
    }
    let length = |other| {
        let [_, length] = wire::read_words(other);
        usize::try_from(length).unwrap_or(usize::MAX)
    };
    let lengths: Vec<usize> = all.iter().map(length).collect();
    let longest = lengths.iter().copied().max().unwrap_or(0);
    let mut own = description.to_vec();
    own.resize(longest, 0);
    let mut all = vec![0_u8; longest * lengths.len()];
    all_gather(&own, &mut all)?;
    let of_rank = |(rank, &len): (usize, &usize)| all[rank * longest..][..len].to_vec();
    Ok(Some(lengths.iter().enumerate().map(of_rank).collect()))
}

/// Gathers the same number of bytes from every rank, in rank order.
pub(crate) fn all_gather<M: Kernels>(comm: &Comm<M>, own: &[u8], all: &mut [u8]) -> comm_core::Result<()> {
    let mut buffer = M::allocate(comm, DType::U8, all.len())?;
    let place = own.len() * comm.rank()..own.len() * (comm.rank() + 1);
    if let Some(place) = M::get_mut(buffer.as_view_mut()?, place) {
        M::write(comm, place, own)?;
    }
    comm.all_gather_in_place(&mut buffer)?;
    M::read(comm, buffer.as_view()?, all)
}

/// Replaces words with rank `root`'s.
fn broadcast<M: Kernels>(comm: &Comm<M>, root: usize, words: &mut [u64]) -> Result<()> {
    let mut buffer = M::allocate(comm, DType::U64, words.len())?;
    M::write(comm, buffer.as_view_mut()?, bytemuck::cast_slice(words))?;
    comm.broadcast(root, &mut buffer)?;
    Ok(M::read(comm, buffer.as_view()?, bytemuck::cast_slice_mut(words))?)
}

/// The rank whose options and order all ranks use.
#[derive(Debug)]
pub(crate) struct Leader {
    pub(crate) rank: usize,
    /// The order of slots in buckets on this rank, which matters only on the leader.
    pub(crate) order: Vec<usize>,
}

impl Leader {
    /// Returns rank 0, with buckets in the reverse order of registration.
    pub(crate) fn first(parameters: &ParameterSet) -> Self {
        Self { rank: 0, order: parameters.slots().iter().rev().copied().collect() }
    }
}

/// Broadcasts the options and the order of the leader.
pub(crate) fn agree_on_options<M: Kernels>(
    comm: &Comm<M>,
    options: Options,
    parameters: &ParameterSet,
    leader: &Leader,
) -> Result<(Options, Vec<usize>)> {
    let mut words = options.to_words();
    broadcast(comm, leader.rank, &mut words)?;
    Ok((options.with_words(words), agree_on_order(comm, leader, parameters.len())?))
}

/// Broadcasts the first `count` slots of the leader's order, padded with slots that do not exist.
pub(crate) fn agree_on_order<M: Kernels>(
    comm: &Comm<M>,
    leader: &Leader,
    count: usize,
) -> Result<Vec<usize>> {
    let mut slots: Vec<u64> = leader.order.iter().map(|&slot| slot as u64).collect();
    slots.resize(count, u64::MAX);
    broadcast(comm, leader.rank, &mut slots)?;
    Ok(slots.into_iter().map(|slot| usize::try_from(slot).unwrap_or(usize::MAX)).collect())
}

fn malformed(reason: impl std::fmt::Display) -> Error {
    comm_core::Error::malformed("the description of another rank's parameters", reason).into()
}
