//! Sockets behave like the system's, in virtual time.

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use comm_core::simulation::{self, SimulatedSystem};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::network::{FaultPlan, Incident, VirtualClock, run, simulate};

const LATENCY: Duration = Duration::from_millis(10);
const PORT: u16 = 7;

fn plan() -> FaultPlan {
    FaultPlan::calm().latency(LATENCY).bytes_per_second(u64::MAX)
}

fn system() -> &'static dyn SimulatedSystem {
    simulation::simulated().unwrap()
}

/// Sleeps until a descriptor is ready.
fn wait(descriptor: impl AsFd, flags: PollFlags) {
    let is_ready = || {
        let mut polled = [PollFd::from_borrowed_fd(descriptor.as_fd(), flags)];
        poll(&mut polled, Some(&Timespec::default())).unwrap() > 0
    };
    while !is_ready() {
        system().sleep(None).unwrap();
    }
}

/// Reads all bytes until the stream ends. Returns the bytes, and the error if it broke.
fn read_to_end(mut stream: &UnixStream) -> (Vec<u8>, Option<ErrorKind>) {
    let mut bytes = Vec::new();
    loop {
        wait(stream, PollFlags::IN);
        match stream.read_to_end(&mut bytes) {
            Ok(_) => return (bytes, None),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return (bytes, Some(error.kind())),
        }
    }
}

/// Connects rank 1 to rank 0, and calls a function with the end of each, and whether it is rank
/// 0's. Returns the results.
fn between<T: Send>(plan: &FaultPlan, side: impl Fn(UnixStream, &VirtualClock, bool) -> T + Sync) -> Vec<T> {
    run(2, 1, plan, |_, clock| connected(&clock, &side))
}

fn connected<T>(clock: &VirtualClock, side: impl Fn(UnixStream, &VirtualClock, bool) -> T) -> T {
    let server = SocketAddr::new(super::address_of(0), PORT);
    if clock.address() == server.ip() {
        let listener = system().listen(server).unwrap();
        assert_eq!(system().listen(server).unwrap_err().kind(), ErrorKind::AddrInUse);
        wait(&listener, PollFlags::IN);
        let (socket, from) = system().accept(listener.as_fd()).unwrap().unwrap();
        assert_eq!(from.ip(), super::address_of(1));
        return side(socket.into(), clock, true);
    }
    let socket = system().connect(server).unwrap();
    wait(&socket, PollFlags::OUT);
    assert!(system().take_error(socket.as_fd()).is_none());
    assert_eq!(clock.elapsed(), 2 * LATENCY);
    side(socket.into(), clock, false)
}

/// Sends bytes from rank 1 to rank 0, which lets something happen first. Returns what arrives.
fn receive(plan: &FaultPlan, bytes: &[u8], first: impl Fn(&VirtualClock) + Sync) -> Received {
    let mut received = between(plan, |mut stream, clock, is_server| {
        if is_server {
            first(clock);
            return Some(read_to_end(&stream)).map(|(bytes, error)| (bytes, error, clock.elapsed()));
        }
        clock.sleep(LATENCY);
        stream.write_all(bytes).unwrap();
        None
    });
    received.swap_remove(0).unwrap()
}

/// The bytes that have arrived, the error after them, and the time of the end.
type Received = (Vec<u8>, Option<ErrorKind>, Duration);

#[test]
fn bytes_and_the_end_arrive_after_the_latency_of_the_link() {
    for short in [false, true] {
        let (bytes, error, at) = receive(&plan().short(short), b"some bytes", |_| ());
        assert_eq!((&bytes[..], error, at), (&b"some bytes"[..], None, 4 * LATENCY));
    }
}

#[test]
fn nobody_who_listens_refuses_a_connection() {
    run(1, 1, &plan(), |_, clock| {
        let socket = system().connect(SocketAddr::new(clock.address(), PORT)).unwrap();
        wait(&socket, PollFlags::OUT);
        let error = system().take_error(socket.as_fd()).unwrap();
        assert_eq!((error.kind(), clock.elapsed()), (ErrorKind::ConnectionRefused, 2 * LATENCY));
    });
}

#[test]
fn a_sender_waits_until_the_receiver_has_read() {
    const LEN: usize = 1 << 20;
    let sent = between(&plan().capacity(8192), |mut stream, clock, is_server| {
        if is_server {
            clock.sleep(Duration::from_secs(1));
            return read_to_end(&stream).0.len();
        }
        let (data, mut sent) = (vec![7; LEN], 0);
        while sent < LEN {
            wait(&stream, PollFlags::OUT);
            sent += stream.write(&data[sent..]).unwrap();
            // The receiver's kernel takes some more.
            assert!(sent < LEN / 2 || clock.elapsed() >= Duration::from_secs(1));
        }
        sent
    });
    assert_eq!(sent, [LEN, LEN]);
}

#[test]
fn a_cut_link_delivers_everything_afterwards() {
    let lasting = Duration::from_millis(500);
    let (bytes, error, at) =
        receive(&plan(), b"late", |clock| clock.inject(Incident::Cut { from: 1, to: 0, lasting }));
    // The server has accepted the connection after one latency.
    assert_eq!((&bytes[..], error, at), (&b"late"[..], None, 2 * LATENCY + lasting));
}

#[test]
fn bytes_are_altered_on_the_way() {
    let data = b"0123456789";
    let (flipped, _, _) =
        receive(&plan(), data, |clock| clock.inject(Incident::Corruption { from: 1, to: 0 }));
    let bits: u32 = flipped.iter().zip(data).map(|(a, b)| (a ^ b).count_ones()).sum();
    assert_eq!((flipped.len(), bits), (data.len(), 1));
    let (doubled, _, _) =
        receive(&plan(), data, |clock| clock.inject(Incident::Duplication { from: 1, to: 0 }));
    assert_eq!(doubled, data.repeat(2));
}

#[test]
fn a_death_ends_streams_and_a_lost_host_is_noticed_later() {
    let at_end = |incident| {
        let ends = between(&plan().keepalive(Duration::from_secs(3)), |stream, clock, is_server| {
            if is_server {
                // The connection is established on both sides.
                clock.sleep(2 * LATENCY);
                clock.inject(incident);
                return None;
            }
            assert_eq!(read_to_end(&stream).0, b"");
            Some(clock.elapsed())
        });
        ends[1].unwrap()
    };
    assert_eq!(at_end(Incident::Death { rank: 0 }), 4 * LATENCY);
    let lost = at_end(Incident::Vanish { rank: 0 });
    assert_eq!(lost, Duration::from_secs(3) + 3 * LATENCY);
}

#[test]
fn descriptors_that_are_copies_stand_for_the_same_socket() {
    run(1, 1, &plan(), |_, clock| {
        let listener = system().listen(SocketAddr::new(clock.address(), 0)).unwrap();
        let copy: OwnedFd = listener.try_clone().unwrap();
        let address = system().local_address(listener.as_fd()).unwrap();
        assert_ne!(address.port(), 0);
        assert_eq!(system().local_address(copy.as_fd()), Some(address));
    });
}

#[test]
fn a_socket_that_was_closed_with_more_to_send_than_its_peer_takes_is_closed() {
    let simulation = simulate(2, 1, &plan(), |_, clock| {
        connected(&clock, |mut stream, clock, is_server| {
            if is_server {
                // The answer finds that nobody reads it, and breaks the connection.
                clock.sleep(Duration::from_secs(60));
                stream.write_all(&[1]).unwrap();
                clock.sleep(Duration::from_secs(1));
                return;
            }
            for _ in 0..50 {
                while stream.write(&[0; 64 << 10]).is_ok() {}
                clock.sleep(LATENCY);
            }
        });
    });
    assert_eq!(simulation.open_transports, 0);
}
