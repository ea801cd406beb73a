//! How communicators begin and end, and what is left of them.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use comm_core::{Call, Communicator, ReduceOp};
use comm_nccl::NcclCommunicator;

use crate::gpu;
use crate::player::{Player, in_place};
use crate::trouble::{During, Outcome, Trouble, equal};

/// How often a communicator is made, and ended.
const ROUNDS: usize = 50;
/// As many come before it is counted: what is kept once, such as a cache, is no leak.
const BEFORE: usize = 5;
/// Devices give memory away in pieces of 2 MiB, and other programs may use them too. A communicator that were forgotten each time
/// would be many times as much.
const SLACK: usize = 32 << 20;

fn use_once(player: &Player, comm: &NcclCommunicator) -> Outcome {
    let mut buffer = player.buffer(&[1.0_f32; 1000])?;
    comm.run(
        Call::AllReduce { buffers: in_place(&mut buffer), op: ReduceOp::PreMulSum(1.0) },
        &player.options(),
    )?;
    equal("the sum", buffer.to_vec()?, vec![player.size as f32; 1000])
}

pub(super) fn connect(player: &Player) -> Outcome {
    let comm = player.connect()?;
    comm.run(Call::Barrier, &player.options())?;
    use_once(player, &comm)?;
    Ok(comm.finalize(player.part.patience)?)
}

pub(super) fn settings(player: &Player) -> Outcome {
    let mut config = player.config()?;
    (config.blocking, config.ctas, config.name) = (true, Some(1..=4), Some("gpu-check".into()));
    let comm = player.connect_with(config)?;
    use_once(player, &comm)?;
    comm.run(Call::Barrier, &player.options())?;
    Ok(comm.finalize(player.part.patience)?)
}

/// What a process has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Holdings {
    /// Bytes of the device that nobody has.
    free: usize,
    threads: usize,
    descriptors: usize,
}

impl Holdings {
    fn now(player: &Player) -> Outcome<Self> {
        let count = |folder: &str| {
            let entries = fs::read_dir(folder).map(Iterator::count);
            entries.map_err(|error| Trouble::Wrong(format!("{folder}: {error}")))
        };
        let (threads, descriptors) = (count("/proc/self/task")?, count("/proc/self/fd")?);
        Ok(Self { free: gpu::memory(&player.stream)?.0, threads, descriptors })
    }

    /// What it has more than before, if anything.
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

pub(super) fn leaks(player: &Player) -> Outcome {
    let round = |number: usize| -> Outcome {
        let comm = player.connect()?;
        use_once(player, &comm)?;
        match number % 3 {
            0 => comm.finalize(player.part.patience)?,
            1 => drop(comm),
            _ => {
                comm.run(Call::Barrier, &player.options())?;
                comm.abort("a round is over");
            }
        }
        Ok(())
    };
    (0..BEFORE).try_for_each(|number| round(number).during("before counting"))?;
    // Ranks may share a device, and so what is free there.
    player.meet("before counting")?;
    let before = Holdings::now(player)?;
    player.meet("counted")?;
    (0..ROUNDS).try_for_each(|number| round(number).during(format_args!("round {number}")))?;
    player.meet("after all rounds")?;
    // Threads that were told to end may still be on their way.
    let deadline = Instant::now() + player.part.patience.min(Duration::from_secs(10));
    loop {
        let Some(more) = Holdings::now(player)?.more_than(before) else { return Ok(()) };
        if Instant::now() > deadline {
            return Err(Trouble::Wrong(format!("after {ROUNDS} communicators there are {more} more")));
        }
        thread::sleep(Duration::from_millis(20));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_over_is_named() {
        let before = Holdings { free: 100 << 20, threads: 7, descriptors: 9 };
        assert_eq!(before.more_than(before), None);
        let less = Holdings { threads: 6, descriptors: 8, free: 200 << 20 };
        assert_eq!(less.more_than(before), None, "others may have freed something");
        let more = Holdings { threads: 8, ..before };
        assert_eq!(more.more_than(before).unwrap(), "1 threads");
        let more = Holdings { descriptors: 59, free: 50 << 20, ..before };
        assert_eq!(more.more_than(before).unwrap(), "52428800 bytes of the device and 50 descriptors");
    }
}
