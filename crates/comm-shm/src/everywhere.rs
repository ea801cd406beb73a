//! Full fences that one process has executed on all processors, so that others need none of their own.
//!
//! A rank that sends small messages all the time would otherwise stop after each of them until the other side's cache has
//! given up the line that was written to; a rank that goes to sleep has time for a system call.

use std::io;
use std::sync::OnceLock;

use rustix::thread::{MembarrierCommand, membarrier};

/// Whether this process takes part: the kernel lets it order such fences, and executes in it those that others order.
#[inline]
pub(crate) fn is_there() -> bool {
    static THERE: OnceLock<bool> = OnceLock::new();
    *THERE.get_or_init(register)
}

fn register() -> bool {
    // Also in loom's world there are only fences that each thread executes itself.
    let commands = [MembarrierCommand::RegisterGlobalExpedited, MembarrierCommand::GlobalExpedited];
    cfg!(all(not(loom), not(miri))) && commands.into_iter().all(|command| membarrier(command).is_ok())
}

/// Has every thread that runs in a process that takes part execute a full fence, this one too. Threads that do not run
/// execute one before they do.
pub(crate) fn fence() -> io::Result<()> {
    Ok(membarrier(MembarrierCommand::GlobalExpedited)?)
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    #[test]
    fn who_takes_part_can_order_fences() {
        if super::is_there() {
            super::fence().unwrap();
        }
    }
}
