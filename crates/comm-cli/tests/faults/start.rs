//! Faults at the start of a job: ranks that do not belong together, and a store that is none.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::thread;

use crate::port::Port;
use crate::ranks::{FOLDER, Processes, as_rank, error_of, errors_of, place};
use crate::table::fault_of;

const RENDEZVOUS_TIMEOUT: &str = "COMM_RENDEZVOUS_TIMEOUT_S";

#[test]
fn a_duplicate_rank_is_named() {
    let lines = errors_of(&[1, 2], 3, "barrier", |process, command| {
        command.env("RANK", process.min(1).to_string()).env(RENDEZVOUS_TIMEOUT, "5");
    });
    // One of the two processes keeps the rank, and misses rank 2.
    let fault = fault_of("a_duplicate_rank_is_named");
    let line = lines.iter().find(|line| fault.is_named_in(line)).unwrap_or(&lines[0]);
    fault.check(line);
}

#[test]
fn a_wrong_secret_is_named() {
    let line = error_of(1, 2, "barrier", |rank, command| {
        command.env("COMM_SECRET", format!("the secret that rank {rank} knows"));
        command.env(RENDEZVOUS_TIMEOUT, "20");
    });
    fault_of("a_wrong_secret_is_named").check(&line);
}

#[test]
fn a_port_in_use_is_named() {
    let (folder, port) = (tempfile::tempdir().unwrap(), Port::reserve());
    let mut processes = Processes::default();
    let mut start = |job: &str| {
        let mut command = Command::new("env");
        as_rank(&mut command, "calls").env(FOLDER, folder.path()).env("COMM_JOB_ID", job);
        place(&mut command, 0, 2, ("127.0.0.1", port.number));
        let first = processes.start(command.stderr(Stdio::piped()));
        // A port that two processes reserve is in use once one of them listens.
        (job == "b").then(|| processes.first_error(first))
    };
    start("a");
    wait_for_listener(port.number);
    fault_of("a_port_in_use_is_named").check(&start("b").unwrap());
}

fn wait_for_listener(port: u16) {
    crate::wait::wait_for("the store", || std::net::TcpStream::connect(("127.0.0.1", port)).ok());
}

/// Returns the error of rank 1, whose store is at this port.
fn error_of_rank_1(port: u16) -> String {
    let mut command = Command::new("env");
    as_rank(&mut command, "barrier").stderr(Stdio::piped());
    place(&mut command, 1, 2, ("127.0.0.1", port));
    command.env(RENDEZVOUS_TIMEOUT, "2");
    let mut processes = Processes::default();
    let rank = processes.start(&mut command);
    processes.first_error(rank)
}

#[test]
fn a_dead_store_is_named() {
    fault_of("a_dead_store_is_named").check(&error_of_rank_1(Port::reserve().number));
}

#[test]
fn another_version_is_named() {
    // The first ten bytes are the same in every version.
    let mut greeting = [0_u8; 48];
    greeting[..8].copy_from_slice(b"\x93comm\r\n\x1a");
    (greeting[8], greeting[11]) = (99, 2);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            // The rank closes the connection once it knows the version.
            drop(stream.write_all(&greeting).and_then(|()| stream.read_to_end(&mut Vec::new())));
        }
    });
    fault_of("another_version_is_named").check(&error_of_rank_1(port));
}
