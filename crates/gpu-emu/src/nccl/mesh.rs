//! A socket to every other rank.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::thread;

use crate::sync::lock;

use super::mailbox::{Mailbox, Message};
use super::wire::{HEADER_BYTES, Header};

/// The connections of the ranks of one initialization. Communicators created from others share it.
#[derive(Debug)]
pub(super) struct Mesh {
    pub(super) me: u32,
    pub(super) mailbox: Arc<Mailbox>,
    peers: BTreeMap<u32, Mutex<UnixStream>>,
}

impl Mesh {
    /// Starts a reader thread for every socket. Readers never wait for operations, so that writers
    /// do not block for long.
    pub(super) fn new(me: u32, streams: BTreeMap<u32, UnixStream>) -> io::Result<Self> {
        let mailbox = Arc::new(Mailbox::default());
        let mut peers = BTreeMap::new();
        for (peer, stream) in streams {
            let (mailbox, mut incoming) = (mailbox.clone(), stream.try_clone()?);
            let reader = thread::Builder::new().name(format!("gpu-emu rank {me} from {peer}"));
            reader.spawn(move || {
                while let Ok(message) = receive(&mut incoming) {
                    mailbox.put(peer, message);
                }
                mailbox.lose(peer);
            })?;
            peers.insert(peer, Mutex::new(stream));
        }
        Ok(Self { me, mailbox, peers })
    }

    /// Sends to a rank, which may be this one. The loss of a peer is detected by the operation that
    /// waits for it, so errors are ignored here.
    pub(super) fn send(&self, to: u32, header: Header, payload: Vec<u8>) {
        let header = Header { length: payload.len() as u64, ..header };
        if to == self.me {
            self.mailbox.put(to, Message { header, payload });
        } else if let Some(stream) = self.peers.get(&to) {
            let mut stream = lock(stream);
            let _gone = stream.write_all(&header.encode()).and_then(|()| stream.write_all(&payload));
        }
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        for stream in self.peers.values() {
            let _already_closed = lock(stream).shutdown(Shutdown::Both);
        }
    }
}

fn receive(stream: &mut UnixStream) -> io::Result<Message> {
    let mut header = [0; HEADER_BYTES];
    stream.read_exact(&mut header)?;
    let header = Header::decode(&header).ok_or(io::ErrorKind::InvalidData)?;
    let mut payload = Vec::new();
    stream.take(header.length).read_to_end(&mut payload)?;
    if payload.len() as u64 == header.length {
        Ok(Message { header, payload })
    } else {
        Err(io::ErrorKind::UnexpectedEof.into())
    }
}
