//! What a collective call is, so that two ranks can tell whether they are in the same one.

use std::borrow::Cow;

use crate::{Accumulate, Collective, DType, GroupId, ReduceOp};

/// A collective call: all that must be equal on every rank.
///
/// What may legally differ from rank to rank (buffers, timeouts, the factor of [`ReduceOp::PreMulSum`]) is not in it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Call {
    /// The group that calls.
    pub group: GroupId,
    /// Which collective.
    pub collective: Collective,
    /// The reduction operator, for reductions.
    pub op: Option<ReduceOp>,
    /// The name of an operator of the program, which has no [`op`](Self::op) then.
    pub user_op: Option<Cow<'static, str>>,
    /// The element type, unless no data moves.
    pub dtype: Option<DType>,
    /// In which type partial sums are kept: [`Accumulate::Native`] also where nothing else is possible.
    pub accumulate: Accumulate,
    /// The number of elements: of the buffer, or of one rank's contribution in a gather or result in a scatter. Of all
    /// ranks together where every rank knows the lengths of all, and 0 where only the root does.
    pub count: u64,
    /// The root, for rooted collectives.
    pub root: Option<usize>,
    /// What else must be equal, as a number with [`Call::detail_of`]: the lengths of buffers that travel together, the
    /// members of a new group. 0 if there is nothing else.
    pub detail: u64,
    /// The algorithm that carries the call out.
    pub algorithm: Cow<'static, str>,
}

/// Bytes that are not a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed description of a call")]
pub struct DecodeError;

impl Call {
    /// The longest encoding in bytes.
    pub const ENCODED_MAX: usize = Self::FIXED + Self::NAME_MAX + 4 + 1 + Self::NAME_MAX;
    /// The longest name of an algorithm, or an operator of the program, in bytes; a longer one is cut.
    pub const NAME_MAX: usize = 40;
    const FIXED: usize = 8 + 8 + 8 + 4 + 3 + 1;
    const NO_ROOT: u32 = u32::MAX;
    const SUMS_IN_F32: u8 = 0x80;

    /// A call without operator, elements, root or detail, which are set as fields.
    ///
    /// ```
    /// use comm_core::{Call, Collective, DType, GroupId, ReduceOp};
    ///
    /// let mut call = Call::new(GroupId::WORLD, Collective::AllReduce, "ring");
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
            count: 0,
            root: None,
            detail: 0,
            algorithm: algorithm.into(),
        }
    }

    /// A number for a list that must be equal on every rank; differs, but for a chance of 2^-64, between unequal lists.
    #[must_use]
    pub fn detail_of(list: impl IntoIterator<Item = u64>) -> u64 {
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
        let words = [self.group.0, self.count, self.detail, packed];
        let hash = words.into_iter().fold(0x636f_6d6d_2e72_7331, mix);
        let hash = mix_name(hash, self.name());
        let hash = match self.plain_size() {
            0 => hash,
            size => mix(hash, u64::from(size)),
        };
        self.user_op_name().map_or(hash, |name| mix_name(hash, name))
    }

    /// Appends the encoding, at most [`Call::ENCODED_MAX`] bytes.
    pub fn encode(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(&self.group.0.to_le_bytes());
        into.extend_from_slice(&self.count.to_le_bytes());
        into.extend_from_slice(&self.detail.to_le_bytes());
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
        let (detail, rest) = rest.split_first_chunk::<8>().ok_or(DecodeError)?;
        let (root, rest) = rest.split_first_chunk::<4>().ok_or(DecodeError)?;
        let (&[collective, op, dtype, name_bytes], rest) =
            rest.split_first_chunk::<4>().ok_or(DecodeError)?;
        let (name, mut rest) = take_name(rest, name_bytes)?;
        let mut plain_size = 0;
        if dtype == DType::PLAIN_CODE {
            let (size, behind) = rest.split_first_chunk::<4>().ok_or(DecodeError)?;
            (plain_size, rest) = (u32::from_le_bytes(*size), behind);
        }
        let wide = op & Self::SUMS_IN_F32 != 0;
        let op = op & !Self::SUMS_IN_F32;
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
            accumulate: if wide { Accumulate::F32 } else { Accumulate::Native },
            dtype: optional(dtype, |code| DType::from_wire(code, plain_size))?,
            count: u64::from_le_bytes(*count),
            root: (root != Self::NO_ROOT).then_some(root as usize),
            detail: u64::from_le_bytes(*detail),
            algorithm: text(name),
        };
        Ok((call, rest))
    }

    fn root_code(&self) -> u32 {
        self.root.and_then(|root| u32::try_from(root).ok()).unwrap_or(Self::NO_ROOT)
    }

    /// The operator, with a bit for partial sums in `f32`.
    fn op_code(&self) -> u8 {
        let wide = if self.accumulate == Accumulate::F32 { Self::SUMS_IN_F32 } else { 0 };
        let op = if self.user_op.is_some() { ReduceOp::USER_CODE } else { self.op.map_or(0, ReduceOp::code) };
        op | wide
    }

    fn user_op_name(&self) -> Option<&[u8]> {
        let name = self.user_op.as_ref()?.as_bytes();
        Some(&name[..name.len().min(Self::NAME_MAX)])
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
    if taken.0.len() > Call::NAME_MAX { Err(DecodeError) } else { Ok(taken) }
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

/// Two calls are equal if a rank in one may talk to a rank in the other.
impl PartialEq for Call {
    fn eq(&self, other: &Self) -> bool {
        self.group == other.group
            && self.collective == other.collective
            && self.op_code() == other.op_code()
            && self.user_op_name() == other.user_op_name()
            && self.dtype == other.dtype
            && self.count == other.count
            && self.root == other.root
            && self.detail == other.detail
            && self.name() == other.name()
    }
}

impl Eq for Call {}

/// As in `all_reduce(sum, 1024 x f32, ring)`, with the group unless it is the world.
impl std::fmt::Display for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut parts: Vec<String> = Vec::with_capacity(5);
        let sums = if self.accumulate == Accumulate::F32 { " in f32" } else { "" };
        parts.extend(self.op.map(|op| format!("{op}{sums}")));
        parts.extend(self.user_op.as_ref().map(ToString::to_string));
        parts.extend(self.root.map(|root| format!("root {root}")));
        parts.extend(self.dtype.map(|dtype| format!("{} x {dtype}", self.count)));
        if self.detail != 0 {
            parts.push(format!("detail {:x}", self.detail));
        }
        parts.push(self.algorithm.to_string());
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

    fn call() -> Call {
        let mut call = Call::new(GroupId(7), Collective::Reduce, "binomial");
        (call.op, call.dtype) = (Some(ReduceOp::Sum), Some(DType::F32));
        (call.count, call.root) = (1024, Some(3));
        call
    }

    /// The call with each field changed in turn.
    fn variants() -> Vec<Call> {
        vec![
            call(),
            Call { group: GroupId(8), ..call() },
            Call { collective: Collective::AllReduce, ..call() },
            Call { op: Some(ReduceOp::Max), ..call() },
            Call { op: None, ..call() },
            Call { accumulate: Accumulate::F32, ..call() },
            Call { op: None, user_op: Some("merge".into()), ..call() },
            Call { op: None, user_op: Some("n".repeat(Call::NAME_MAX).into()), ..call() },
            Call { dtype: PlainType::new(32).map(DType::Plain), ..call() },
            Call {
                dtype: PlainType::new(33).map(DType::Plain),
                op: None,
                user_op: Some("merge".into()),
                ..call()
            },
            Call { dtype: Some(DType::I32), ..call() },
            Call { count: 1025, ..call() },
            Call { root: Some(2), ..call() },
            Call { root: None, ..call() },
            Call { detail: Call::detail_of([7, 8]), ..call() },
            Call { algorithm: "chain".into(), ..call() },
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
            assert!(bytes.len() <= Call::ENCODED_MAX);
            bytes.push(99);
            let (decoded, rest) = Call::decode(&bytes).unwrap();
            assert_eq!((&decoded, rest), (a, &[99][..]));
        }
    }

    #[test]
    fn the_factor_of_a_premultiplied_sum_may_differ() {
        let half = Call { op: Some(ReduceOp::PreMulSum(0.5)), ..call() };
        let third = Call { op: Some(ReduceOp::PreMulSum(0.3)), ..call() };
        assert_eq!(half, third);
        assert_eq!(half.fingerprint(), third.fingerprint());
    }

    #[test]
    fn hostile_bytes_are_refused() {
        let mut bytes = Vec::new();
        call().encode(&mut bytes);
        for end in 0..bytes.len() {
            assert_eq!(Call::decode(&bytes[..end]), Err(DecodeError), "cut at {end}");
        }
        for (at, value) in [(28, 0), (28, 200), (29, 10), (30, 15), (31, 41), (31, 255)] {
            let mut hostile = bytes.clone();
            hostile[at] = value;
            hostile.resize(400, 0);
            assert_eq!(Call::decode(&hostile), Err(DecodeError), "byte {at} = {value}");
        }
    }

    #[test]
    fn lists_that_differ_have_other_details() {
        let lists: [&[u64]; 7] = [&[], &[0], &[0, 0], &[1], &[1, 2], &[2, 1], &[3]];
        let details: std::collections::HashSet<_> =
            lists.iter().map(|list| Call::detail_of(list.iter().copied())).collect();
        assert_eq!(details.len(), lists.len());
        assert!(!details.contains(&0));
    }

    /// The fingerprint is part of the wire format: a change here is a change of the protocol version.
    #[test]
    fn the_fingerprint_is_pinned() {
        assert_eq!(call().fingerprint(), 1_540_296_344_111_975_417);
    }

    #[test]
    fn display_reads_like_the_call() {
        assert_eq!(call().to_string(), "reduce(sum, root 3, 1024 x f32, binomial, group 7)");
        let wide = Call { dtype: Some(DType::F16), accumulate: Accumulate::F32, ..call() };
        assert_eq!(wide.to_string(), "reduce(sum in f32, root 3, 1024 x f16, binomial, group 7)");
        let dtype = PlainType::new(24).map(DType::Plain);
        let user = Call { op: None, user_op: Some("merge".into()), dtype, ..call() };
        assert_eq!(user.to_string(), "reduce(merge, root 3, 1024 x struct of 24 bytes, binomial, group 7)");
    }
}
