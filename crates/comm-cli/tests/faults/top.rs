//! Faults that a running job shows in `commctl top`.

use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::commctl;
use crate::port::Port;
use crate::ranks::{FOLDER, PAUSE_MS, Processes, as_rank, pid_of, place};
use crate::table::fault_of;
use crate::wait::wait_for;

/// Asks the job of a process until the first line has the texts of the fault, and checks it.
fn check(test: &str, pid: u32) {
    let fault = fault_of(test);
    let line = wait_for(test, || {
        let output = commctl().args(["top", "--once", &pid.to_string()]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let line = text.lines().next()?;
        fault.is_named_in(line).then(|| line.to_owned())
    });
    fault.check(&line);
}

/// Starts three ranks that make calls; the last one pauses for this time before each.
fn start(processes: &mut Processes, folder: &std::path::Path, pause_ms: u64) -> u32 {
    let mut command = commctl();
    let pause = format!("[ $RANK = 2 ] && export {PAUSE_MS}={pause_ms}; exec \"$@\"");
    command.args(["run", "-n", "3", "--", "sh", "-c", &pause, "sh"]);
    as_rank(&mut command, "calls").env(FOLDER, folder).stderr(Stdio::null());
    let launcher = processes.start(&mut command);
    processes.id(launcher)
}

#[test]
fn a_stopped_rank_is_named() {
    let (folder, mut processes) = (tempfile::tempdir().unwrap(), Processes::default());
    let launcher = start(&mut processes, folder.path(), 1);
    let pid = Pid::from_raw(pid_of(folder.path(), 1).cast_signed()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    check("a_stopped_rank_is_named", launcher);
}

#[test]
fn a_slow_rank_is_named() {
    let (folder, mut processes) = (tempfile::tempdir().unwrap(), Processes::default());
    let launcher = start(&mut processes, folder.path(), 200);
    (0..3).for_each(|rank| _ = pid_of(folder.path(), rank));
    check("a_slow_rank_is_named", launcher);
}

/// Forwards the connections to a rank, until it is told to keep all bytes without closing any.
fn relay(from: SocketAddr, to: SocketAddr, is_open: &Arc<AtomicBool>) {
    let listener = TcpListener::bind(from).unwrap();
    let is_open = Arc::clone(is_open);
    thread::spawn(move || {
        for dialer in listener.incoming() {
            let dialer = dialer.unwrap();
            let Ok(acceptor) = TcpStream::connect(to) else { continue };
            for (from, to) in [(&dialer, &acceptor), (&acceptor, &dialer)] {
                let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                let is_open = Arc::clone(&is_open);
                thread::spawn(move || forward(from, to, &is_open));
            }
        }
    });
}

fn forward(mut from: TcpStream, mut to: TcpStream, is_open: &AtomicBool) {
    use std::io::{Read, Write};
    let mut bytes = [0; 64 << 10];
    while let Ok(len @ 1..) = from.read(&mut bytes) {
        while !is_open.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(50));
        }
        if to.write_all(&bytes[..len]).is_err() {
            break;
        }
    }
    drop(to.shutdown(Shutdown::Write));
}

#[test]
fn a_half_open_link_is_named() {
    let (folder, mut processes) = (tempfile::tempdir().unwrap(), Processes::default());
    let (store, ports) = (Port::reserve(), [Port::reserve(), Port::reserve()]);
    let is_open = Arc::new(AtomicBool::new(true));
    for (rank, port) in ports.iter().enumerate() {
        let port = port.number;
        // Others reach the rank at another address of this host, where the relay listens.
        relay(SocketAddr::from(([127, 0, 0, 2], port)), SocketAddr::from(([127, 0, 0, 1], port)), &is_open);
        let mut command = Command::new("env");
        as_rank(&mut command, "calls").env(FOLDER, folder.path()).stderr(Stdio::null());
        place(&mut command, rank, 2, ("127.0.0.1", store.number));
        command.env("COMM_TRANSPORT", "tcp").env("COMM_ADVERTISE_ADDR", "127.0.0.2");
        processes.start(command.env("COMM_PORT_RANGE", port.to_string()));
    }
    let pid = pid_of(folder.path(), 0);
    is_open.store(false, Ordering::Relaxed);
    check("a_half_open_link_is_named", pid);
}
