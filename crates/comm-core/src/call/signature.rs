//! The description of a collective call that ranks compare.

use std::borrow::Cow;

use crate::wire::{self, Reader, WireError, Writer, mix};
use crate::{Accumulate, Collective, DType, GroupId, ReduceOp, ReduceOrder};

/// The part of a collective call that must be equal on every rank.
///
/// It identifies the call on the wire, in errors, in the history of calls, and in the cache of
/// compiled schedules. Buffers, timeouts and the factor of [`ReduceOp::PreMulSum`] may differ
/// between ranks and are not compared.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Signature {
    /// The group that makes the call.
    pub group: GroupId,
    /// The collective.
    pub collective: Collective,
    /// The reduction operator, for reductions.
    pub op: Option<ReduceOp>,
    /// The name of an operator that another rank's program defines, which [`op`](Self::op) cannot
    /// represent.
    pub user_op: Option<Cow<'static, str>>,
    /// The element type, unless no data moves.
    pub dtype: Option<DType>,
    /// The type of partial sums; [`Accumulate::Native`] if there is no choice.
    pub accumulate: Accumulate,
    /// The order in which contributions are combined; [`ReduceOrder::Any`] unless the call reduces.
    pub order: ReduceOrder,
    /// The number of elements: of the buffer; of one rank's contribution to a gather or result of a
    /// scatter; or, with counts per rank, of all ranks together. If not every rank knows all
    /// lengths (`gather_v`, `scatter_v`, `all_to_all_v`), this is the rank's own view, which is not
    /// compared.
    pub count: u64,
    /// The root, for rooted collectives.
    pub root: Option<usize>,
    /// The fingerprint ([`Signature::fingerprint_of`]) of anything else that must be equal: the
    /// lengths of coalesced buffers, the members of a new group. 0 if there is nothing else.
    pub extra_fingerprint: u64,
    /// The algorithm that runs the call. Empty until the backend has chosen one.
    pub algorithm: Cow<'static, str>,
}

impl Signature {
    /// The longest encoding in bytes.
    pub const ENCODED_MAX: usize = Self::FIXED + Self::NAME_MAX + 4 + 1 + Self::NAME_MAX;
    /// The longest name of an algorithm, or of a user-defined operator, in bytes; longer ones are
    /// cut.
    pub const NAME_MAX: usize = 40;
    const FIXED: usize = 8 + 8 + 8 + 4 + 3 + 1;
    const NO_ROOT: u32 = u32::MAX;
    const SUMS_IN_F32: u8 = 0x80;
    const DETERMINISTIC: u8 = 0x40;

    /// Creates a signature without operator, elements, root or extra fingerprint, which the caller
    /// can set as fields.
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

    /// Returns the same signature with the algorithm of this name.
    #[must_use]
    pub fn by(mut self, algorithm: impl Into<Cow<'static, str>>) -> Self {
        self.algorithm = algorithm.into();
        self
    }

    /// Returns the fingerprint of a list that must be equal on every rank. Unequal lists have equal
    /// fingerprints with a probability of 2^-64.
    #[must_use]
    pub fn fingerprint_of(list: impl IntoIterator<Item = u64>) -> u64 {
        wire::digest(list).max(1)
    }

    /// Returns the fingerprint of the call, which is the same on every machine. Unequal calls have
    /// equal fingerprints with a probability of 2^-64.
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
    pub fn encode(&self, to: &mut Writer) {
        to.put(self.group.0).put(self.known_count()).put(self.extra_fingerprint).put(self.root_code());
        to.put([self.collective.code(), self.op_code(), self.dtype_code()]).bytes::<u8>(self.name());
        match self.plain_size() {
            0 => {}
            size => _ = to.put(size),
        }
        if let Some(name) = self.user_op_name() {
            to.bytes::<u8>(name);
        }
    }

    /// Reads an encoding.
    ///
    /// # Errors
    /// [`WireError`] if there are too few bytes or a code is unknown.
    pub fn decode(r: &mut Reader<'_>) -> wire::Result<Self> {
        let (group, count, extra_fingerprint) = (GroupId(r.get()?), r.get()?, r.get()?);
        let root = Some(r.get::<u32>()?).filter(|root| *root != Self::NO_ROOT);
        let collective = r.code("collective", Collective::from_code)?;
        let [op_code, dtype] = r.get()?;
        let algorithm = name(r)?;
        let plain_size = if dtype == DType::PLAIN_CODE { r.get()? } else { 0 };
        let dtype = optional("element type", dtype, |code| DType::from_wire(code, plain_size))?;
        let (mut op, mut user_op) = (None, None);
        match op_code & !(Self::SUMS_IN_F32 | Self::DETERMINISTIC) {
            ReduceOp::USER_CODE => match name(r)? {
                empty if empty.is_empty() => return Err(unknown("operator", op_code)),
                name => user_op = Some(name),
            },
            code => op = optional("operator", code, ReduceOp::from_code)?,
        }
        let is_wide = op_code & Self::SUMS_IN_F32 != 0;
        let is_ordered = op_code & Self::DETERMINISTIC != 0;
        Ok(Self {
            group,
            collective,
            op,
            user_op,
            dtype,
            accumulate: if is_wide { Accumulate::F32 } else { Accumulate::Native },
            order: if is_ordered { ReduceOrder::Deterministic } else { ReduceOrder::Any },
            count,
            root: root.map(|root| root as usize),
            extra_fingerprint,
            algorithm,
        })
    }

    /// Returns the bytes of the call in a group of this many ranks, from which nccl-tests computes
    /// bandwidths: those of the buffer, or of the blocks of all ranks. If not every rank knows all
    /// lengths, those that this rank knows.
    #[must_use]
    pub fn bytes(&self, ranks: usize) -> u64 {
        let has_equal_blocks = self.collective.has_blocks() && self.collective.base() == self.collective;
        let blocks = if has_equal_blocks { ranks as u64 } else { 1 };
        let element = self.dtype.map_or(0, DType::size) as u64;
        self.count.saturating_mul(blocks).saturating_mul(element)
    }

    fn root_code(&self) -> u32 {
        self.root.and_then(|root| u32::try_from(root).ok()).unwrap_or(Self::NO_ROOT)
    }

    /// Returns the code of the operator, with one bit for partial sums in `f32` and one for the
    /// order of combination.
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
            (Some(name), _) => name,
            (None, Some(ReduceOp::User(operator))) => operator.name(),
            _ => return None,
        };
        Some(short(name))
    }

    /// Returns whether both have the same operator, ignoring the factor of [`ReduceOp::PreMulSum`],
    /// the same type of partial sums, and the same order.
    #[inline]
    fn reduces_like(&self, other: &Self) -> bool {
        let code = self.op_code();
        let is_user_defined = code & !(Self::SUMS_IN_F32 | Self::DETERMINISTIC) == ReduceOp::USER_CODE;
        code == other.op_code() && (!is_user_defined || self.user_op_name() == other.user_op_name())
    }

    /// Returns the count if every rank knows it, otherwise 0.
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
        short(&self.algorithm)
    }
}

/// Returns the bytes of a name that are compared and sent.
#[inline]
fn short(name: &str) -> &[u8] {
    &name.as_bytes()[..name.floor_char_boundary(Signature::NAME_MAX)]
}

fn name(r: &mut Reader<'_>) -> wire::Result<Cow<'static, str>> {
    r.text::<u8>(Signature::NAME_MAX).map(|name| Cow::Owned(name.to_owned()))
}

/// Mixes a name into a hash, in words of 8 bytes, the last one padded with zeros.
fn mix_name(hash: u64, name: &[u8]) -> u64 {
    name.chunks(8).fold(hash, |hash, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        let [word] = wire::read_words(&word);
        mix(hash, word)
    })
}

/// Decodes a code; zero means "none".
fn optional<T>(what: &'static str, code: u8, known: impl Fn(u8) -> Option<T>) -> wire::Result<Option<T>> {
    if code == 0 { Ok(None) } else { known(code).map(Some).ok_or_else(|| unknown(what, code)) }
}

fn unknown(what: &'static str, code: u8) -> WireError {
    WireError::Unknown { what, value: code.into() }
}

/// Returns whether two names are equal. Does not call `memcmp` for empty strings, which are
/// dangling pointers: its masked vector loads would take about 200 ns, because the processor
/// suppresses a page fault.
#[inline]
fn is_same_name(one: &str, other: &str) -> bool {
    (one.is_empty() && other.is_empty()) || one == other || short(one) == short(other)
}

/// Two signatures are equal if ranks that make these calls match.
impl PartialEq for Signature {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.group == other.group
            && self.collective == other.collective
            && self.known_count() == other.known_count()
            && self.reduces_like(other)
            && self.dtype == other.dtype
            && self.root == other.root
            && self.extra_fingerprint == other.extra_fingerprint
            && is_same_name(&self.algorithm, &other.algorithm)
    }
}

impl Eq for Signature {}

/// Formats as in `all_reduce(sum, 1024 x f32, ring)`, with the group unless it is the world.
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

    fn encoded(call: &Signature) -> Vec<u8> {
        wire::encode(|to| call.encode(to))
    }

    /// Returns the call with each field changed, one at a time.
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
    fn bytes_are_those_of_nccl_tests() {
        let bytes = |collective| {
            let mut call = Signature::new(GroupId::WORLD, collective, "ring");
            (call.dtype, call.count) = (Some(DType::F32), 10);
            call.bytes(3)
        };
        assert_eq!([Collective::AllReduce, Collective::Broadcast, Collective::Scan].map(bytes), [40; 3]);
        assert_eq!(
            [Collective::AllGather, Collective::ReduceScatter, Collective::AllToAll].map(bytes),
            [120; 3]
        );
        assert_eq!(bytes(Collective::AllGatherV), 40, "the count is that of all ranks");
        assert_eq!(Signature::new(GroupId::WORLD, Collective::Barrier, "").bytes(3), 0);
    }

    #[test]
    fn every_field_shows_in_fingerprint_equality_and_encoding() {
        let variants = variants();
        for (i, a) in variants.iter().enumerate() {
            for (j, b) in variants.iter().enumerate() {
                assert_eq!(a == b, i == j, "{a} / {b}");
                assert_eq!(a.fingerprint() == b.fingerprint(), i == j, "{a} / {b}");
            }
            let bytes = encoded(a);
            assert!(bytes.len() <= Signature::ENCODED_MAX);
            assert_eq!(wire::decode(&bytes, Signature::decode).as_ref(), Ok(a));
        }
    }

    #[test]
    fn the_factor_of_a_premultiplied_sum_may_differ() {
        let half = Signature { op: Some(ReduceOp::PreMulSum(0.5)), ..call() };
        let third = Signature { op: Some(ReduceOp::PreMulSum(0.3)), ..call() };
        assert_eq!(half, third);
        assert_eq!(half.fingerprint(), third.fingerprint());
    }

    /// Hostile bytes are covered by the tests of messages that contain signatures.
    #[test]
    fn unknown_codes_and_long_names_are_refused() {
        for (at, value) in [(28, 0), (28, 200), (29, 10), (30, 15), (31, 41), (31, 255)] {
            let mut hostile = encoded(&call());
            hostile[at] = value;
            hostile.resize(400, 0);
            assert!(Signature::decode(&mut Reader::new(&hostile)).is_err(), "byte {at} = {value}");
        }
    }

    #[test]
    fn names_are_cut_between_characters() {
        let call = Signature { algorithm: "ä".repeat(30).into(), ..call() };
        let bytes = encoded(&Signature { algorithm: format!("{}x", "ä".repeat(20)).into(), ..call.clone() });
        assert_eq!(wire::decode(&bytes, Signature::decode).as_ref(), Ok(&call));
    }

    #[test]
    fn lists_that_differ_have_other_fingerprints() {
        let lists: [&[u64]; 7] = [&[], &[0], &[0, 0], &[1], &[1, 2], &[2, 1], &[3]];
        let fingerprints: std::collections::HashSet<_> =
            lists.iter().map(|list| Signature::fingerprint_of(list.iter().copied())).collect();
        assert_eq!(fingerprints.len(), lists.len());
        assert!(!fingerprints.contains(&0));
    }

    /// The fingerprint is part of the wire format: a change needs a new protocol version.
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
