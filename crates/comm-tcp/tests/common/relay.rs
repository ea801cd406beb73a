//! A relay between ranks, which alters the bytes that pass through it.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use comm_core::Store;
use comm_sim::AlteredStore;

/// The direction of bytes through a relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    FromDialer,
    FromAcceptor,
}

/// A change of the bytes of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// Changes these bits of a byte.
    Flip(u8),
    /// Drops this many bytes.
    Drop(u64),
    /// Sends this many of the bytes before the position again, or fewer if there are fewer.
    Repeat(usize),
    /// Inserts this many bytes.
    Insert(usize),
    /// Ends the connection.
    Cut,
}

/// A change at a position of one direction of one connection, counted from 0.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Alteration {
    pub(crate) connection: usize,
    pub(crate) direction: Direction,
    pub(crate) at: u64,
    pub(crate) change: Change,
}

/// The state that all relays of a world share.
#[derive(Debug, Default)]
pub(crate) struct Tampering {
    alteration: Option<Alteration>,
    /// The number of connections so far that carried bytes.
    connections: AtomicUsize,
    /// Whether the bytes were altered.
    pub(crate) applied: AtomicBool,
    /// The bytes that have arrived from dialers and from acceptors.
    pub(crate) passed: [AtomicU64; 2],
    /// Those bytes, if they are to be recorded.
    pub(crate) recorded: Option<Mutex<Vec<Vec<u8>>>>,
}

impl Tampering {
    pub(crate) fn new(alteration: Option<Alteration>) -> Self {
        Self { alteration, ..Self::default() }
    }

    /// Records the bytes of each direction of each connection, one after another.
    pub(crate) fn recording() -> Self {
        Self { recorded: Some(Mutex::default()), ..Self::default() }
    }
}

/// Accepts connections in place of `target`, for the rest of the test.
pub(crate) fn relay(target: SocketAddr, tampering: &Arc<Tampering>) -> SocketAddr {
    let listener = TcpListener::bind((target.ip(), 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let tampering = Arc::clone(tampering);
    thread::spawn(move || {
        for dialer in listener.incoming() {
            let Ok(dialer) = dialer else { return };
            // A rank that has exited refuses connections, and so does its relay.
            let Ok(acceptor) = TcpStream::connect(target) else { return };
            let tampering = Arc::clone(&tampering);
            thread::spawn(move || carry(&dialer, &acceptor, &tampering));
        }
    });
    address
}

/// Carries the bytes of a connection in both directions.
fn carry(dialer: &TcpStream, acceptor: &TcpStream, tampering: &Tampering) {
    dialer.set_nodelay(true).unwrap();
    acceptor.set_nodelay(true).unwrap();
    // Connections that only probe carry no bytes.
    if !matches!(dialer.peek(&mut [0]), Ok(1..)) {
        return;
    }
    let connection = tampering.connections.fetch_add(1, Ordering::Relaxed);
    let alteration = tampering.alteration.filter(|alteration| alteration.connection == connection);
    let of = |direction| alteration.filter(|alteration| alteration.direction == direction);
    thread::scope(|scope| {
        scope.spawn(|| pump(dialer, acceptor, of(Direction::FromDialer), tampering, 0));
        scope.spawn(|| pump(acceptor, dialer, of(Direction::FromAcceptor), tampering, 1));
    });
}

fn pump(
    mut from: &TcpStream,
    mut to: &TcpStream,
    alteration: Option<Alteration>,
    tampering: &Tampering,
    side: usize,
) {
    let (mut buffer, mut history) = (vec![0; 64 * 1024], Vec::new());
    let mut dropping = 0;
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        tampering.passed[side].fetch_add(read as u64, Ordering::Relaxed);
        let mut out = Vec::with_capacity(read + 64);
        for &byte in &buffer[..read] {
            let at = history.len() as u64;
            history.push(byte);
            let change = alteration.filter(|alteration| alteration.at == at).map(|it| it.change);
            if change.is_some() {
                tampering.applied.store(true, Ordering::Relaxed);
            }
            match change {
                None => {}
                Some(Change::Flip(bits)) => {
                    out.push(byte ^ bits);
                    continue;
                }
                Some(Change::Drop(bytes)) => dropping = bytes,
                Some(Change::Repeat(bytes)) => {
                    let before = &history[..history.len() - 1];
                    out.extend_from_slice(&before[before.len().saturating_sub(bytes)..]);
                }
                Some(Change::Insert(bytes)) => out.extend(std::iter::repeat_n(0xa5, bytes)),
                Some(Change::Cut) => {
                    let _ = to.write_all(&out);
                    let _ = from.shutdown(Shutdown::Both);
                    let _ = to.shutdown(Shutdown::Both);
                    return;
                }
            }
            if dropping > 0 {
                dropping -= 1;
            } else {
                out.push(byte);
            }
        }
        if to.write_all(&out).is_err() {
            break;
        }
    }
    if let Some(recorded) = &tampering.recorded {
        recorded.lock().unwrap().push(history);
    }
    let _ = to.shutdown(Shutdown::Write);
}

/// A store in which every rank has the address of a relay in front of it.
pub(crate) fn with_relays<S: Store>(store: S, tampering: Arc<Tampering>) -> impl Store {
    let relays: Mutex<Vec<(SocketAddr, SocketAddr)>> = Mutex::new(Vec::new());
    let value = move |key: &str, value: Vec<u8>| {
        if !key.contains("/records/") || key.ends_with("/count") {
            return value;
        }
        let text = String::from_utf8(value).unwrap();
        let replace = |word: &str| {
            let Ok(target) = word.parse::<SocketAddr>() else { return word.to_owned() };
            let mut relays = relays.lock().unwrap();
            let known = relays.iter().find(|(of, _)| *of == target).map(|(_, relay)| *relay);
            let address = known.unwrap_or_else(|| {
                let address = relay(target, &tampering);
                relays.push((target, address));
                address
            });
            address.to_string()
        };
        text.split(' ').map(replace).collect::<Vec<_>>().join(" ").into_bytes()
    };
    AlteredStore { store, value }
}
