//! The rendezvous of the ranks that shrink a group after a failure. Over the control channel of the
//! failed group, each sends a hello to the leader, the lowest of them, and gets its answer.

use comm_core::wire::{self, Reader, Writer};
use comm_core::{During, Error, Group, Result};

use super::control::{ControlChannel, Topic};
use super::deadline::Deadline;
use super::notice::REASON_MAX;
use crate::{Capabilities, Library, UniqueId};

/// The request of a rank to shrink the group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hello {
    /// The number of the rank's attempt, which the answer repeats.
    pub(super) attempt: u64,
    /// The ranks that it leaves out, lowest first.
    pub(super) without: Vec<usize>,
    pub(super) capabilities: Capabilities,
}

/// The hellos of all remaining ranks, with their ranks, and the id that connects them. The id is
/// meaningless if the hellos are inconsistent.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Answer {
    hellos: Vec<(usize, Hello)>,
    id: [u8; UniqueId::BYTES],
}

/// A rendezvous of a subset of a group's ranks.
pub(super) struct Rendezvous<'a> {
    pub(super) control: &'a ControlChannel,
    pub(super) group: Group,
    /// The remaining ranks, lowest first; this rank is one of them.
    pub(super) members: &'a [usize],
    pub(super) deadline: Deadline,
}

impl Rendezvous<'_> {
    /// Returns the id that connects the ranks, once all of them have sent their hellos.
    pub(super) fn run(&self, hello: &Hello, library: &Library) -> Result<UniqueId> {
        let leader = self.members.first().copied().unwrap_or_default();
        let Answer { hellos, id } = match leader == self.group.rank() {
            true => self.lead(hello, library)?,
            false => self.follow(hello, leader)?,
        };
        check(&hellos)?;
        Ok(UniqueId::new(id))
    }

    fn lead(&self, hello: &Hello, library: &Library) -> Result<Answer> {
        let mut hellos = vec![(self.group.rank(), hello.clone())];
        let (mut missing, mut failed) = (Vec::new(), None);
        for &rank in &self.members[1..] {
            match self.recv(rank, Topic::Hello, Hello::decode) {
                Ok(hello) => hellos.push((rank, hello)),
                Err(Error::Timeout { .. }) => missing.push(rank),
                Err(error) => failed = Some(error),
            }
        }
        let late = (!missing.is_empty()).then(|| self.timeout(missing));
        let id = failed.or(late).map_or_else(
            || match check(&hellos) {
                Ok(()) => UniqueId::generate(library).map(|id| *id.as_bytes()),
                Err(_) => Ok([0; UniqueId::BYTES]),
            },
            Err,
        );
        let answer = id.map(|id| Answer { hellos: hellos.clone(), id });
        for (rank, hello) in &hellos[1..] {
            self.control.post(*rank, Topic::Answer, encode_answer(hello.attempt, &answer));
        }
        self.control.flush();
        answer
    }

    fn follow(&self, hello: &Hello, leader: usize) -> Result<Answer> {
        self.control.post(leader, Topic::Hello, wire::encode(|to| hello.encode(to)));
        loop {
            let (attempt, answer) = self.recv(leader, Topic::Answer, |r| decode_answer(r, leader))?;
            // Skips the answer to an earlier attempt, which this rank abandoned.
            if attempt == hello.attempt {
                return answer;
            }
        }
    }

    fn recv<T>(
        &self,
        from: usize,
        topic: Topic,
        decode: impl FnOnce(&mut Reader<'_>) -> wire::Result<T>,
    ) -> Result<T> {
        let bytes =
            self.control.recv_last(from, topic, self.deadline.left()).map_err(|error| match error {
                Error::PeerLost { loss, .. } => {
                    Error::PeerLost { peer: from, during: During::Rendezvous, loss }
                }
                Error::Timeout { .. } => self.timeout(vec![from]),
                other => other,
            })?;
        let malformed = |error| Error::malformed(format!("a message of rank {from}"), error);
        wire::decode(&bytes, decode).map_err(malformed)
    }

    fn timeout(&self, waiting_for: Vec<usize>) -> Error {
        Error::Timeout { waiting_for, after: self.deadline.after, during: During::Rendezvous }
    }
}

/// Returns an error if the ranks leave out different ranks, or if NCCL cannot connect them. The
/// result is the same on every rank.
fn check(hellos: &[(usize, Hello)]) -> Result<()> {
    let Some((leader, first)) = hellos.first() else { return Ok(()) };
    if let Some((rank, other)) = hellos.iter().find(|(_, hello)| hello.without != first.without) {
        let reason = format!(
            "rank {leader} says that, and rank {rank} says {:?}: all remaining ranks must pass the same list",
            other.without
        );
        return Err(Error::setting("ranks to leave out", format!("{:?}", first.without), reason));
    }
    let ranks: Vec<_> = hellos.iter().map(|(rank, hello)| (*rank, hello.capabilities)).collect();
    Capabilities::check(&ranks)
}

impl Hello {
    fn encode(&self, to: &mut Writer) {
        let Self { attempt, without, capabilities } = self;
        to.put(*attempt).list::<u32, _>(without, |to, rank| _ = to.size::<u64>(*rank));
        capabilities.encode(to);
    }

    fn decode(r: &mut Reader<'_>) -> wire::Result<Self> {
        let (attempt, without) = (r.get()?, r.list::<u32, _>(usize::MAX, Reader::size::<u64>)?);
        Ok(Self { attempt, without, capabilities: Capabilities::decode(r)? })
    }
}

/// Encodes an answer to an attempt, or the reason why there is none.
fn encode_answer(attempt: u64, answer: &Result<Answer>) -> Vec<u8> {
    wire::encode(|to| match answer {
        Ok(Answer { hellos, id }) => {
            to.put(attempt).put(1_u8).list::<u32, _>(hellos, |to, (rank, hello)| {
                hello.encode(to.size::<u64>(*rank));
            });
            to.put(*id);
        }
        Err(error) => _ = to.put(attempt).put(0_u8).text::<u16>(&error.to_string(), REASON_MAX),
    })
}

fn decode_answer(r: &mut Reader<'_>, leader: usize) -> wire::Result<(u64, Result<Answer>)> {
    let attempt = r.get()?;
    if !r.flag("flag of an answer")? {
        let reason = r.text::<u16>(REASON_MAX)?.to_owned();
        return Ok((attempt, Err(Error::Aborted { by: leader, reason })));
    }
    let hellos = r.list::<u32, _>(usize::MAX, |r| Ok((r.size::<u64>()?, Hello::decode(r)?)))?;
    Ok((attempt, Ok(Answer { hellos, id: r.get()? })))
}

#[cfg(test)]
mod tests {
    use nccl_sys::Version;

    use super::*;

    fn hello(without: &[usize]) -> Hello {
        let capabilities =
            Capabilities { version: Version::new(2, 30, 7), may_share: true, device: [0xD5; 16] };
        Hello { attempt: 3, without: without.to_vec(), capabilities }
    }

    comm_sim::hostile_bytes!(hellos_are_read_as_they_were_written: [hello(&[]), hello(&[0, 1 << 40])],
        |hello| wire::encode(|to| hello.encode(to)),
        |bytes| wire::decode(bytes, Hello::decode).ok());

    comm_sim::hostile_bytes!(answers_are_read_as_they_were_written:
        [Answer { hellos: vec![(1, hello(&[0])), (3, hello(&[0, 2]))], id: [7; UniqueId::BYTES] }],
        |answer| encode_answer(5, &Ok(answer.clone())),
        |bytes| wire::decode(bytes, |r| decode_answer(r, 1)).ok().and_then(|(_, answer)| answer.ok()));
}
