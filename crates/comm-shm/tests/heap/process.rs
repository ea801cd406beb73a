//! Forked children.
#![allow(unsafe_code, reason = "a fork")]

use std::process::Command;

use rustix::process::{Pid, Signal, WaitOptions, set_parent_process_death_signal, waitpid};

/// Forks. The child runs `body` and exits.
pub(crate) fn fork(body: impl FnOnce()) -> Pid {
    // SAFETY: the child uses no lock that another thread of this process may hold: glibc releases
    // those of its allocator in the child.
    match unsafe { libc::fork() } {
        0 => {
            // A test that fails leaves no child.
            set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
            // SAFETY: exits immediately, without handlers.
            unsafe { libc::_exit(i32::from(ended.is_err())) }
        }
        child => Pid::from_raw(child).unwrap(),
    }
}

/// Calls `prepare` at the beginning of every later fork of this process.
pub(crate) fn before_forks(prepare: extern "C" fn()) {
    // SAFETY: the handler is a function of the program.
    assert_eq!(unsafe { libc::pthread_atfork(Some(prepare), None, None) }, 0);
}

/// Runs the body of a test in a new process. Returns whether this is that process.
#[track_caller]
pub(crate) fn is_new_process(test: &str) -> bool {
    const NEW: &str = "COMM_TEST_NEW_PROCESS";
    if std::env::var_os(NEW).is_some() {
        return true;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    let output = command.args(["--exact", test, "--nocapture"]).env(NEW, "1").output().unwrap();
    let printed = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
    assert!(output.status.success() && printed.contains("1 passed"), "{printed}");
    false
}

/// Waits for the success of a child.
#[track_caller]
pub(crate) fn join(child: Pid) {
    let (_, status) = waitpid(Some(child), WaitOptions::empty()).unwrap().unwrap();
    assert_eq!((status.exit_status(), status.terminating_signal()), (Some(0), None), "the child failed");
}

/// Overwrites memory of this process, which is a child, with NaN.
pub(crate) fn overwrite(start: usize, len: usize) {
    // SAFETY: the parent does not free it before the child has exited, and no other thread runs in
    // the child.
    unsafe { std::ptr::with_exposed_provenance_mut::<u8>(start).write_bytes(0xff, len) };
}
