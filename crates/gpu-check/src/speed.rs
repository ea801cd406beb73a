//! What a rank does that is measured: it answers questions, one line each, with the time of one call.
//!
//! A question is a name, a number of bytes and a number of calls in a row: `all_gather 1048576 20`. The answer is `measured` and the
//! seconds of one call, or `failed` and why. Programs that measure rivals answer the same questions.

use std::io::{self, BufRead, Write};
use std::str::FromStr;
use std::time::Instant;

use comm_core::{Call, Communicator, Counts, ReduceOp, Result};
use comm_nccl::NcclCommunicator;

use crate::gpu;
use crate::player::{Player, in_place, separate};
use crate::trouble::{Outcome, Trouble};

/// What a process plays that is measured.
pub(crate) const NAME: &str = "speed";
/// How often a call is made before it counts.
const BEFORE: usize = 3;

/// What is to be measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Question {
    pub(crate) name: String,
    /// Of the larger buffer.
    pub(crate) bytes: usize,
    pub(crate) calls: usize,
}

impl std::fmt::Display for Question {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {}", self.name, self.bytes, self.calls)
    }
}

impl FromStr for Question {
    type Err = Trouble;

    fn from_str(line: &str) -> Outcome<Self> {
        let none = || Trouble::Wrong(format!("no question: {line:?}"));
        let [name, bytes, calls] = line.split_whitespace().collect::<Vec<_>>()[..] else {
            return Err(none());
        };
        let number = |text: &str| text.parse().map_err(|_| none());
        let (bytes, calls) = (number(bytes)?, number(calls)?);
        Ok(Self { name: name.to_owned(), bytes, calls: std::cmp::max(calls, 1) })
    }
}

/// Answers until nobody asks any more.
pub(crate) fn answer(player: &Player) -> Outcome {
    let comm = player.connect()?;
    let unheard = |error: io::Error| Trouble::Wrong(format!("nobody listens: {error}"));
    writeln!(io::stdout(), "ready {}", player.library.path().display()).map_err(unheard)?;
    for line in io::stdin().lock().lines() {
        let question: Question = line.map_err(unheard)?.parse()?;
        let answer = match measure(player, &comm, &question) {
            Ok(seconds) => format!("measured {seconds:e}"),
            Err(trouble) => format!("failed {}", trouble.to_string().replace('\n', " ")),
        };
        writeln!(io::stdout(), "{answer}").map_err(unheard)?;
    }
    Ok(comm.finalize(player.part.patience)?)
}

/// Measures with the buffers that this takes, and no others: what is asked about may fill the device.
fn measure(player: &Player, comm: &NcclCommunicator, question: &Question) -> Outcome<f64> {
    // Buffers are freed in the order of their stream: those of the last question are gone by then.
    player.stream.synchronize()?;
    let block = question.bytes / size_of::<f32>() / player.size;
    let (all, options) = (block * player.size, player.options());
    let time = |call: &mut dyn FnMut() -> Result<()>| time_calls(player, comm, question.calls, call);
    match question.name.as_str() {
        "copy" => measure_copy(player, question),
        "all_reduce" => {
            let mut buffer = player.zeros::<f32>(all)?;
            time(&mut || {
                comm.run(Call::AllReduce { buffers: in_place(&mut buffer), op: ReduceOp::Sum }, &options)
            })
        }
        "broadcast" => {
            let mut buffer = player.zeros::<f32>(all)?;
            time(&mut || comm.run(Call::Broadcast { root: 0, buffer: buffer.view_mut() }, &options))
        }
        "all_gather" => {
            let (send, mut recv) = (player.zeros::<f32>(block)?, player.zeros(all)?);
            time(&mut || {
                comm.run(
                    Call::AllGather { buffers: separate(&send, &mut recv), counts: Counts::Equal },
                    &options,
                )
            })
        }
        "reduce_scatter" => {
            let (send, mut recv) = (player.zeros::<f32>(all)?, player.zeros(block)?);
            let (shares, op) = (Counts::Equal, ReduceOp::Sum);
            time(&mut || {
                comm.run(
                    Call::ReduceScatter { buffers: separate(&send, &mut recv), counts: shares, op },
                    &options,
                )
            })
        }
        other => Err(Trouble::Wrong(format!("{other} is not measured"))),
    }
}

/// The seconds of one call, of so many in a row on all ranks.
fn time_calls(
    player: &Player,
    comm: &NcclCommunicator,
    calls: usize,
    call: &mut dyn FnMut() -> Result<()>,
) -> Outcome<f64> {
    for _ in 0..BEFORE {
        call()?;
    }
    comm.run(Call::Barrier, &player.options())?;
    let began = Instant::now();
    for _ in 0..calls {
        call()?;
    }
    comm.stream().synchronize()?;
    let took = began.elapsed();
    comm.synchronize()?;
    Ok(took.as_secs_f64() / calls as f64)
}

/// What the device needs for a copy of as many bytes, within its memory.
fn measure_copy(player: &Player, question: &Question) -> Outcome<f64> {
    let (from, mut to) = (player.zeros::<u8>(question.bytes)?, player.zeros::<u8>(question.bytes)?);
    let mut copies = |count: usize| -> Outcome {
        for _ in 0..count {
            gpu::copy(from.as_slice(), to.as_mut_slice(), &player.stream)?;
        }
        Ok(player.stream.synchronize()?)
    };
    copies(BEFORE)?;
    let began = Instant::now();
    copies(question.calls)?;
    Ok(began.elapsed().as_secs_f64() / question.calls as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_survive_the_way() {
        let question = Question { name: "all_gather".into(), bytes: 1 << 20, calls: 7 };
        assert_eq!(question.to_string().parse::<Question>().unwrap(), question);
        for line in ["", "all_gather", "all_gather x 1", "all_gather 1 2 3"] {
            assert!(line.parse::<Question>().is_err(), "{line}");
        }
    }
}
