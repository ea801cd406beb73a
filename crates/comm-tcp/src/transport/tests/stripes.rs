//! Several sockets per peer, where the test holds the other end of each.

use super::*;

const STRIPES: Stripes = Stripes { sockets: 3, bytes: 4 };

/// Rank 0, and the sockets to rank 1 from the first to the last.
fn striped_pair(stripes: Stripes) -> (TcpTransport, Vec<TcpStream>) {
    let (transport, mut peers) = striped_world(2, stripes, &TcpConfig::default());
    (transport, peers.remove(0))
}

/// Deals the bytes of a stream out as its sender would, without sending anything.
fn deal(stream: &[u8], stripes: Stripes) -> Vec<Vec<u8>> {
    let mut dealt = vec![Vec::new(); usize::from(stripes.sockets)];
    for (turn, stripe) in stream.chunks(stripes.bytes as usize).enumerate() {
        let sockets = dealt.len();
        dealt[turn % sockets].extend_from_slice(stripe);
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
fn the_position_of_a_byte_determines_its_socket() {
    let (mut transport, mut peers) = striped_pair(STRIPES);
    let stream: Vec<u8> = (0..100).collect();
    let mut sent = 0;
    for len in [1, 2, 3, 4, 5, 6, 30, 49] {
        let (mut first, mut second) = stream[sent..sent + len].split_at(len / 2);
        while first.len() + second.len() > 0 {
            let more = transport.try_send(1, &[IoSlice::new(first), IoSlice::new(second)]).unwrap();
            let of_first = more.min(first.len());
            (first, second) = (&first[of_first..], &second[more - of_first..]);
        }
        sent += len;
    }
    drop(transport);
    for (peer, expected) in peers.iter_mut().zip(deal(&stream, STRIPES)) {
        let mut bytes = Vec::new();
        peer.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes, expected);
    }
}

#[test]
fn bytes_of_one_stripe_are_sent_at_once_through_one_socket() {
    let (mut transport, mut peers) = striped_pair(Stripes { sockets: 4, bytes: 64 });
    assert_eq!(transport.try_send(1, &[IoSlice::new(&[1; 24]), IoSlice::new(&[2; 40])]).unwrap(), 64);
    assert_eq!(transport.try_send(1, &[IoSlice::new(&[3; 65])]).unwrap(), 64);
    assert_eq!(transport.released(1), 128);
    let mut bytes = [0; 64];
    peers[0].read_exact(&mut bytes).unwrap();
    assert_eq!((bytes[..24].to_vec(), bytes[24..].to_vec()), (vec![1; 24], vec![2; 40]));
    peers[1].read_exact(&mut bytes).unwrap();
    assert_eq!(bytes, [3; 64]);
}

#[test]
fn stripes_are_received_in_order_whichever_socket_is_faster() {
    let stream: Vec<u8> = (0..=255).cycle().take(1000).collect();
    for stripe in [1, 3, 4, 7, 8, 100, 999, 1000] {
        let stripes = Stripes { sockets: 4, bytes: stripe };
        let (mut transport, mut peers) = striped_pair(stripes);
        let dealt = deal(&stream, stripes);
        thread::scope(|scope| {
            scope.spawn(|| {
                for (peer, bytes) in peers.iter_mut().zip(&dealt).rev() {
                    peer.write_all(bytes).unwrap();
                    thread::sleep(Duration::from_millis(1));
                    peer.shutdown(Shutdown::Write).unwrap();
                }
            });
            let (all, error) = receive_all(&mut transport);
            assert_eq!(all, stream);
            assert!(matches!(error, Error::PeerLost { peer: 1, loss: Loss::Closed, .. }), "{error}");
        });
    }
}

#[test]
fn elements_are_received_whole_across_stripes() {
    for (stripe, element) in [(1, 8), (3, 4), (5, 8), (7, 2)] {
        let stripes = Stripes { sockets: 3, bytes: stripe };
        let (mut transport, mut peers) = striped_pair(stripes);
        let stream: Vec<u8> = (0..240).collect();
        for (peer, bytes) in peers.iter_mut().zip(deal(&stream, stripes)) {
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
fn the_end_of_any_socket_ends_the_stream_where_its_bytes_end() {
    for ended in 0..3 {
        let (mut transport, mut peers) = striped_pair(STRIPES);
        let stream: Vec<u8> = (0..40).collect();
        for (at, (peer, bytes)) in peers.iter_mut().zip(deal(&stream, STRIPES)).enumerate() {
            // The socket that ends has carried one stripe; the others stay open and carry more.
            peer.write_all(if at == ended { &bytes[..4] } else { &bytes }).unwrap();
        }
        peers[ended].shutdown(Shutdown::Write).unwrap();
        let (all, error) = receive_all(&mut transport);
        assert_eq!(all, stream[..12 + 4 * ended]);
        assert!(matches!(error, Error::PeerLost { peer: 1, loss: Loss::Closed, .. }), "{error}");
        assert!(transport.try_send(1, &[IoSlice::new(b"?")]).is_err());
        assert_eq!(transport.arm(&interest(&[1], &[])).unwrap(), Armed::Ready);
        assert_eq!(transport.arm(&interest(&[], &[1])).unwrap(), Armed::Ready);
    }
}

#[test]
fn the_end_of_an_idle_socket_wakes_a_sleeper() {
    let (mut transport, peers) = striped_pair(STRIPES);
    let waiting = interest(&[1], &[]);
    assert!(fall_asleep(&mut transport, &waiting));
    peers[2].shutdown(Shutdown::Write).unwrap();
    sleep(&transport);
    assert_eq!(transport.arm(&waiting).unwrap(), Armed::Ready);
    assert!(fall_asleep(&mut transport, &waiting), "it is the turn of another socket, which is alive");
}

/// A socket that is closed with unread bytes resets its connection.
#[test]
fn a_socket_that_breaks_out_of_turn_ends_the_stream_at_both_ends() {
    let (mut transport, mut peers) = striped_pair(STRIPES);
    for turn in 0..2 {
        assert_eq!(transport.try_send(1, &[IoSlice::new(&[turn; 12])]).unwrap(), 4);
    }
    while peers[1].peek(&mut [0; 4]).unwrap() < 4 {}
    peers[0].write_all(&[7; 3]).unwrap();
    drop(peers.remove(1));
    // A wait for bytes of another socket reports it, and ends this side's stream.
    let waiting = interest(&[1], &[]);
    let mut first = [0; 8];
    let mut peer_knows = || {
        let _ = transport.arm(&waiting).unwrap();
        peers[1].set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        peers[1].peek(&mut [0]).is_ok_and(|read| read == 0)
    };
    assert!((0..1000).any(|_| peer_knows()), "the peer waits forever");
    assert_eq!(transport.try_recv(1, &mut first).unwrap(), 3);
    let failed = (0..2).find_map(|_| transport.try_send(1, &[IoSlice::new(b"?")]).err());
    assert!(matches!(failed, Some(Error::PeerLost { peer: 1, .. })), "{failed:?}");
    // The peer ends its direction too, which ends the wait here.
    drop(peers);
    let (rest, error) = receive_all(&mut transport);
    assert!(rest.is_empty() && matches!(error, Error::PeerLost { peer: 1, .. }), "{rest:?}, {error}");
}

#[test]
fn dropping_a_transport_ends_all_its_sockets_in_order() {
    let (mut transport, mut peers) = striped_pair(Stripes { sockets: 4, bytes: 4096 });
    let (mut sent, mut refused) = (0, 0);
    while refused < 2 {
        match transport.try_send(1, &[IoSlice::new(&[9; 4096])]).unwrap() {
            0 => refused += 1,
            more => sent += more,
        }
    }
    for peer in &mut peers {
        peer.write_all(&[1; 1000]).unwrap();
    }
    sleep(&transport);
    drop(transport);
    let mut all = Vec::new();
    for peer in &mut peers {
        peer.read_to_end(&mut all).unwrap();
    }
    assert_eq!(all.len(), sent);
}
