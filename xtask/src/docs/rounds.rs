//! Assigns the messages of a schedule to rounds.

use comm_core::{Action, Blocks, Step};

/// A message with its round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Message {
    /// The round, from 0.
    pub(super) round: usize,
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) blocks: Blocks,
}

/// The programs of all ranks, with a flag per completed step.
struct Execution {
    programs: Vec<Vec<(Step, bool)>>,
}

/// Assigns each message to the earliest possible round, if every rank sends and receives at most
/// one message per round. On a deadlock, the error is the number of messages before it.
pub(super) fn rounds(programs: Vec<Vec<Step>>) -> Result<Vec<Message>, usize> {
    let programs = programs.into_iter().map(|steps| steps.into_iter().map(|step| (step, false)).collect());
    let mut execution = Execution { programs: programs.collect() };
    let mut messages = Vec::new();
    for round in 0.. {
        execution.run_local();
        let sent = execution.round(round);
        if sent.is_empty() {
            break;
        }
        messages.extend(sent);
    }
    let done = execution.programs.iter().flatten().all(|(_, done)| *done);
    if done { Ok(messages) } else { Err(messages.len()) }
}

impl Execution {
    /// Completes all local steps that are ready.
    fn run_local(&mut self) {
        for rank in 0..self.programs.len() {
            for at in 0..self.programs[rank].len() {
                let (step, done) = self.programs[rank][at];
                let local =
                    matches!(step.action, Action::Reduce { .. } | Action::Copy { .. } | Action::Finish);
                if local && !done && self.is_ready(rank, at) {
                    self.programs[rank][at].1 = true;
                }
            }
        }
    }

    /// Transfers the messages of a round.
    fn round(&mut self, round: usize) -> Vec<Message> {
        let mut receiving = vec![false; self.programs.len()];
        let mut ends = Vec::new();
        for from in 0..self.programs.len() {
            let mut sends = self.sends(from).filter(|(_, to)| !receiving[*to]);
            let sent =
                sends.find_map(|(at, to)| self.receive(from, at, to).map(|receive| (from, at, to, receive)));
            if let Some(sent) = sent {
                receiving[sent.2] = true;
                ends.push(sent);
            }
        }
        // Received data can be sent in the next round.
        let message = |(from, at, to, receive): (usize, usize, usize, usize)| {
            self.programs[from][at].1 = true;
            self.programs[to][receive].1 = true;
            Message { round, from, to, blocks: self.programs[from][at].0.blocks }
        };
        ends.into_iter().map(message).collect()
    }

    /// Returns the sends of a rank that are ready: their positions and receivers.
    fn sends(&self, rank: usize) -> impl Iterator<Item = (usize, usize)> {
        (0..self.programs[rank].len()).filter_map(move |at| {
            let (step, done) = self.programs[rank][at];
            let Action::Send { to } = step.action else { return None };
            let first = self.next(rank, |action| matches!(action, Action::Send { to: other } if other == to));
            (!done && first == Some(at) && self.is_ready(rank, at)).then_some((at, to))
        })
    }

    /// Returns the receive that matches a send, if it is ready.
    fn receive(&self, from: usize, at: usize, to: usize) -> Option<usize> {
        let blocks = self.programs[from][at].0.blocks;
        let matches = |action| matches!(action, Action::Recv { from: other } | Action::RecvReduce { from: other, .. } if other == from);
        let receive = self.next(to, matches)?;
        (self.programs[to][receive].0.blocks == blocks && self.is_ready(to, receive)).then_some(receive)
    }

    fn next(&self, rank: usize, matches: impl Fn(Action) -> bool) -> Option<usize> {
        self.programs[rank].iter().position(|(step, done)| !done && matches(step.action))
    }

    /// Returns whether no earlier incomplete step conflicts with a step.
    fn is_ready(&self, rank: usize, at: usize) -> bool {
        let program = &self.programs[rank];
        program[..at].iter().all(|(earlier, done)| *done || !program[at].0.conflicts(earlier))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use comm_core::Place;

    const OUT: Place = Place::Output;

    #[test]
    fn a_rank_sends_one_message_and_receives_one_at_a_time() {
        let one = Blocks::one;
        let programs = vec![
            vec![Step::recv(1, OUT, one(1)), Step::recv(2, OUT, one(2)), Step::send(1, OUT, one(2))],
            vec![Step::send(0, OUT, one(1)), Step::recv(0, OUT, one(2))],
            vec![Step::send(0, OUT, one(2))],
        ];
        let found: Vec<_> = rounds(programs).unwrap().iter().map(|m| (m.round, m.from, m.to)).collect();
        assert_eq!(found, [(0, 1, 0), (1, 2, 0), (2, 0, 1)]);
    }

    #[test]
    fn a_deadlock_is_an_error() {
        let waits = vec![vec![Step::recv(1, OUT, Blocks::one(0))], vec![]];
        assert_eq!(rounds(waits), Err(0));
    }
}
