//! Several sockets per peer, where the test holds the other end of each.

use std::io::ErrorKind;

use super::*;
use crate::stripes::StripeHeader;

/// Rank 0, and the sockets to rank 1: the first one, and those that rank 1 has added.
fn pair_with_incoming(added: u8) -> (TcpTransport, TcpStream, Vec<TcpStream>) {
    let (mut transport, first) = pair();
    let added = (1..=added).map(|number| add_incoming(&mut transport, number)).collect();
    (transport, first, added)
}

/// Adds a socket to the stream from rank 1.
fn add_incoming(transport: &mut TcpTransport, number: u8) -> TcpStream {
    let (ours, theirs) = connect();
    let connection = Connection::new(ours, 1000).assume_ready();
    let incoming = IncomingSocket { rank: 1, number, connection, keepalive: None };
    transport.add_incoming(incoming).unwrap();
    theirs
}

/// Adds a socket to the stream to rank 1.
fn add_outgoing(transport: &mut TcpTransport) -> TcpStream {
    let (ours, theirs) = connect();
    let connection = Connection::new(ours, 1000).assume_ready();
    let Some(Some(peer)) = transport.peers.get_mut(1) else { panic!("there is no rank 1") };
    let token = Token::Socket(1, Slot::Outgoing(peer.outgoing().count())).data();
    epoll::add(&transport.epoll, &connection, token, EVENTS).unwrap();
    peer.outgoing().add(connection, 0);
    peer.outgoing().use_added(usize::MAX, Instant::now());
    transport.holds_bytes = true;
    theirs
}

fn stripe(position: usize, bytes: &[u8]) -> Vec<u8> {
    let header = StripeHeader { position: position as u64, bytes: bytes.len() as u32 };
    [&header.encode()[..], bytes].concat()
}

/// Deals the bytes of a stream out from `start` on, in stripes of `len` bytes.
fn deal(stream: &[u8], start: usize, (sockets, len): (usize, usize)) -> Vec<Vec<u8>> {
    let mut dealt = vec![Vec::new(); sockets];
    for (turn, bytes) in stream[start..].chunks(len).enumerate() {
        dealt[turn * 5 % sockets].extend_from_slice(&stripe(start + turn * len, bytes));
    }
    dealt
}

/// Receives up to the end of the stream.
fn receive_all(transport: &mut TcpTransport) -> (Vec<u8>, Error) {
    let (mut all, mut piece) = (Vec::new(), [0; 9]);
    loop {
        match transport.try_recv(1, &mut piece) {
            Ok(0) => {
                if transport.arm(&interest(&[1], &[])).unwrap() == Armed::Sleep {
                    sleep(transport);
                }
            }
            Ok(more) => all.extend_from_slice(&piece[..more]),
            Err(error) => return (all, error),
        }
    }
}

#[test]
fn stripes_are_received_in_order_whichever_socket_is_faster() {
    let stream: Vec<u8> = (0..=255).cycle().take(1000).collect();
    for (start, len) in [(0, 1), (0, 3), (1, 4), (9, 7), (10, 8), (500, 100), (999, 1), (1000, 1)] {
        let (mut transport, mut first, mut added) = pair_with_incoming(4);
        let dealt = deal(&stream, start, (4, len));
        thread::scope(|scope| {
            scope.spawn(|| {
                for (peer, bytes) in added.iter_mut().zip(&dealt).rev() {
                    peer.write_all(bytes).unwrap();
                    thread::sleep(Duration::from_millis(1));
                    peer.shutdown(Shutdown::Write).unwrap();
                }
                first.write_all(&stream[..start]).unwrap();
                first.shutdown(Shutdown::Write).unwrap();
            });
            let (all, error) = receive_all(&mut transport);
            assert!(all == stream, "{} bytes of the stream", all.len());
            assert!(matches!(error, Error::PeerLost { peer: 1, loss: Loss::Closed, .. }), "{error}");
        });
    }
}

#[test]
fn elements_are_received_whole_across_stripes() {
    for (len, element) in [(1, 8), (3, 4), (5, 8), (7, 2)] {
        let (mut transport, _first, mut added) = pair_with_incoming(3);
        let stream: Vec<u8> = (0..240).collect();
        for (peer, bytes) in added.iter_mut().zip(deal(&stream, 0, (3, len))) {
            peer.write_all(&bytes).unwrap();
        }
        let (mut received, mut copy) = (Vec::new(), [0; 240]);
        while received.len() < stream.len() {
            let filled = transport.fill_buf(1, 240).unwrap().copy_to(&mut copy);
            let whole = filled - filled % element;
            assert!(whole > 0, "{filled} bytes of {element} are received at {}", received.len());
            received.extend_from_slice(&copy[..whole]);
            transport.consume(1, whole).unwrap();
        }
        assert_eq!(received, stream);
    }
}

#[test]
fn a_message_within_a_stripe_has_no_header_and_needs_one_write() {
    let (mut transport, _first) = pair();
    let mut peers = [(); 2].map(|()| add_outgoing(&mut transport));
    for byte in 0..3 {
        assert_eq!(transport.try_send(1, &[IoSlice::new(&[byte; 24]), IoSlice::new(&[9; 40])]).unwrap(), 64);
    }
    let mut bytes = [0; 12 + 3 * 64];
    peers[0].read_exact(&mut bytes).unwrap();
    assert_eq!(bytes[..12], StripeHeader { position: 0, bytes: 65536 }.encode());
    let messages = (0..3).flat_map(|byte| [[byte; 24].to_vec(), vec![9; 40]].concat());
    assert!(bytes[12..].iter().copied().eq(messages));
    peers[1].set_nonblocking(true).unwrap();
    assert_eq!(peers[1].read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn a_socket_that_is_not_read_does_not_hold_up_the_others() {
    const TOTAL: usize = 64 << 20;
    let (mut transport, _first) = pair();
    let peers = [(); 3].map(|()| add_outgoing(&mut transport));
    thread::scope(|scope| {
        for mut peer in &peers[1..] {
            scope.spawn(move || std::io::copy(&mut peer, &mut std::io::sink()));
        }
        let (bytes, mut sent) = (vec![3; 1 << 20], 0);
        while sent < TOTAL {
            match transport.try_send(1, &[IoSlice::new(&bytes)]).unwrap() {
                0 if transport.arm(&interest(&[], &[1])).unwrap() == Armed::Sleep => sleep(&transport),
                more => sent += more,
            }
        }
        // The other sockets have taken nearly all of it.
        assert!(transport.released(1) < TOTAL as u64);
        drop(transport);
    });
}

#[test]
fn a_socket_that_ends_within_a_stripe_ends_the_stream_there() {
    let (mut transport, _first, mut added) = pair_with_incoming(2);
    added[1].write_all(&stripe(0, &[1; 10])).unwrap();
    added[0].write_all(&stripe(10, &[2; 10])[..15]).unwrap();
    added[0].shutdown(Shutdown::Write).unwrap();
    let (all, error) = receive_all(&mut transport);
    assert_eq!(all, [[1; 10].to_vec(), vec![2; 3]].concat());
    assert!(matches!(error, Error::PeerLost { peer: 1, loss: Loss::Closed, .. }), "{error}");
    assert!(transport.try_send(1, &[IoSlice::new(b"?")]).is_err());
    assert_eq!(transport.arm(&interest(&[1], &[])).unwrap(), Armed::Ready);
}

#[test]
fn a_stripe_that_repeats_bytes_names_the_peer_and_ends_all_sockets() {
    let (mut transport, mut first, mut added) = pair_with_incoming(2);
    first.write_all(&[7; 5]).unwrap();
    added[1].write_all(&stripe(5, &[1; 10])).unwrap();
    added[0].write_all(&stripe(12, &[2; 10])).unwrap();
    let (all, error) = receive_all(&mut transport);
    assert_eq!(all, [[7; 5].to_vec(), vec![1; 10]].concat());
    assert!(matches!(&error, Error::PeerLost { peer: 1, loss: Loss::Protocol(_), .. }), "{error}");
    assert!(error.to_string().contains("socket 1 repeats byte 12"), "{error}");
    for mut peer in added.into_iter().chain([first]) {
        peer.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        assert_eq!(peer.read(&mut [0]).unwrap(), 0, "the peer learns of it");
    }
}

/// A socket that is closed with unread bytes resets its connection.
#[test]
fn an_added_socket_that_breaks_ends_the_stream_at_both_ends() {
    let (mut transport, first) = pair();
    let peer = add_outgoing(&mut transport);
    assert_eq!(transport.try_send(1, &[IoSlice::new(&[4; 100])]).unwrap(), 100);
    while peer.peek(&mut [0; 4]).unwrap() < 4 {}
    drop(peer);
    let waiting = interest(&[1], &[]);
    first.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let mut peer_knows = || {
        let _ = transport.arm(&waiting).unwrap();
        first.peek(&mut [0]).is_ok_and(|read| read == 0)
    };
    assert!((0..1000).any(|_| peer_knows()), "the peer waits forever");
    let failed = (0..2).find_map(|_| transport.try_send(1, &[IoSlice::new(b"?")]).err());
    assert!(matches!(failed, Some(Error::PeerLost { peer: 1, .. })), "{failed:?}");
    // The peer ends its direction too, which ends the wait here.
    drop(first);
    let (rest, error) = receive_all(&mut transport);
    assert!(rest.is_empty() && matches!(error, Error::PeerLost { peer: 1, .. }), "{rest:?}, {error}");
}

#[test]
fn a_socket_that_was_added_twice_or_breaks_unused_is_not_missed() {
    let (mut transport, mut first, mut added) = pair_with_incoming(2);
    let mut again = add_incoming(&mut transport, 1);
    again.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    assert_eq!(again.read(&mut [0]).unwrap(), 0, "it is closed");
    let unused = Socket::from(added.remove(1));
    unused.set_linger(Some(Duration::ZERO)).unwrap();
    drop(unused);
    let waiting = interest(&[1], &[]);
    let is_asleep = (0..1000).any(|_| {
        assert_eq!(transport.try_recv(1, &mut [0; 8]).unwrap(), 0);
        transport.arm(&waiting).unwrap() == Armed::Sleep
    });
    assert!(is_asleep);
    first.write_all(&[1, 2]).unwrap();
    added[0].write_all(&stripe(2, &[3, 4])).unwrap();
    drop((first, added));
    let (all, error) = receive_all(&mut transport);
    assert_eq!(all, [1, 2, 3, 4]);
    assert!(matches!(error, Error::PeerLost { peer: 1, loss: Loss::Closed, .. }), "{error}");
}

#[test]
fn dropping_a_transport_ends_all_its_sockets_in_order() {
    let (mut transport, _first, mut added) = pair_with_incoming(1);
    let mut peers = [(); 3].map(|()| add_outgoing(&mut transport));
    let sent = (0..200).map(|_| transport.try_send(1, &[IoSlice::new(&[9; 4096])]).unwrap()).sum::<usize>();
    assert_eq!(transport.released(1), sent as u64);
    added[0].write_all(&stripe(0, &[1; 1000])).unwrap();
    sleep(&transport);
    drop(transport);
    let mut all = Vec::new();
    for peer in &mut peers {
        peer.read_to_end(&mut all).unwrap();
    }
    assert_eq!(all.len(), sent + 12 * sent.div_ceil(65536));
}
