//! A client against a server that sends altered, repeated and reordered responses in pieces.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::thread;

use comm_sim::hostile::Input;
use socket2::Socket;

use super::*;
use crate::hello::Role;
use crate::protection::{FrameCheck, Protection};
use crate::secret::Secret;

const SOON: Duration = Duration::from_secs(20);
/// The longest response that is accepted: shorter than one that is sent, or far longer.
const LONGEST: [usize; 2] = [4000, 1 << 20];
/// The most memory that an operation allocates besides twice the bytes that were sent.
const ALLOCATED_MAX: u64 = 3 * (64 << 10);

/// Returns a client with one connection, and the server's end of it.
fn client(protection: Option<Protection>, longest: usize) -> (TcpStore, UnixStream) {
    let (near, far) = UnixStream::pair().unwrap();
    let config = StoreConfig { frame_bytes_max: longest, operation_timeout: SOON, ..StoreConfig::default() };
    let pool = ConnectionPool::default();
    pool.put(Established { socket: Socket::from(std::os::fd::OwnedFd::from(near)), protection, tls: None });
    (TcpStore { address: SocketAddr::from(([127, 0, 0, 1], 9)), config, pool, server: 0 }, far)
}

/// Draws the protection of a connection, as both sides have it.
fn protections(input: &mut Input) -> [Option<Protection>; 2] {
    let secret = Secret::new("sesame").unwrap();
    let keyed = |role| Some(Protection::authenticated(&secret, role, b"messages"));
    match input.below(3) {
        0 => [None, None],
        1 => [keyed(Role::Dialer), keyed(Role::Acceptor)],
        _ => [Some(Protection::checksums()), Some(Protection::checksums())],
    }
}

/// Returns responses as the server sends them.
fn responses(mut check: Option<&mut FrameCheck>) -> Vec<Vec<u8>> {
    let value = vec![9; 5000];
    let responses = [
        Response::Done(b"\x01"),
        Response::Done(b""),
        Response::Done(&[1; 8]),
        Response::Done(&value),
        Response::TimedOut(b"a, b"),
        Response::NotANumber(b"seven"),
        Response::Full,
        Response::Closing,
    ];
    let (mut near, far) = UnixStream::pair().unwrap();
    let encode = |response: &Response<'_>| {
        let mut frame = FrameWriter::new(response.encode().unwrap(), check.as_deref_mut());
        assert!(frame.flush(&far).unwrap());
        let mut bytes = vec![0; 8192];
        let len = near.read(&mut bytes).unwrap();
        bytes.truncate(len);
        bytes
    };
    responses.iter().map(encode).collect()
}

/// Returns the data of the first response of a stream that has no protection, if it is whole and
/// reports success.
fn first_value(stream: &[u8]) -> Option<&[u8]> {
    let (length, rest) = stream.split_first_chunk::<4>()?;
    let (code, value) = rest.get(..u32::from_le_bytes(*length) as usize)?.split_first()?;
    (*code == 0).then_some(value)
}

/// Runs a drawn operation, and returns its value as the server sends it.
fn operate(store: &TcpStore, operation: usize) -> Result<Option<Vec<u8>>> {
    let flag = |flag: bool| flag.then(|| vec![1]);
    Ok(match operation {
        0 => store.set("k", b"v").map(|()| None)?,
        1 => Some(store.get("k", SOON)?),
        2 => Some(store.compare_set("k", b"", b"v")?),
        3 => Some(store.add("k", 1)?.to_le_bytes().to_vec()),
        4 => Some(store.num_keys()?.to_le_bytes().to_vec()),
        5 => flag(store.delete("k")?),
        6 => flag(store.check(&["k"])?),
        _ => store.wait(&["k"], SOON).map(|()| None)?,
    })
}

fn answer_wrongly(input: &mut Input) {
    let [own, mut other] = protections(input);
    let is_protected = own.is_some();
    let valid = responses(other.as_mut().map(|protection| &mut protection.sending));
    let at = input.below(valid.len());
    // Numbers of frames begin at zero, so only the first one is valid if there are checks.
    let start = if is_protected { 0 } else { at };
    let sent = input.stream(&valid[start..]).concat();
    let pieces: Vec<Vec<u8>> = input.cut(&sent).into_iter().map(<[u8]>::to_vec).collect();
    let (operation, longest) = (input.below(8), *input.pick(&LONGEST));
    let (store, mut far) = client(own, longest);
    thread::scope(|scope| {
        scope.spawn(move || {
            // The request, in one read.
            let _ = far.read(&mut [0; 1024]).unwrap();
            for piece in pieces {
                // The client may have failed.
                let _ = far.write_all(&piece);
            }
            let _ = far.shutdown(Shutdown::Write);
            let _ = far.read_to_end(&mut Vec::new());
        });
        let mut outcome = None;
        let memory = allocation_counter::measure(|| {
            outcome = Some(operate(&store, operation));
        });
        let most = ALLOCATED_MAX + 2 * sent.len() as u64;
        assert!(memory.bytes_max <= most, "{} bytes were allocated", memory.bytes_max);
        let first = if is_protected {
            sent.starts_with(&valid[0]).then_some(&b"\x01"[..])
        } else {
            first_value(&sent)
        };
        match outcome.unwrap() {
            Ok(Some(value)) => {
                assert_eq!(Some(&value[..]), first, "another value");
                assert!(value.len() < longest);
            }
            Ok(None) => assert!(first.is_some(), "success"),
            Err(Error::Io { .. } | Error::Invalid(_) | Error::Handshake { .. } | Error::Timeout { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        drop(store);
    });
}

comm_sim::hostile_input!(hostile_responses_are_errors: 1500, answer_wrongly);
