//! A server's end of a connection, driven by a test.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags};

use super::{K, SOON};

/// The server's end of a connection.
pub(super) struct Peer(pub(super) TcpStream);

impl Peer {
    fn accept(listener: &TcpListener) -> Self {
        // Bounded, because a client that failed never connects.
        let descriptor = PollFd::new(listener, PollFlags::IN);
        assert!(comm_mesh::wait(&mut [descriptor], Some(Instant::now() + SOON)).unwrap(), "no connection");
        let (stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        Self(stream)
    }

    pub(super) fn greeted(listener: &TcpListener) -> Self {
        let mut peer = Self::accept(listener);
        peer.expect(b"\0\xce\xf7\x85\x3c\x0d");
        let number = peer.receive(4);
        peer.send(&number);
        peer
    }

    pub(super) fn receive(&mut self, bytes: usize) -> Vec<u8> {
        let mut received = vec![0; bytes];
        self.0.read_exact(&mut received).unwrap();
        received
    }

    pub(super) fn expect(&mut self, bytes: &[u8]) {
        assert_eq!(self.receive(bytes.len()).escape_ascii().to_string(), bytes.escape_ascii().to_string());
    }

    pub(super) fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    pub(super) fn exchange(&mut self, question: &[u8], answer: &[u8]) {
        self.expect(question);
        self.send(answer);
    }

    /// Expects the question that reads `k`: a compare-and-set with 16 bytes, twice.
    pub(super) fn expect_read(&mut self) -> Vec<u8> {
        self.expect(b"\x02");
        self.expect(K);
        let unlikely = self.receive(24);
        self.expect(&unlikely);
        unlikely
    }

    /// Whether the client has hung up, rather than asked something else.
    pub(super) fn sees_the_end(mut self) -> bool {
        matches!(self.0.read(&mut [0]), Ok(0))
    }
}
