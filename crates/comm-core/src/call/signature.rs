//! The description of a collective call that ranks compare.

use std::borrow::Cow;

use crate::{Accumulate, Collective, DType, GroupId, ReduceOp, ReduceOrder};

/// The part of a collective call that must be equal on every rank.
///
/// It identifies the call on the wire, in errors, in the history of calls, and in a cache of
/// compiled schedules. Buffers, timeouts and the factor of [`ReduceOp::PreMulSum`] may differ from
/// rank to rank and are not compared.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Signature {
    /// The group that calls.
    pub group: GroupId,
    /// The collective.
    pub collective: Collective,
    /// The reduction operator, for reductions.
    pub op: Option<ReduceOp>,
    /// The name of the operator that another rank's program defines, of which
    /// [`op`](Self::op) cannot tell.
    pub user_op: Option<Cow<'static, str>>,
    /// The element type, unless no data moves.
    pub dtype: Option<DType>,
    /// The type of partial sums; [`Accumulate::Native`] wherever nothing else is possible.
    pub accumulate: Accumulate,
    /// The order of combining; [`ReduceOrder::Any`] unless the call reduces.
    pub order: ReduceOrder,
    /// The number of elements: of the buffer, of one rank's contribution in a gather or result in
    /// a scatter, or of all ranks together with counts per rank. Where only some ranks know the
    /// lengths of all (`gather_v`, `scatter_v`, `all_to_all_v`) it is this rank's view, and not
    /// compared.
    pub count: u64,
    /// The root, for rooted collectives.
    pub root: Option<usize>,
    /// The fingerprint ([`Signature::fingerprint_of`]) of whatever else must be equal: the lengths
    /// of coalesced buffers, the members of a new group. 0 if there is nothing else.
    pub extra_fingerprint: u64,
    /// The algorithm that carries the call out. Empty before the backend has chosen one.
    pub algorithm: Cow<'static, str>,
}

/// Bytes that are not a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed description of a call")]
pub struct DecodeError;

impl Signature {
    /// The longest encoding in bytes.
    pub const ENCODED_MAX: usize = Self::FIXED + Self::NAME_MAX + 4 + 1 + Self::NAME_MAX;
    /// The longest name of an algorithm, or an operator of the program, in bytes; a longer one is cut.
    pub const NAME_MAX: usize = 40;
    const FIXED: usize = 8 + 8 + 8 + 4 + 3 + 1;
    const NO_ROOT: u32 = u32::MAX;
    const SUMS_IN_F32: u8 = 0x80;
    const DETERMINISTIC: u8 = 0x40;

    /// A call without operator, elements, root or extra_fingerprint, which are set as fields.
    ///
    /// ```
    /// use comm_core::{Signature, Collective, DType, GroupId, ReduceOp};
    ///
    /// let mut call = Signature::new(GroupId::WORLD, Collective::AllReduce, "ring");
    /// (call.op, call.dtype, call.count) = (Some(ReduceOp::Sum), Some(DType::F32), 1000);
    /// ```
    #[must_use]
    pub fn new(group: GroupId, collective: Collective, algorithm: impl Into<Cow<'static, str>>) -> Self {
        Self {
            group,
            collective,
            op: None,
            user_op: None,
            dtype: None,
            accumulate: Accumulate::Native,
            order: ReduceOrder::Any,
            count: 0,
            root: None,
            extra_fingerprint: 0,
            algorithm: algorithm.into(),
        }
    }

    /// The same call, carried out by the algorithm of this name.
    #[must_use]
    pub fn by(mut self, algorithm: impl Into<Cow<'static, str>>) -> Self {
        self.algorithm = algorithm.into();
        self
    }

    /// A number for a list that must be equal on every rank; differs, but for a chance of 2^-64, between unequal lists.
    #[must_use]
    pub fn fingerprint_of(list: impl IntoIterator<Item = u64>) -> u64 {
        let (hash, length) = list.into_iter().fold((0, 0), |(hash, n), word| (mix(hash, word), n + 1));
        mix(hash, length).max(1)
    }

    /// A number that differs, but for a chance of 2^-64, between unequal calls. Equal on every machine.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        let packed = u64::from(self.root_code()) << 32
            | u64::from(self.collective.code()) << 16
            | u64::from(self.op_code()) << 8
            | u64::from(self.dtype_code());
        let words = [self.group.0, self.known_count(), self.extra_fingerprint, packed];
        let hash = words.into_iter().fold(0x636f_6d6d_2e72_7331, mix);
        let hash = mix_name(hash, self.name());
        let hash = match self.plain_size() {
            0 => hash,
            size => mix(hash, u64::from(size)),
        };
        self.user_op_name().map_or(hash, |name| mix_name(hash, name))
    }

    /// Appends the encoding, at most [`Signature::ENCODED_MAX`] bytes.
    pub fn encode(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(&self.group.0.to_le_bytes());
        into.extend_from_slice(&self.known_count().to_le_bytes());
        into.extend_from_slice(&self.extra_fingerprint.to_le_bytes());
        into.extend_from_slice(&self.root_code().to_le_bytes());
        into.extend_from_slice(&[self.collective.code(), self.op_code(), self.dtype_code()]);
        let name = self.name();
        into.push(name.len() as u8);
        into.extend_from_slice(name);
        match self.plain_size() {
            0 => {}
            size => into.extend_from_slice(&size.to_le_bytes()),
        }
        if let Some(name) = self.user_op_name() {
            into.push(name.len() as u8);
            into.extend_from_slice(name);
        }
    }

    /// Reads an encoding and returns the bytes behind it.
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes are too few or hold an unknown code.
    pub fn decode(bytes: &[u8]) -> Result<(Self, &[u8]), DecodeError> {
        let (group, rest) = bytes.split_first_chunk::<8>().ok_or(DecodeError)?;
        let (count, rest) = rest.split_first_chunk::<8>().ok_or(DecodeError)?;
        let (extra_fingerprint, rest) = rest.split_first_chunk::<8>().ok_or(DecodeError)?;
        let (root, rest) = rest.split_first_chunk::<4>().ok_or(DecodeError)?;
        let (&[collective, op, dtype, name_bytes], rest) =
            rest.split_first_chunk::<4>().ok_or(DecodeError)?;
        let (name, mut rest) = take_name(rest, name_bytes)?;
        let mut plain_size = 0;
        if dtype == DType::PLAIN_CODE {
            let (size, behind) = rest.split_first_chunk::<4>().ok_or(DecodeError)?;
            (plain_size, rest) = (u32::from_le_bytes(*size), behind);
        }
        let is_wide = op & Self::SUMS_IN_F32 != 0;
        let is_ordered = op & Self::DETERMINISTIC != 0;
        let op = op & !(Self::SUMS_IN_F32 | Self::DETERMINISTIC);
        let mut user_op = None;
        if op == ReduceOp::USER_CODE {
            let (&bytes, behind) = rest.split_first().ok_or(DecodeError)?;
            let (name, behind) = take_name(behind, bytes)?;
            if name.is_empty() {
                return Err(DecodeError);
            }
            (user_op, rest) = (Some(text(name)), behind);
        }
        let root = u32::from_le_bytes(*root);
        let call = Self {
            group: GroupId(u64::from_le_bytes(*group)),
            collective: Collective::from_code(collective).ok_or(DecodeError)?,
            op: if user_op.is_some() { None } else { optional(op, ReduceOp::from_code)? },
            user_op,
            accumulate: if is_wide { Accumulate::F32 } else { Accumulate::Native },
            order: if is_ordered { ReduceOrder::Deterministic } else { ReduceOrder::Any },
            dtype: optional(dtype, |code| DType::from_wire(code, plain_size))?,
            count: u64::from_le_bytes(*count),
            root: (root != Self::NO_ROOT).then_some(root as usize),
            extra_fingerprint: u64::from_le_bytes(*extra_fingerprint),
            algorithm: text(name),
        };
        Ok((call, rest))
    }

    fn root_code(&self) -> u32 {
        self.root.and_then(|root| u32::try_from(root).ok()).unwrap_or(Self::NO_ROOT)
    }

    /// The operator, with a bit for partial sums in `f32` and one for the order of combining.
    #[inline]
    fn op_code(&self) -> u8 {
        let op = match (&self.user_op, self.op) {
            (Some(_), _) => ReduceOp::USER_CODE,
            (None, op) => op.map_or(0, ReduceOp::code),
        };
        let wide = if self.accumulate == Accumulate::F32 { Self::SUMS_IN_F32 } else { 0 };
        let ordered = if self.order == ReduceOrder::Deterministic { Self::DETERMINISTIC } else { 0 };
        op | wide | ordered
    }

    #[inline]
    fn user_op_name(&self) -> Option<&[u8]> {
        let name = match (&self.user_op, self.op) {
            (Some(name), _) => name.as_bytes(),
            (None, Some(ReduceOp::User(operator))) => operator.name().as_bytes(),
            _ => return None,
        };
        Some(&name[..name.len().min(Self::NAME_MAX)])
    }

    /// The count, as far as every rank knows it.
    #[inline]
    fn known_count(&self) -> u64 {
        if self.collective.is_known_everywhere() { self.count } else { 0 }
    }

    fn plain_size(&self) -> u32 {
        self.dtype.map_or(0, DType::plain_size)
    }

    fn dtype_code(&self) -> u8 {
        self.dtype.map_or(0, DType::code)
    }

    fn name(&self) -> &[u8] {
        let name = self.algorithm.as_bytes();
        &name[..name.len().min(Self::NAME_MAX)]
    }
}

/// A name of so many bytes, and what follows it.
fn take_name(bytes: &[u8], length: u8) -> Result<(&[u8], &[u8]), DecodeError> {
    let taken = bytes.split_at_checked(usize::from(length)).ok_or(DecodeError)?;
    if taken.0.len() > Signature::NAME_MAX { Err(DecodeError) } else { Ok(taken) }
}

fn text(name: &[u8]) -> Cow<'static, str> {
    Cow::Owned(String::from_utf8_lossy(name).into_owned())
}

/// A name in words of 8 bytes, the last one padded with zeros.
fn mix_name(hash: u64, name: &[u8]) -> u64 {
    name.chunks(8).fold(hash, |hash, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        mix(hash, u64::from_le_bytes(word))
    })
}

/// Zero is "none"; any other code must be known.
fn optional<T>(code: u8, known: impl Fn(u8) -> Option<T>) -> Result<Option<T>, DecodeError> {
    if code == 0 { Ok(None) } else { known(code).map(Some).ok_or(DecodeError) }
}

/// One round of splitmix64 over the sum: every bit of the word changes about half the bits of the hash.
const fn mix(hash: u64, word: u64) -> u64 {
    let mut z = (hash.rotate_left(23) ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Whether two names are equal. Does not compare empty ones, which point nowhere: `memcmp` with masked
/// vector loads takes about 200 ns there, as the processor has to suppress a page fault.
#[inline]
fn is_same_name(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && (one.is_empty() || one == other)
}

/// Two calls are equal if a rank in one may talk to a rank in the other.
impl PartialEq for Signature {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.group == other.group
            && self.collective == other.collective
            && self.op_code() == other.op_code()
            && is_same_name(self.user_op_name().unwrap_or_default(), other.user_op_name().unwrap_or_default())
            && self.dtype == other.dtype
            && self.known_count() == other.known_count()
            && self.root == other.root
            && self.extra_fingerprint == other.extra_fingerprint
            && is_same_name(self.name(), other.name())
    }
}

impl Eq for Signature {}

/// As in `all_reduce(sum, 1024 x f32, ring)`, with the group unless it is the world.
impl std::fmt::Display for Signature {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut parts: Vec<String> = Vec::with_capacity(5);
        let sums = if self.accumulate == Accumulate::F32 { " in f32" } else { "" };
        let order = if self.order == ReduceOrder::Deterministic { " in order" } else { "" };
        parts.extend(self.op.map(|op| format!("{op}{sums}{order}")));
        parts.extend(self.user_op.as_ref().map(ToString::to_string));
        parts.extend(self.root.map(|root| format!("root {root}")));
        parts.extend(self.dtype.map(|dtype| format!("{} x {dtype}", self.known_count())));
        if self.extra_fingerprint != 0 {
            parts.push(format!("extra fingerprint {:x}", self.extra_fingerprint));
        }
        if !self.algorithm.is_empty() {
            parts.push(self.algorithm.to_string());
        }
        if self.group != GroupId::WORLD {
            parts.push(self.group.to_string());
        }
        write!(f, "{}({})", self.collective, parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PlainType;

    fn call() -> Signature {
        let mut call = Signature::new(GroupId(7), Collective::Reduce, "binomial");
        (call.op, call.dtype) = (Some(ReduceOp::Sum), Some(DType::F32));
        (call.count, call.root) = (1024, Some(3));
        call
    }

    /// The call with each field changed in turn.
    fn variants() -> Vec<Signature> {
        vec![
            call(),
            Signature { group: GroupId(8), ..call() },
            Signature { collective: Collective::AllReduce, ..call() },
            Signature { op: Some(ReduceOp::Max), ..call() },
            Signature { op: None, ..call() },
            Signature { accumulate: Accumulate::F32, ..call() },
            Signature { order: ReduceOrder::Deterministic, ..call() },
            Signature { op: None, user_op: Some("merge".into()), ..call() },
            Signature { op: None, user_op: Some("n".repeat(Signature::NAME_MAX).into()), ..call() },
            Signature { dtype: PlainType::new(32).map(DType::Plain), ..call() },
            Signature {
                dtype: PlainType::new(33).map(DType::Plain),
                op: None,
                user_op: Some("merge".into()),
                ..call()
            },
            Signature { dtype: Some(DType::I32), ..call() },
            Signature { count: 1025, ..call() },
            Signature { root: Some(2), ..call() },
            Signature { root: None, ..call() },
            Signature { extra_fingerprint: Signature::fingerprint_of([7, 8]), ..call() },
            Signature { algorithm: "chain".into(), ..call() },
        ]
    }

    #[test]
    fn every_field_shows_in_fingerprint_equality_and_encoding() {
        let variants = variants();
        for (i, a) in variants.iter().enumerate() {
            for (j, b) in variants.iter().enumerate() {
                assert_eq!(a == b, i == j, "{a} / {b}");
                assert_eq!(a.fingerprint() == b.fingerprint(), i == j, "{a} / {b}");
            }
            let mut bytes = Vec::new();
            a.encode(&mut bytes);
            assert!(bytes.len() <= Signature::ENCODED_MAX);
            bytes.push(99);
            let (decoded, rest) = Signature::decode(&bytes).unwrap();
            assert_eq!((&decoded, rest), (a, &[99][..]));
        }
    }

    #[test]
    fn the_factor_of_a_premultiplied_sum_may_differ() {
        let half = Signature { op: Some(ReduceOp::PreMulSum(0.5)), ..call() };
        let third = Signature { op: Some(ReduceOp::PreMulSum(0.3)), ..call() };
        assert_eq!(half, third);
        assert_eq!(half.fingerprint(), third.fingerprint());
    }

    #[test]
    fn hostile_bytes_are_refused() {
        let mut bytes = Vec::new();
        call().encode(&mut bytes);
        for end in 0..bytes.len() {
            assert_eq!(Signature::decode(&bytes[..end]), Err(DecodeError), "cut at {end}");
        }
        for (at, value) in [(28, 0), (28, 200), (29, 10), (30, 15), (31, 41), (31, 255)] {
            let mut hostile = bytes.clone();
            hostile[at] = value;
            hostile.resize(400, 0);
            assert_eq!(Signature::decode(&hostile), Err(DecodeError), "byte {at} = {value}");
        }
    }

    #[test]
    fn lists_that_differ_have_other_fingerprints() {
        let lists: [&[u64]; 7] = [&[], &[0], &[0, 0], &[1], &[1, 2], &[2, 1], &[3]];
        let fingerprints: std::collections::HashSet<_> =
            lists.iter().map(|list| Signature::fingerprint_of(list.iter().copied())).collect();
        assert_eq!(fingerprints.len(), lists.len());
        assert!(!fingerprints.contains(&0));
    }

    /// The fingerprint is part of the wire format: a change here is a change of the protocol version.
    #[test]
    fn the_fingerprint_is_pinned() {
        assert_eq!(call().fingerprint(), 1_540_296_344_111_975_417);
    }

    #[test]
    fn display_reads_like_the_call() {
        assert_eq!(call().to_string(), "reduce(sum, root 3, 1024 x f32, binomial, group 7)");
        let wide = Signature { dtype: Some(DType::F16), accumulate: Accumulate::F32, ..call() };
        assert_eq!(wide.to_string(), "reduce(sum in f32, root 3, 1024 x f16, binomial, group 7)");
        let dtype = PlainType::new(24).map(DType::Plain);
        let user = Signature { op: None, user_op: Some("merge".into()), dtype, ..call() };
        assert_eq!(user.to_string(), "reduce(merge, root 3, 1024 x struct of 24 bytes, binomial, group 7)");
    }
}
