//! The wire format of the control channel.
//!
//! A frame consists of its length (u32, not counting the length field), its kind (u8) and its body.
//! All integers are little-endian.

use std::slice;

use comm_core::wire::{self, Reader, WireError, Writer};
use comm_core::{Lengths, Signature};

use super::rank_set::{RankSet, SET_BYTES_MAX};
use super::shrink::ShrinkFrame;

/// A message on the control channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ControlFrame {
    /// The sender is blocked in a call, or answers a question about one.
    Announce(Announce),
    /// The sender aborted its communicator, and so must all members.
    Abort {
        /// The first call that cannot be completed. The sender has done its part of all earlier
        /// calls.
        sequence: u64,
        /// The cause.
        cause: Cause,
    },
    /// The sender closes its communicator normally.
    Goodbye {
        /// The last call that it completed.
        sequence: u64,
        /// Its last calls up to that one.
        past: Vec<PastCall>,
    },
    /// The sender agrees with the remaining ranks on a smaller group.
    Shrink(ShrinkFrame),
    /// These ranks have sent an abort, a goodbye or a message about a smaller group, which the
    /// sender passes on.
    Relay {
        /// The ranks.
        ranks: RankSet,
        /// Their message.
        frame: Box<Self>,
    },
}

/// A call that a rank made, once or several times in a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PastCall {
    /// The number of the first of these calls. They extend to the next entry of the list, or the
    /// list's end.
    pub(crate) first: u64,
    /// The call.
    pub(crate) call: Signature,
}

impl PastCall {
    /// The most calls that a frame lists.
    pub(crate) const MAX: usize = 8;
}

/// The current or an earlier call of a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Announce {
    /// The number of the call.
    pub(crate) sequence: u64,
    /// Whether the sender asks for the receiver's call with this number.
    pub(crate) question: bool,
    /// The call.
    pub(crate) call: Signature,
    /// The ranks that the sender waits for, at most [`Announce::WAITING_MAX`] of them.
    pub(crate) waiting_for: Vec<usize>,
    /// The sender's calls before this one, at most [`PastCall::MAX`] of them.
    pub(crate) past: Vec<PastCall>,
}

impl Announce {
    pub(crate) const WAITING_MAX: usize = 64;
}

/// The reason why a communicator was aborted.
#[expect(clippy::large_enum_variant, reason = "a communicator has one cause, when it ends")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Cause {
    /// A rank was lost.
    Lost { peer: usize, detail: String },
    /// The deadline passed.
    Timeout { millis: u64, waiting_for: Vec<usize> },
    /// Two ranks made different calls under one number.
    Desync { sequence: u64, ranks: [usize; 2], calls: [Option<Signature>; 2], lengths: Option<Lengths> },
    /// A rank requested it, or a rank failed in a way that no other variant describes.
    Aborted { by: usize, reason: String },
}

const ANNOUNCE: u8 = 1;
const ABORT: u8 = 2;
const GOODBYE: u8 = 3;
const SHRINK: u8 = 4;
const RELAY: u8 = 5;

const LOST: u8 = 1;
const TIMEOUT: u8 = 2;
const DESYNC: u8 = 3;
const ABORTED: u8 = 4;

/// The longest text in a frame, in bytes. Longer texts are truncated.
const TEXT_MAX: usize = 512;
/// The length of the longest frame, without the length field. Longer ones are never sent, and are
/// rejected on arrival.
pub(crate) const FRAME_MAX: usize = 16 << 10;

impl ControlFrame {
    /// Encodes the frame with its length.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut body = Writer::new();
        self.put(&mut body);
        let mut frame = Writer::new();
        frame.bytes::<u32>(&body.into_vec());
        frame.into_vec()
    }

    /// Encodes the frame without its length.
    fn put(&self, body: &mut Writer) {
        match self {
            Self::Announce(announce) => {
                body.put([ANNOUNCE, u8::from(announce.question)]).put(announce.sequence);
                announce.call.encode(body);
                put_ranks(body, &announce.waiting_for);
                put_past(body, &announce.past);
            }
            Self::Abort { sequence, cause } => {
                body.put(ABORT).put(*sequence);
                cause.encode(body);
            }
            Self::Goodbye { sequence, past } => {
                body.put(GOODBYE).put(*sequence);
                put_past(body, past);
            }
            Self::Shrink(shrink) => shrink.encode(body.put(SHRINK)),
            Self::Relay { ranks, frame } => {
                body.put(RELAY).bytes::<u16>(ranks.to_bytes());
                frame.put(body);
            }
        }
    }

    /// Decodes the first frame of `bytes` if it has arrived completely. Returns it with its length
    /// in `bytes`.
    pub(crate) fn decode(bytes: &[u8]) -> wire::Result<Option<(Self, usize)>> {
        match Reader::new(bytes).bytes::<u32>(FRAME_MAX) {
            Ok(body) => Ok(Some((wire::decode(body, Self::read)?, 4 + body.len()))),
            Err(WireError::Short { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns a rank that the frame names although a group of this size does not have it.
    pub(crate) fn unknown_rank(&self, size: usize) -> Option<usize> {
        let named = match self {
            Self::Announce(announce) => &announce.waiting_for[..],
            Self::Abort { cause, .. } => cause.ranks(),
            Self::Shrink(ShrinkFrame::Propose(proposal)) => {
                return proposal.excluded.last().copied().filter(|rank| *rank >= size);
            }
            Self::Relay { ranks, frame } => {
                return ranks.last().filter(|rank| *rank >= size).or_else(|| frame.unknown_rank(size));
            }
            Self::Goodbye { .. } | Self::Shrink(_) => &[],
        };
        named.iter().copied().find(|rank| *rank >= size)
    }

    fn read(r: &mut Reader<'_>) -> wire::Result<Self> {
        Ok(match r.get()? {
            ANNOUNCE => Self::Announce(Announce {
                question: r.flag("question")?,
                sequence: r.get()?,
                call: Signature::decode(r)?,
                waiting_for: read_ranks(r)?,
                past: read_past(r)?,
            }),
            ABORT => Self::Abort { sequence: r.get()?, cause: Cause::read(r)? },
            GOODBYE => Self::Goodbye { sequence: r.get()?, past: read_past(r)? },
            SHRINK => Self::Shrink(ShrinkFrame::read(r)?),
            RELAY => {
                let ranks = RankSet::from_bytes(r.bytes::<u16>(SET_BYTES_MAX)?)?;
                let frame = Box::new(Self::read_relayed(r)?);
                Self::Relay { ranks, frame }
            }
            kind => return Err(WireError::Unknown { what: "kind of frame", value: kind.into() }),
        })
    }
}

impl ControlFrame {
    /// Reads a message of a kind that is passed on.
    fn read_relayed(r: &mut Reader<'_>) -> wire::Result<Self> {
        Ok(match r.get()? {
            ABORT => Self::Abort { sequence: r.get()?, cause: Cause::read(r)? },
            GOODBYE => Self::Goodbye { sequence: r.get()?, past: read_past(r)? },
            SHRINK => Self::Shrink(ShrinkFrame::read(r)?),
            kind => return Err(WireError::Unknown { what: "kind of relayed frame", value: kind.into() }),
        })
    }
}

impl Cause {
    fn ranks(&self) -> &[usize] {
        match self {
            Self::Lost { peer: rank, .. } | Self::Aborted { by: rank, .. } => slice::from_ref(rank),
            Self::Timeout { waiting_for, .. } => waiting_for,
            Self::Desync { ranks, .. } => ranks,
        }
    }

    fn encode(&self, to: &mut Writer) {
        match self {
            Self::Lost { peer, detail } => to.put(LOST).size::<u32>(*peer).text::<u16>(detail, TEXT_MAX),
            Self::Timeout { millis, waiting_for } => put_ranks(to.put(TIMEOUT).put(*millis), waiting_for),
            Self::Desync { sequence, ranks, calls, lengths } => {
                to.put(DESYNC).put(*sequence);
                for (rank, call) in ranks.iter().zip(calls) {
                    to.size::<u32>(*rank).option(call.as_ref(), |to, call| call.encode(to));
                }
                to.option(lengths.as_ref(), |to, Lengths { expected, sent }| _ = to.put(*expected).put(*sent))
            }
            Self::Aborted { by, reason } => to.put(ABORTED).size::<u32>(*by).text::<u16>(reason, TEXT_MAX),
        };
    }

    fn read(r: &mut Reader<'_>) -> wire::Result<Self> {
        let text = |r: &mut Reader<'_>| r.text::<u16>(TEXT_MAX).map(str::to_owned);
        Ok(match r.get()? {
            LOST => Self::Lost { peer: r.size::<u32>()?, detail: text(r)? },
            TIMEOUT => Self::Timeout { millis: r.get()?, waiting_for: read_ranks(r)? },
            DESYNC => {
                let sequence = r.get()?;
                let mut ranked_call = || Ok((r.size::<u32>()?, r.option(Signature::decode)?));
                let ((first, first_call), (second, second_call)) = (ranked_call()?, ranked_call()?);
                let lengths = r.option(|r| Ok(Lengths { expected: r.get()?, sent: r.get()? }))?;
                let (ranks, calls) = ([first, second], [first_call, second_call]);
                Self::Desync { sequence, ranks, calls, lengths }
            }
            ABORTED => Self::Aborted { by: r.size::<u32>()?, reason: text(r)? },
            cause => return Err(WireError::Unknown { what: "cause", value: cause.into() }),
        })
    }
}

fn put_ranks<'w>(to: &'w mut Writer, ranks: &[usize]) -> &'w mut Writer {
    let ranks = &ranks[..ranks.len().min(Announce::WAITING_MAX)];
    to.list::<u8, _>(ranks, |to, rank| _ = to.size::<u32>(*rank))
}

fn read_ranks(r: &mut Reader<'_>) -> wire::Result<Vec<usize>> {
    r.list::<u8, _>(Announce::WAITING_MAX, Reader::size::<u32>)
}

fn put_past(to: &mut Writer, past: &[PastCall]) {
    let past = &past[past.len().saturating_sub(PastCall::MAX)..];
    to.list::<u8, _>(past, |to, PastCall { first, call }| call.encode(to.put(*first)));
}

fn read_past(r: &mut Reader<'_>) -> wire::Result<Vec<PastCall>> {
    r.list::<u8, _>(PastCall::MAX, |r| Ok(PastCall { first: r.get()?, call: Signature::decode(r)? }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::shrink::Proposal;
    use comm_core::{Collective, DType, GroupId, PlainType, ReduceOp};

    fn call() -> Signature {
        let mut call = Signature::new(GroupId::WORLD, Collective::AllReduce, "ring");
        (call.op, call.dtype, call.count) = (Some(ReduceOp::Max), Some(DType::U16), 77);
        call
    }

    fn abort(cause: Cause) -> ControlFrame {
        ControlFrame::Abort { sequence: 12, cause }
    }

    fn propose(excluded: &[usize]) -> ControlFrame {
        let excluded = excluded.iter().copied().collect();
        ControlFrame::Shrink(ShrinkFrame::Propose(Proposal { attempt: 2, completed: 9, excluded }))
    }

    fn frames() -> Vec<ControlFrame> {
        vec![
            ControlFrame::Announce(Announce {
                sequence: 9,
                question: true,
                call: call(),
                waiting_for: vec![1, 70_000],
                past: vec![PastCall { first: 7, call: call() }],
            }),
            ControlFrame::Goodbye { sequence: u64::MAX, past: vec![] },
            ControlFrame::Goodbye {
                sequence: 3,
                past: vec![PastCall { first: 0, call: call() }; PastCall::MAX],
            },
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
            propose(&[]),
            propose(&[0, 7, 8, 70]),
            ControlFrame::Shrink(ShrinkFrame::Connected { attempt: 3 }),
            ControlFrame::Shrink(ShrinkFrame::Done { attempt: u32::MAX }),
            ControlFrame::Shrink(ShrinkFrame::Formed),
            ControlFrame::Shrink(ShrinkFrame::Committed),
            relay(
                &[],
                ControlFrame::Goodbye { sequence: 5, past: vec![PastCall { first: 5, call: call() }] },
            ),
            relay(&[50_000], propose(&[3])),
            relay(&[3], abort(Cause::Lost { peer: 3, detail: "gone".into() })),
        ]
    }

    fn relay(ranks: &[usize], frame: ControlFrame) -> ControlFrame {
        ControlFrame::Relay { ranks: ranks.iter().copied().collect(), frame: Box::new(frame) }
    }

    #[test]
    fn frames_round_trip_and_wait_until_they_are_whole() {
        let bytes: Vec<u8> = frames().iter().flat_map(ControlFrame::encode).collect();
        let mut rest = &bytes[..];
        for frame in frames() {
            let (decoded, length) = ControlFrame::decode(rest).unwrap().unwrap();
            assert_eq!(decoded, frame);
            for cut in 0..length {
                assert_eq!(ControlFrame::decode(&rest[..cut]), Ok(None));
            }
            rest = &rest[length..];
        }
        assert!(rest.is_empty());
    }

    #[test]
    fn ranks_that_a_group_does_not_have_are_found() {
        for frame in frames() {
            let most = match &frame {
                ControlFrame::Announce(_) => Some(70_000),
                ControlFrame::Abort { cause, .. } => cause.ranks().iter().copied().max(),
                ControlFrame::Shrink(ShrinkFrame::Propose(proposal)) => proposal.excluded.last().copied(),
                ControlFrame::Relay { ranks, .. } => ranks.last(),
                _ => None,
            };
            assert_eq!(frame.unknown_rank(usize::MAX), None);
            if let Some(most) = most {
                assert_eq!(frame.unknown_rank(most + 1), None);
                assert!(frame.unknown_rank(most).is_some(), "{frame:?}");
            }
        }
    }

    #[test]
    fn the_largest_frames_stay_below_the_limit() {
        let name = "n".repeat(Signature::NAME_MAX);
        let dtype = PlainType::new(u32::MAX).map(DType::Plain);
        let mut call = Signature::new(GroupId::WORLD, Collective::AllReduce, name.clone());
        (call.user_op, call.dtype, call.count) = (Some(name.into()), dtype, 77);
        let waiting_for = (0..500).collect();
        let past = vec![PastCall { first: 0, call: call.clone() }; 20];
        let announce = Announce { sequence: 1, question: false, call: call.clone(), waiting_for, past };
        let lengths = Some(Lengths { expected: 1, sent: 2 });
        let calls = [Some(call.clone()), Some(call)];
        let desync = Cause::Desync { sequence: 4, ranks: [0, 2], calls, lengths };
        let text = Cause::Aborted { by: 1, reason: "ä".repeat(1000) };
        let most = propose(&[Proposal::GROUP_SIZE_MAX - 1]);
        let relayed = relay(&[Proposal::GROUP_SIZE_MAX - 1], most.clone());
        for frame in [ControlFrame::Announce(announce), abort(desync), abort(text), most, relayed] {
            let bytes = frame.encode();
            assert!(bytes.len() <= FRAME_MAX);
            assert!(ControlFrame::decode(&bytes).unwrap().is_some());
        }
    }

    #[test]
    fn a_frame_without_a_kind_or_with_a_byte_too_many_is_refused() {
        assert!(ControlFrame::decode(&[0, 0, 0, 0]).is_err());
        assert!(ControlFrame::decode(&[255; 8]).is_err());
        for frame in frames() {
            let mut bytes = frame.encode();
            bytes[0] += 1;
            bytes.push(0);
            assert!(ControlFrame::decode(&bytes).is_err(), "{frame:?}");
        }
    }

    comm_sim::hostile_bytes!(frames_are_read_as_they_were_written: frames(), ControlFrame::encode, |bytes| {
        ControlFrame::decode(bytes).ok()?.filter(|(_, length)| *length == bytes.len()).map(|(frame, _)| frame)
    });
}
