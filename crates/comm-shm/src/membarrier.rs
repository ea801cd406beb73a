//! Full fences that one process executes on all processors, so that others need none of their own.
//!
//! Otherwise a rank that sends many small messages would wait after each one until the other side's
//! cache has given up the line that was written. A rank that goes to sleep, on the other hand, has
//! time for a system call.

use std::io;
use std::sync::OnceLock;

use rustix::thread::{MembarrierCommand, membarrier};

/// Whether this process can execute such fences and takes part in the fences of others.
#[inline]
pub(crate) fn is_available() -> bool {
    static IS_REGISTERED: OnceLock<bool> = OnceLock::new();
    *IS_REGISTERED.get_or_init(register)
}

fn register() -> bool {
    // Loom models only fences that each thread executes itself.
    let commands = [MembarrierCommand::RegisterGlobalExpedited, MembarrierCommand::GlobalExpedited];
    cfg!(all(not(loom), not(miri))) && commands.into_iter().all(|command| membarrier(command).is_ok())
}

/// Executes a full fence on every running thread of each registered process, this thread included.
/// Threads that are not running execute one before they run again.
pub(crate) fn fence() -> io::Result<()> {
    Ok(membarrier(MembarrierCommand::GlobalExpedited)?)
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    #[test]
    fn a_registered_process_can_execute_fences() {
        if super::is_available() {
            super::fence().unwrap();
        }
    }
}
