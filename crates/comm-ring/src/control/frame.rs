//! What ranks say to each other on the control lane, to the byte.
//!
//! A frame is its length (u32, without itself), its kind (u8) and its body; all integers are little-endian.

use comm_core::{Call, DecodeError, Lengths};

/// A message on the control lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Frame {
    /// The sender is blocked in a call, or answers a question about one.
    Announce(Announce),
    /// The sender gave up its communicator, and everybody else must too.
    Abort {
        /// The first call that cannot be completed. What the sender had to do for those before is done.
        sequence: u64,
        /// Why.
        cause: Cause,
    },
    /// The sender closes its communicator in order.
    Goodbye {
        /// The last call that it completed.
        sequence: u64,
        /// Its last calls up to that one.
        past: Vec<PastCall>,
    },
}

/// A call that a rank made, and perhaps repeated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PastCall {
    /// The number under which it was made first. It was repeated until the next one of the list, or the list's end.
    pub(crate) first: u64,
    /// The call.
    pub(crate) call: Call,
}

impl PastCall {
    /// The most that a frame lists.
    pub(crate) const MAX: usize = 8;
}

/// Which call a rank is, or was, in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Announce {
    /// The number of the call.
    pub(crate) sequence: u64,
    /// Whether the sender wants to know what the receiver called under this number.
    pub(crate) question: bool,
    /// The call.
    pub(crate) call: Call,
    /// The ranks that the sender waits for, at most [`Announce::WAITING_MAX`] of them.
    pub(crate) waiting_for: Vec<usize>,
    /// The sender's calls before this one, at most [`PastCall::MAX`] of them.
    pub(crate) past: Vec<PastCall>,
}

impl Announce {
    pub(crate) const WAITING_MAX: usize = 64;
}

/// Why a communicator was given up.
#[expect(clippy::large_enum_variant, reason = "a communicator has one cause, when it ends")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Cause {
    /// A rank was lost.
    Lost { peer: usize, detail: String },
    /// The deadline passed.
    Timeout { millis: u64, waiting_for: Vec<usize> },
    /// Two ranks made different calls under one number.
    Desync { sequence: u64, ranks: [usize; 2], calls: [Option<Call>; 2], lengths: Option<Lengths> },
    /// Somebody asked for it, or a failure that no other kind describes.
    Aborted { by: usize, reason: String },
}

const ANNOUNCE: u8 = 1;
const ABORT: u8 = 2;
const GOODBYE: u8 = 3;

const LOST: u8 = 1;
const TIMEOUT: u8 = 2;
const DESYNC: u8 = 3;
const ABORTED: u8 = 4;

/// The longest text in a frame in bytes; a longer one is cut.
const TEXT_MAX: usize = 512;
/// The longest frame behind its length. Nothing longer is ever sent, and nothing longer is accepted.
pub(crate) const FRAME_MAX: usize = 2048;

impl Frame {
    /// Appends the frame with its length.
    pub(crate) fn encode(&self, into: &mut Vec<u8>) {
        let start = into.len();
        into.extend_from_slice(&[0; 4]);
        match self {
            Self::Announce(announce) => {
                into.extend_from_slice(&[ANNOUNCE, u8::from(announce.question)]);
                into.extend_from_slice(&announce.sequence.to_le_bytes());
                announce.call.encode(into);
                put_ranks(into, &announce.waiting_for);
                put_past(into, &announce.past);
            }
            Self::Abort { sequence, cause } => {
                into.push(ABORT);
                into.extend_from_slice(&sequence.to_le_bytes());
                cause.encode(into);
            }
            Self::Goodbye { sequence, past } => {
                into.push(GOODBYE);
                into.extend_from_slice(&sequence.to_le_bytes());
                put_past(into, past);
            }
        }
        let length = (into.len() - start - 4) as u32;
        into[start..start + 4].copy_from_slice(&length.to_le_bytes());
    }

    /// Takes the first frame off `bytes` if it has arrived whole. Returns it with its length in `bytes`.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>, DecodeError> {
        let Some((length, rest)) = bytes.split_first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_le_bytes(*length) as usize;
        if length == 0 || length > FRAME_MAX {
            return Err(DecodeError);
        }
        let Some(body) = rest.get(..length) else { return Ok(None) };
        Ok(Some((Self::decode_body(body)?, 4 + length)))
    }

    fn decode_body(body: &[u8]) -> Result<Self, DecodeError> {
        let (kind, mut rest) = body.split_first().ok_or(DecodeError)?;
        let rest = &mut rest;
        let frame = match *kind {
            ANNOUNCE => {
                let question = take::<1>(rest)?[0] != 0;
                let sequence = take_u64(rest)?;
                let (call, waiting_for) = (take_call(rest)?, take_ranks(rest)?);
                Self::Announce(Announce { sequence, question, call, waiting_for, past: take_past(rest)? })
            }
            ABORT => Self::Abort { sequence: take_u64(rest)?, cause: Cause::decode(rest)? },
            GOODBYE => Self::Goodbye { sequence: take_u64(rest)?, past: take_past(rest)? },
            _ => return Err(DecodeError),
        };
        if rest.is_empty() { Ok(frame) } else { Err(DecodeError) }
    }
}

impl Cause {
    fn encode(&self, into: &mut Vec<u8>) {
        match self {
            Self::Lost { peer, detail } => {
                into.push(LOST);
                put_rank(into, *peer);
                put_text(into, detail);
            }
            Self::Timeout { millis, waiting_for } => {
                into.push(TIMEOUT);
                into.extend_from_slice(&millis.to_le_bytes());
                put_ranks(into, waiting_for);
            }
            Self::Desync { sequence, ranks, calls, lengths } => {
                into.push(DESYNC);
                into.extend_from_slice(&sequence.to_le_bytes());
                for (rank, call) in ranks.iter().zip(calls) {
                    put_rank(into, *rank);
                    into.push(u8::from(call.is_some()));
                    if let Some(call) = call {
                        call.encode(into);
                    }
                }
                into.push(u8::from(lengths.is_some()));
                if let Some(Lengths { expected, sent }) = lengths {
                    into.extend_from_slice(&expected.to_le_bytes());
                    into.extend_from_slice(&sent.to_le_bytes());
                }
            }
            Self::Aborted { by, reason } => {
                into.push(ABORTED);
                put_rank(into, *by);
                put_text(into, reason);
            }
        }
    }

    fn decode(rest: &mut &[u8]) -> Result<Self, DecodeError> {
        match take::<1>(rest)?[0] {
            LOST => Ok(Self::Lost { peer: take_rank(rest)?, detail: take_text(rest)? }),
            TIMEOUT => Ok(Self::Timeout { millis: take_u64(rest)?, waiting_for: take_ranks(rest)? }),
            DESYNC => {
                let sequence = take_u64(rest)?;
                let (first, first_call) = take_ranked_call(rest)?;
                let (second, second_call) = take_ranked_call(rest)?;
                let lengths = match take::<1>(rest)?[0] {
                    0 => None,
                    _ => Some(Lengths { expected: take_u64(rest)?, sent: take_u64(rest)? }),
                };
                let (ranks, calls) = ([first, second], [first_call, second_call]);
                Ok(Self::Desync { sequence, ranks, calls, lengths })
            }
            ABORTED => Ok(Self::Aborted { by: take_rank(rest)?, reason: take_text(rest)? }),
            _ => Err(DecodeError),
        }
    }
}

fn put_rank(into: &mut Vec<u8>, rank: usize) {
    into.extend_from_slice(&(rank as u32).to_le_bytes());
}

fn put_ranks(into: &mut Vec<u8>, ranks: &[usize]) {
    let ranks = &ranks[..ranks.len().min(Announce::WAITING_MAX)];
    into.push(ranks.len() as u8);
    for rank in ranks {
        put_rank(into, *rank);
    }
}

fn put_past(into: &mut Vec<u8>, past: &[PastCall]) {
    let past = &past[past.len().saturating_sub(PastCall::MAX)..];
    into.push(past.len() as u8);
    for PastCall { first, call } in past {
        into.extend_from_slice(&first.to_le_bytes());
        call.encode(into);
    }
}

fn put_text(into: &mut Vec<u8>, text: &str) {
    let mut end = text.len().min(TEXT_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    into.extend_from_slice(&(end as u16).to_le_bytes());
    into.extend_from_slice(&text.as_bytes()[..end]);
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], DecodeError> {
    let (taken, behind) = rest.split_first_chunk::<N>().ok_or(DecodeError)?;
    *rest = behind;
    Ok(*taken)
}

fn take_u64(rest: &mut &[u8]) -> Result<u64, DecodeError> {
    take(rest).map(u64::from_le_bytes)
}

fn take_rank(rest: &mut &[u8]) -> Result<usize, DecodeError> {
    take(rest).map(|rank| u32::from_le_bytes(rank) as usize)
}

fn take_ranks(rest: &mut &[u8]) -> Result<Vec<usize>, DecodeError> {
    let count = usize::from(take::<1>(rest)?[0]);
    if count > Announce::WAITING_MAX {
        return Err(DecodeError);
    }
    (0..count).map(|_| take_rank(rest)).collect()
}

fn take_past(rest: &mut &[u8]) -> Result<Vec<PastCall>, DecodeError> {
    let count = usize::from(take::<1>(rest)?[0]);
    if count > PastCall::MAX {
        return Err(DecodeError);
    }
    (0..count).map(|_| Ok(PastCall { first: take_u64(rest)?, call: take_call(rest)? })).collect()
}

fn take_text(rest: &mut &[u8]) -> Result<String, DecodeError> {
    let length = usize::from(u16::from_le_bytes(take(rest)?));
    if length > TEXT_MAX {
        return Err(DecodeError);
    }
    let (text, behind) = rest.split_at_checked(length).ok_or(DecodeError)?;
    *rest = behind;
    Ok(String::from_utf8_lossy(text).into_owned())
}

fn take_call(rest: &mut &[u8]) -> Result<Call, DecodeError> {
    let (call, behind) = Call::decode(rest)?;
    *rest = behind;
    Ok(call)
}

fn take_ranked_call(rest: &mut &[u8]) -> Result<(usize, Option<Call>), DecodeError> {
    let rank = take_rank(rest)?;
    let call = if take::<1>(rest)?[0] == 0 { None } else { Some(take_call(rest)?) };
    Ok((rank, call))
}

#[cfg(test)]
mod tests {
    use super::*;
    use comm_core::{Collective, DType, GroupId, PlainType, ReduceOp};

    fn call() -> Call {
        let mut call = Call::new(GroupId::WORLD, Collective::AllReduce, "ring");
        (call.op, call.dtype, call.count) = (Some(ReduceOp::Max), Some(DType::U16), 77);
        call
    }

    fn abort(cause: Cause) -> Frame {
        Frame::Abort { sequence: 12, cause }
    }

    fn frames() -> Vec<Frame> {
        vec![
            Frame::Announce(Announce {
                sequence: 9,
                question: true,
                call: call(),
                waiting_for: vec![1, 70_000],
                past: vec![PastCall { first: 7, call: call() }],
            }),
            Frame::Goodbye { sequence: u64::MAX, past: vec![] },
            Frame::Goodbye { sequence: 3, past: vec![PastCall { first: 0, call: call() }; PastCall::MAX] },
            abort(Cause::Lost { peer: 3, detail: "gone".into() }),
            abort(Cause::Timeout { millis: 1500, waiting_for: vec![] }),
            abort(Cause::Desync { sequence: 4, ranks: [0, 2], calls: [Some(call()), None], lengths: None }),
            abort(Cause::Desync {
                sequence: 5,
                ranks: [1, 0],
                calls: [Some(call()), Some(call())],
                lengths: Some(Lengths { expected: 5, sent: u64::MAX }),
            }),
            abort(Cause::Aborted { by: 1, reason: String::new() }),
        ]
    }

    #[test]
    fn frames_round_trip_and_wait_until_they_are_whole() {
        let mut bytes = Vec::new();
        for frame in frames() {
            frame.encode(&mut bytes);
        }
        let mut rest = &bytes[..];
        for frame in frames() {
            let (decoded, length) = Frame::decode(rest).unwrap().unwrap();
            assert_eq!(decoded, frame);
            for cut in 0..length {
                assert_eq!(Frame::decode(&rest[..cut]), Ok(None));
            }
            rest = &rest[length..];
        }
        assert!(rest.is_empty());
    }

    #[test]
    fn the_largest_frames_stay_below_the_limit() {
        let name = "n".repeat(Call::NAME_MAX);
        let dtype = PlainType::new(u32::MAX).map(DType::Plain);
        let mut call = Call::new(GroupId::WORLD, Collective::AllReduce, name.clone());
        (call.user_op, call.dtype, call.count) = (Some(name.into()), dtype, 77);
        let waiting_for = (0..500).collect();
        let past = vec![PastCall { first: 0, call: call.clone() }; 20];
        let announce = Announce { sequence: 1, question: false, call: call.clone(), waiting_for, past };
        let lengths = Some(Lengths { expected: 1, sent: 2 });
        let calls = [Some(call.clone()), Some(call)];
        let desync = Cause::Desync { sequence: 4, ranks: [0, 2], calls, lengths };
        let text = Cause::Aborted { by: 1, reason: "ä".repeat(1000) };
        for frame in [Frame::Announce(announce), abort(desync), abort(text)] {
            let mut bytes = Vec::new();
            frame.encode(&mut bytes);
            assert!(bytes.len() <= FRAME_MAX);
            assert!(Frame::decode(&bytes).unwrap().is_some());
        }
    }

    #[test]
    fn hostile_bytes_are_refused_and_never_panic() {
        assert!(Frame::decode(&[0, 0, 0, 0]).is_err());
        assert!(Frame::decode(&[255; 8]).is_err());
        for frame in frames() {
            let mut bytes = Vec::new();
            frame.encode(&mut bytes);
            for at in 0..bytes.len() {
                for value in [0, 1, 5, 127, 255] {
                    let mut hostile = bytes.clone();
                    hostile[at] = value;
                    let _ = Frame::decode(&hostile);
                }
            }
            bytes.push(0);
            let length = (bytes.len() - 4) as u32;
            bytes[..4].copy_from_slice(&length.to_le_bytes());
            assert!(Frame::decode(&bytes).is_err(), "a byte too many: {frame:?}");
        }
    }
}
