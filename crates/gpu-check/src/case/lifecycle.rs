//! Cases of creating and closing communicators, and of leaks.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use comm_core::{Call, Communicator, ReduceOp};
use comm_nccl::NcclCommunicator;

use crate::context::{RankContext, in_place};
use crate::error::{CaseError, During, Outcome, equal};
use crate::gpu;

/// The number of communicators that a case creates.
const ROUNDS: usize = 50;
/// The number of communicators before resources are first counted, because caches that fill once
/// are not leaks.
const BEFORE: usize = 5;
/// The memory that may be missing at the end: devices allocate in units of 2 MiB, and other
/// programs may use them too. If every communicator leaked, much more would be missing.
const SLACK: usize = 32 << 20;

fn use_once(ctx: &RankContext, comm: &NcclCommunicator) -> Outcome {
    let mut buffer = ctx.buffer(&[1.0_f32; 1000])?;
    comm.run(
        Call::AllReduce { buffers: in_place(&mut buffer), op: ReduceOp::PreMulSum(1.0) },
        &ctx.options(),
    )?;
    equal("the sum", buffer.to_vec()?, vec![ctx.size as f32; 1000])
}

pub(super) fn connect(ctx: &RankContext) -> Outcome {
    let comm = ctx.connect()?;
    comm.run(Call::Barrier, &ctx.options())?;
    use_once(ctx, &comm)?;
    Ok(comm.finalize(ctx.spec.call_timeout)?)
}

pub(super) fn settings(ctx: &RankContext) -> Outcome {
    let mut config = ctx.config()?;
    (config.blocking, config.ctas, config.name) = (true, Some(1..=4), Some("gpu-check".into()));
    let comm = ctx.connect_with(config)?;
    use_once(ctx, &comm)?;
    comm.run(Call::Barrier, &ctx.options())?;
    Ok(comm.finalize(ctx.spec.call_timeout)?)
}

/// The resources of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ResourceUsage {
    /// Free bytes of the device.
    free: usize,
    threads: usize,
    descriptors: usize,
}

impl ResourceUsage {
    fn now(ctx: &RankContext) -> Outcome<Self> {
        let count = |folder: &str| {
            let entries = fs::read_dir(folder).map(Iterator::count);
            entries.map_err(|error| CaseError::Wrong(format!("{folder}: {error}")))
        };
        let (threads, descriptors) = (count("/proc/self/task")?, count("/proc/self/fd")?);
        Ok(Self { free: gpu::memory(&ctx.stream)?.0, threads, descriptors })
    }

    /// Describes the resources that grew.
    fn more_than(self, before: Self) -> Option<String> {
        let more = [
            ("bytes of the device", before.free.saturating_sub(self.free), SLACK),
            ("threads", self.threads.saturating_sub(before.threads), 0),
            ("descriptors", self.descriptors.saturating_sub(before.descriptors), 0),
        ];
        let more = more.iter().filter(|(_, more, slack)| more > slack);
        let words: Vec<String> = more.map(|(what, more, _)| format!("{more} {what}")).collect();
        (!words.is_empty()).then(|| words.join(" and "))
    }
}

pub(super) fn leaks(ctx: &RankContext) -> Outcome {
    let round = |number: usize| -> Outcome {
        let comm = ctx.connect()?;
        use_once(ctx, &comm)?;
        match number % 3 {
            0 => comm.finalize(ctx.spec.call_timeout)?,
            1 => drop(comm),
            _ => {
                comm.run(Call::Barrier, &ctx.options())?;
                comm.abort("a round is over");
            }
        }
        Ok(())
    };
    (0..BEFORE).try_for_each(|number| round(number).during("before counting"))?;
    // Ranks may share a device, and so its free memory.
    ctx.sync_ranks("before counting")?;
    let before = ResourceUsage::now(ctx)?;
    ctx.sync_ranks("counted")?;
    (0..ROUNDS).try_for_each(|number| round(number).during(format_args!("round {number}")))?;
    ctx.sync_ranks("after all rounds")?;
    // Threads that have been stopped may not have exited yet.
    let deadline = Instant::now() + ctx.spec.call_timeout.min(Duration::from_secs(10));
    loop {
        let Some(more) = ResourceUsage::now(ctx)?.more_than(before) else { return Ok(()) };
        if Instant::now() > deadline {
            return Err(CaseError::Wrong(format!("{ROUNDS} communicators leaked {more}")));
        }
        thread::sleep(Duration::from_millis(20));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaks_are_named() {
        let before = ResourceUsage { free: 100 << 20, threads: 7, descriptors: 9 };
        assert_eq!(before.more_than(before), None);
        let less = ResourceUsage { threads: 6, descriptors: 8, free: 200 << 20 };
        assert_eq!(less.more_than(before), None, "freed resources are not leaks");
        let more = ResourceUsage { threads: 8, ..before };
        assert_eq!(more.more_than(before).unwrap(), "1 threads");
        let more = ResourceUsage { descriptors: 59, free: 50 << 20, ..before };
        assert_eq!(more.more_than(before).unwrap(), "52428800 bytes of the device and 50 descriptors");
    }
}
