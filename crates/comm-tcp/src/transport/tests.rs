//! A transport against a peer whose socket the test holds.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use comm_core::{GroupId, Loss, Membership};
use rustix::event::{PollFd, PollFlags, poll};
use socket2::Socket;

use super::*;
use crate::peer::TURN_BYTES;

mod stripes;

/// Rank 0 of a world whose other ranks are sockets.
fn world(size: usize, config: &TcpConfig) -> (TcpTransport, Vec<TcpStream>) {
    let (ours, theirs): (Vec<Established>, _) = (1..size).map(|_| connect()).unzip();
    let group = Group::new(GroupId::WORLD, Membership { rank: 0, size }).unwrap();
    let config = ChannelConfig { kind: ChannelKind::Collective, tcp: config.clone() };
    (TcpTransport::new(group, (1..size).zip(ours), None, config).unwrap(), theirs)
}

/// Both ends of a connection.
fn connect() -> (Established, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    peer.set_nodelay(true).unwrap();
    let (socket, _) = listener.accept().unwrap();
    socket.set_nonblocking(true).unwrap();
    (Socket::from(socket).into(), peer)
}

fn pair() -> (TcpTransport, TcpStream) {
    let (transport, mut peers) = world(2, &TcpConfig::default());
    (transport, peers.remove(0))
}

fn interest(recv: &[usize], send: &[usize]) -> Interest {
    let mut interest = Interest::default();
    recv.iter().for_each(|&peer| interest.add_recv(peer));
    send.iter().for_each(|&peer| interest.add_send(peer));
    interest
}

/// Sleeps until the transport wakes. Fails if it does not wake in time.
fn sleep(transport: &TcpTransport) {
    assert!(wakes(transport, 20), "no wakeup");
}

fn wakes(transport: &TcpTransport, seconds: i64) -> bool {
    let limit = Timespec { tv_sec: seconds, tv_nsec: 50_000_000 };
    poll(&mut [PollFd::from_borrowed_fd(transport.descriptor(), PollFlags::IN)], Some(&limit)).unwrap() == 1
}

/// Arms until nothing is ready, without moving anything.
fn fall_asleep(transport: &mut TcpTransport, interest: &Interest) -> bool {
    (0..3).any(|_| transport.arm(interest).unwrap() == Armed::Sleep)
}

#[test]
fn elements_that_arrive_byte_by_byte_are_received_whole_and_in_order() {
    for element in [1, 2, 4, 8] {
        let config = TcpConfig { read_ahead: TcpConfig::READ_AHEAD_MIN, ..TcpConfig::default() };
        let (mut transport, peers) = world(2, &config);
        let mut peer = &peers[0];
        let (mut sent, mut position, mut idle) = (0, 0, 0);
        while position < 3000 * element {
            if sent < 3000 * element {
                let len = (1 + sent * 7 % 9).min(3000 * element - sent);
                let bytes: Vec<u8> = (sent..sent + len).map(|at| (at % 251) as u8).collect();
                peer.write_all(&bytes).unwrap();
                sent += len;
            }
            let mut copy = [0; 256];
            let filled = transport.fill_buf(1, 256).unwrap().copy_to(&mut copy);
            for (offset, &byte) in copy[..filled].iter().enumerate() {
                assert_eq!(byte, ((position + offset) % 251) as u8);
            }
            let whole = filled - filled % element;
            transport.consume(1, whole).unwrap();
            position += whole;
            idle = if whole == 0 { idle + 1 } else { 0 };
            assert!(idle < 1_000_000, "stuck at {position} of {sent} bytes");
        }
    }
}

#[test]
fn a_receiver_of_a_partial_element_sleeps_until_the_rest_arrives() {
    let (mut transport, mut peer) = pair();
    peer.write_all(&[1, 2, 3]).unwrap();
    let waiting = interest(&[1], &[]);
    while transport.fill_buf(1, 4).unwrap().len() < 3 {}
    transport.consume(1, 0).unwrap();
    assert!(fall_asleep(&mut transport, &waiting));
    peer.write_all(&[4, 5]).unwrap();
    sleep(&transport);
    assert_eq!(transport.arm(&waiting).unwrap(), Armed::Ready);
    let mut copy = [0; 8];
    assert_eq!(transport.fill_buf(1, 8).unwrap().copy_to(&mut copy), 5);
    transport.consume(1, 4).unwrap();
    assert_eq!(transport.arm(&waiting).unwrap(), Armed::Ready);
    let mut last = [0; 4];
    assert_eq!(transport.try_recv(1, &mut last).unwrap(), 1);
    assert_eq!((copy[..5].to_vec(), last[0]), (vec![1, 2, 3, 4, 5], 5));
    assert!(transport.consume(1, 1).is_err());
}

#[test]
fn a_process_that_does_not_read_is_not_lost_because_its_kernel_answers() {
    let (mut transport, _peers) = world(2, &TcpConfig::default());
    let keepalive = Keepalive::new(Duration::from_secs(1));
    transport.detect_lost_host(1, keepalive).unwrap();
    let until = Instant::now() + 2 * keepalive.silence_max();
    let bytes = vec![0; 1 << 20];
    let waiting = interest(&[1], &[1]);
    while Instant::now() < until {
        // Fills all buffers, so that the kernel probes the closed window.
        while transport.try_send(1, &[IoSlice::new(&bytes)]).unwrap() > 0 {}
        if transport.arm(&waiting).unwrap() == Armed::Sleep {
            // The timer ends each wait.
            sleep(&transport);
        }
    }
    assert_eq!(transport.try_recv(1, &mut [0]).unwrap(), 0);
}

#[test]
fn a_stream_without_data_has_no_memory_and_its_first_byte_wakes() {
    let (mut transport, mut peer) = pair();
    let waiting = interest(&[1], &[]);
    assert_eq!(transport.try_recv(1, &mut [0; 8]).unwrap(), 0);
    assert_eq!(transport.fill_buf(1, 8).unwrap().len(), 0);
    assert!(!transport.peers[1].as_ref().unwrap().has_read_ahead());
    assert_eq!(transport.arm(&waiting).unwrap(), Armed::Sleep);
    peer.write_all(&[7]).unwrap();
    sleep(&transport);
    assert_eq!(transport.arm(&waiting).unwrap(), Armed::Ready);
    assert_eq!(transport.fill_buf(1, 8).unwrap().len(), 1);
    assert!(transport.peers[1].as_ref().unwrap().has_read_ahead());
}

#[test]
fn the_end_of_the_stream_within_an_element_is_an_error() {
    let (mut transport, mut peer) = pair();
    peer.write_all(&[1, 2, 3]).unwrap();
    drop(peer);
    let waiting = interest(&[1], &[]);
    let error = loop {
        match transport.fill_buf(1, 4) {
            Ok(filled) => assert!(filled.len() <= 3),
            Err(error) => break error,
        }
        if transport.arm(&waiting).unwrap() == Armed::Sleep {
            sleep(&transport);
        }
    };
    assert!(matches!(error, Error::PeerLost { peer: 1, loss: Loss::Closed, .. }), "{error}");
    assert_eq!(transport.arm(&waiting).unwrap(), Armed::Ready);
    let mut rest = [0; 4];
    assert_eq!(transport.try_recv(1, &mut rest).unwrap(), 3);
    assert!(transport.try_recv(1, &mut rest).is_err());
}

#[test]
fn a_stream_that_breaks_before_its_first_byte_has_not_ended_in_order() {
    let (mut transport, peer) = pair();
    Socket::from(peer).set_linger(Some(Duration::ZERO)).unwrap();
    // The transport has seen no event of the socket yet, and the first receive finds the reset.
    let broken = |error: &Error| matches!(error, Error::PeerLost { loss: Loss::Io(_), .. });
    let error = transport.try_recv(1, &mut [0; 8]).unwrap_err();
    assert!(broken(&error), "{error}");
    let error = transport.try_recv(1, &mut [0; 8]).unwrap_err();
    assert!(broken(&error), "{error}");
}

#[test]
fn bytes_before_a_reset_are_delivered_first() {
    let (mut transport, mut peer) = pair();
    transport.try_send(1, &[IoSlice::new(b"unread")]).unwrap();
    peer.write_all(&[7; 100_000]).unwrap();
    while peer.peek(&mut [0; 6]).unwrap() < 6 {}
    drop(peer);
    let failed = (0..1000).find_map(|_| {
        thread::sleep(Duration::from_millis(1));
        transport.try_send(1, &[IoSlice::new(b"late")]).err()
    });
    assert!(matches!(failed, Some(Error::PeerLost { peer: 1, loss: Loss::Io(_), .. })), "{failed:?}");
    let (mut bytes, mut filled) = (vec![0; 200_000], 0);
    let error = loop {
        match transport.try_recv(1, &mut bytes[filled..]) {
            Ok(more) => filled += more,
            Err(error) => break error,
        }
    };
    assert_eq!(filled, 100_000);
    assert!(bytes[..filled].iter().all(|&byte| byte == 7));
    assert!(matches!(error, Error::PeerLost { peer: 1, loss: Loss::Io(_), .. }), "{error}");
    assert!(transport.try_send(1, &[IoSlice::new(b"never")]).is_err());
}

#[test]
fn a_broken_connection_wakes_a_rank_that_waits_for_another_without_an_error() {
    let (mut transport, mut peers) = world(3, &TcpConfig::default());
    let for_first = interest(&[1], &[]);
    assert!(fall_asleep(&mut transport, &for_first));
    drop(peers.remove(1));
    sleep(&transport);
    assert!(fall_asleep(&mut transport, &for_first));
    assert!(!wakes(&transport, 0), "a break is reported once");
    assert_eq!(transport.arm(&interest(&[1, 2], &[])).unwrap(), Armed::Ready);
    assert!(matches!(transport.try_recv(2, &mut [0]), Err(Error::PeerLost { peer: 2, .. })));
    assert_eq!(transport.arm(&interest(&[], &[2])).unwrap(), Armed::Ready);
    assert!(matches!(transport.try_send(2, &[IoSlice::new(b"?")]), Err(Error::PeerLost { peer: 2, .. })));
    peers[0].write_all(b"!").unwrap();
    sleep(&transport);
    assert_eq!(transport.arm(&for_first).unwrap(), Armed::Ready);
    assert_eq!(transport.try_recv(1, &mut [0; 8]).unwrap(), 1);
}

#[test]
fn an_abort_from_another_thread_wakes_a_sleeper_for_good() {
    let (mut transport, _peer) = pair();
    assert!(fall_asleep(&mut transport, &interest(&[1], &[])));
    let handle = transport.abort_handle();
    thread::scope(|scope| {
        scope.spawn(move || {
            thread::sleep(Duration::from_millis(30));
            handle.abort(Error::Aborted { by: 3, reason: "first".into() });
            handle.abort(Error::Aborted { by: 4, reason: "second".into() });
        });
        sleep(&transport);
    });
    for _ in 0..2 {
        let error = transport.arm(&interest(&[1], &[])).unwrap_err();
        assert!(matches!(error, Error::Aborted { by: 3, .. }), "{error}");
        assert!(wakes(&transport, 0));
    }
    assert!(transport.try_recv(1, &mut [0]).is_err() && transport.fill_buf(1, 1).is_err());
}

#[test]
fn small_and_large_receives_may_alternate() {
    let (mut transport, mut peer) = pair();
    let sizes = [24, 1, 100_000, 24, 300_000, 7, 24, 16 * 1024, 24, 0, 24, 400_000];
    let total: usize = sizes.iter().sum();
    let stream: Vec<u8> = (0..total as u64).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 11) as u8).collect();
    thread::scope(|scope| {
        scope.spawn(|| peer.write_all(&stream).unwrap());
        let mut position = 0;
        for size in sizes {
            let (mut into, mut filled) = (vec![0; size], 0);
            while filled < size {
                let more = transport.try_recv(1, &mut into[filled..]).unwrap();
                filled += more;
                if more == 0 && transport.arm(&interest(&[1], &[])).unwrap() == Armed::Sleep {
                    sleep(&transport);
                }
            }
            assert!(into == stream[position..position + size]);
            position += size;
        }
    });
}

#[test]
fn dropping_a_transport_ends_its_streams_in_order() {
    let (mut transport, mut peer) = pair();
    let mut sent = 0;
    loop {
        match transport.try_send(1, &[IoSlice::new(&[9; 4096])]).unwrap() {
            0 => break,
            more => sent += more,
        }
    }
    peer.write_all(&[1; 1000]).unwrap();
    sleep(&transport);
    drop(transport);
    let mut all = Vec::new();
    peer.read_to_end(&mut all).unwrap();
    assert_eq!(all.len(), sent);
}

#[test]
fn a_peer_that_stops_sending_is_lost() {
    let (mut transport, peer) = pair();
    peer.shutdown(Shutdown::Write).unwrap();
    let error = loop {
        match transport.try_recv(1, &mut [0]) {
            Ok(0) => {}
            Ok(_) => panic!("bytes from nowhere"),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::PeerLost { peer: 1, loss: Loss::Closed, .. }), "{error}");
    assert!(transport.try_send(1, &[IoSlice::new(b"?")]).is_err());
}

#[test]
fn a_sender_pauses_after_a_turn_and_may_continue_at_once() {
    let (mut transport, mut peer) = pair();
    let total = 64 * TURN_BYTES;
    thread::scope(|scope| {
        let receiver = scope.spawn(move || std::io::copy(&mut peer, &mut std::io::sink()).unwrap());
        let bytes = vec![0; total];
        let (mut sent, mut in_a_row) = (0, 0);
        while sent < total {
            let more = transport.try_send(1, &[IoSlice::new(&bytes[sent..])]).unwrap();
            (sent, in_a_row) = (sent + more, in_a_row + more);
            assert!(in_a_row <= TURN_BYTES, "{in_a_row} bytes in a row");
            if more > 0 {
                continue;
            }
            let armed = transport.arm(&interest(&[], &[1])).unwrap();
            if in_a_row == TURN_BYTES {
                assert_eq!(armed, Armed::Ready);
            } else if armed == Armed::Sleep {
                sleep(&transport);
            }
            in_a_row = 0;
        }
        drop(transport);
        assert_eq!(receiver.join().unwrap(), total as u64);
    });
}

#[test]
fn more_than_two_gigabytes_are_sent_from_one_slice() {
    const LEN: usize = (2 << 30) + 4097;
    let (mut transport, mut peer) = pair();
    thread::scope(|scope| {
        let receiver = scope.spawn(move || {
            let (mut buffer, mut received) = (vec![1; 1 << 20], 0);
            loop {
                match peer.read(&mut buffer).unwrap() {
                    0 => return received,
                    more => {
                        assert!(buffer[..more].iter().step_by(997).all(|&byte| byte == 0));
                        received += more;
                    }
                }
            }
        });
        // Zeros that are never written take no memory.
        let (zeros, mut sent, waiting) = (vec![0; LEN], 0, interest(&[], &[1]));
        while sent < LEN {
            let more = transport.try_send(1, &[IoSlice::new(&zeros[sent..])]).unwrap();
            sent += more;
            if more == 0 && transport.arm(&waiting).unwrap() == Armed::Sleep {
                sleep(&transport);
            }
        }
        assert_eq!(transport.released(1), LEN as u64);
        drop(transport);
        assert_eq!(receiver.join().unwrap(), LEN);
    });
}
