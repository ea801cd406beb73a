//! Measures calls on request: reads requests and writes results, one per line.
//!
//! A request is a name, a number of bytes and a number of consecutive calls: `all_gather 1048576
//! 20`. The result is `measured` and the average seconds per call, or `failed` and the reason. The
//! programs of other libraries use the same protocol.

use std::io::{self, BufRead, Write};
use std::str::FromStr;
use std::time::Instant;

use comm_core::{Call, Communicator, Counts, ReduceOp, Result};
use comm_nccl::NcclCommunicator;

use crate::context::{RankContext, in_place, separate};
use crate::error::{CaseError, Outcome};
use crate::gpu;

/// The name of the task that measures.
pub(crate) const NAME: &str = "speed";
/// The number of warm-up calls.
const BEFORE: usize = 3;

/// A request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) name: String,
    /// The bytes of the larger buffer.
    pub(crate) bytes: usize,
    pub(crate) calls: usize,
}

impl std::fmt::Display for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {}", self.name, self.bytes, self.calls)
    }
}

impl FromStr for Request {
    type Err = CaseError;

    fn from_str(line: &str) -> Outcome<Self> {
        let none = || CaseError::Wrong(format!("not a request: {line:?}"));
        let [name, bytes, calls] = line.split_whitespace().collect::<Vec<_>>()[..] else {
            return Err(none());
        };
        let number = |text: &str| text.parse().map_err(|_| none());
        let (bytes, calls) = (number(bytes)?, number(calls)?);
        Ok(Self { name: name.to_owned(), bytes, calls: std::cmp::max(calls, 1) })
    }
}

/// Serves requests until the end of the input.
pub(crate) fn serve(ctx: &RankContext) -> Outcome {
    let comm = ctx.connect()?;
    let closed = |error: io::Error| CaseError::Wrong(format!("standard output is closed: {error}"));
    writeln!(io::stdout(), "ready {}", ctx.library.path().display()).map_err(closed)?;
    for line in io::stdin().lock().lines() {
        let request: Request = line.map_err(closed)?.parse()?;
        let answer = match measure(ctx, &comm, &request) {
            Ok(seconds) => format!("measured {seconds:e}"),
            Err(error) => format!("failed {}", error.to_string().replace('\n', " ")),
        };
        writeln!(io::stdout(), "{answer}").map_err(closed)?;
    }
    Ok(comm.finalize(ctx.spec.call_timeout)?)
}

/// Measures a call. Allocates only the buffers of this call, because they may fill the device.
fn measure(ctx: &RankContext, comm: &NcclCommunicator, request: &Request) -> Outcome<f64> {
    // Buffers are freed in stream order. Waiting here ensures that those of the last request are
    // free.
    ctx.stream.synchronize()?;
    let block = request.bytes / size_of::<f32>() / ctx.size;
    let (all, options) = (block * ctx.size, ctx.options());
    let time = |call: &mut dyn FnMut() -> Result<()>| time_calls(ctx, comm, request.calls, call);
    match request.name.as_str() {
        "copy" => measure_copy(ctx, request),
        "all_reduce" => {
            let mut buffer = ctx.zeros::<f32>(all)?;
            time(&mut || {
                comm.run(Call::AllReduce { buffers: in_place(&mut buffer), op: ReduceOp::Sum }, &options)
            })
        }
        "broadcast" => {
            let mut buffer = ctx.zeros::<f32>(all)?;
            time(&mut || comm.run(Call::Broadcast { root: 0, buffer: buffer.view_mut() }, &options))
        }
        "all_gather" => {
            let (send, mut recv) = (ctx.zeros::<f32>(block)?, ctx.zeros(all)?);
            time(&mut || {
                comm.run(
                    Call::AllGather { buffers: separate(&send, &mut recv), counts: Counts::Equal },
                    &options,
                )
            })
        }
        "reduce_scatter" => {
            let (send, mut recv) = (ctx.zeros::<f32>(all)?, ctx.zeros(block)?);
            let (shares, op) = (Counts::Equal, ReduceOp::Sum);
            time(&mut || {
                comm.run(
                    Call::ReduceScatter { buffers: separate(&send, &mut recv), counts: shares, op },
                    &options,
                )
            })
        }
        other => Err(CaseError::Wrong(format!("{other} is not measured"))),
    }
}

/// Returns the average seconds of consecutive calls on all ranks.
fn time_calls(
    ctx: &RankContext,
    comm: &NcclCommunicator,
    calls: usize,
    call: &mut dyn FnMut() -> Result<()>,
) -> Outcome<f64> {
    for _ in 0..BEFORE {
        call()?;
    }
    comm.run(Call::Barrier, &ctx.options())?;
    let began = Instant::now();
    for _ in 0..calls {
        call()?;
    }
    comm.stream().synchronize()?;
    let took = began.elapsed();
    comm.synchronize()?;
    Ok(took.as_secs_f64() / calls as f64)
}

/// Returns the seconds of a copy within device memory.
fn measure_copy(ctx: &RankContext, request: &Request) -> Outcome<f64> {
    let (from, mut to) = (ctx.zeros::<u8>(request.bytes)?, ctx.zeros::<u8>(request.bytes)?);
    let mut copies = |count: usize| -> Outcome {
        for _ in 0..count {
            gpu::copy(from.as_slice(), to.as_mut_slice(), &ctx.stream)?;
        }
        Ok(ctx.stream.synchronize()?)
    };
    copies(BEFORE)?;
    let began = Instant::now();
    copies(request.calls)?;
    Ok(began.elapsed().as_secs_f64() / request.calls as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_parsed_as_formatted() {
        let request = Request { name: "all_gather".into(), bytes: 1 << 20, calls: 7 };
        assert_eq!(request.to_string().parse::<Request>().unwrap(), request);
        for line in ["", "all_gather", "all_gather x 1", "all_gather 1 2 3"] {
            assert!(line.parse::<Request>().is_err(), "{line}");
        }
    }
}
