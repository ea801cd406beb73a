//! A simulation in a program that starts processes. This is a program of its own, because a process
//! that is being started has copies of the descriptors of all threads.
#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use comm_core::simulation;
use comm_sim::network::{FaultPlan, simulate};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Sleeps until a descriptor is ready.
fn wait(descriptor: impl AsFd, flags: PollFlags) {
    let is_ready = || {
        let mut polled = [PollFd::from_borrowed_fd(descriptor.as_fd(), flags)];
        poll(&mut polled, Some(&Timespec::default())).unwrap() > 0
    };
    while !is_ready() {
        simulation::simulated().unwrap().sleep(None).unwrap();
    }
}

#[test]
fn a_process_that_is_being_started_keeps_no_socket_open() {
    let server = SocketAddr::from(([10, 0, 0, 1], 7));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                Command::new("true").status().unwrap();
            }
        });
        let open = (0..300).map(|_| {
            let simulation = simulate(2, 1, &FaultPlan::calm(), |_, clock| {
                let system = simulation::simulated().unwrap();
                if clock.address() == server.ip() {
                    let listener = system.listen(server).unwrap();
                    wait(&listener, PollFlags::IN);
                    drop(system.accept(listener.as_fd()).unwrap().unwrap());
                } else {
                    wait(system.connect(server).unwrap(), PollFlags::OUT);
                }
            });
            simulation.open_transports
        });
        let most = open.max();
        stop.store(true, Ordering::Relaxed);
        assert_eq!(most, Some(0));
    });
}
