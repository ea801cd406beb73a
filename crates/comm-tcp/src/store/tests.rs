//! Clients that passed the handshake and then misbehave.

mod hostile;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use comm_core::{ChannelId, ChannelKind, GroupId, Refusal, Store};

use super::protocol::{Request, Response};
use super::{StoreConfig, TcpStore, TcpStoreServer};
use crate::connect::{Connected, Connector, run_first};
use crate::hello::{Hello, Purpose};
use crate::protection::ProtectionConfig;
use crate::socket::Options;

const SOON: Duration = Duration::from_secs(10);

fn dial(address: SocketAddr, hello: Hello) -> Connected {
    let mut connectors =
        [Connector::new(address, hello, ProtectionConfig::NONE, Options::store_client(None))];
    run_first(&mut connectors, Instant::now() + SOON).unwrap().1
}

/// A connection on which the server expects requests.
fn raw(address: SocketAddr) -> TcpStream {
    let Connected::Open(connection) = dial(address, Hello::store(0)) else { panic!("the store refused us") };
    let stream = TcpStream::from(connection.socket);
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream
}

fn serve(config: StoreConfig) -> (TcpStoreServer, TcpStore) {
    let server = TcpStoreServer::bind("127.0.0.1:0".parse().unwrap(), config.clone()).unwrap();
    let store = TcpStore::connect(server.local_addr(), config, SOON).unwrap();
    (server, store)
}

fn response(stream: &mut TcpStream) -> Vec<u8> {
    let mut prefix = [0; 4];
    stream.read_exact(&mut prefix).unwrap();
    let mut body = vec![0; u32::from_le_bytes(prefix) as usize];
    stream.read_exact(&mut body).unwrap();
    body
}

/// Whether the server closed the connection without an answer.
fn closed(stream: &mut TcpStream) -> bool {
    stream.read(&mut [0]).map_or_else(|e| e.kind() != std::io::ErrorKind::WouldBlock, |read| read == 0)
}

#[test]
fn frames_that_are_too_long_or_make_no_sense_close_their_connection_only() {
    let (server, store) = serve(StoreConfig::default());
    let hostile: [&[u8]; 6] = [
        &u32::MAX.to_le_bytes(),
        &(16 << 20 | 1_u32).to_le_bytes(),
        &[0, 0, 0, 0],
        &[1, 0, 0, 0, 77],
        &[6, 0, 0, 0, 1, 255, 255, 255, 255, 0],
        b"GET / HTTP/1.1\r\n\r\n",
    ];
    for bytes in hostile {
        let mut stream = raw(server.local_addr());
        stream.write_all(bytes).unwrap();
        assert!(closed(&mut stream), "{bytes:?}");
        store.set("k", b"v").unwrap();
    }
}

#[test]
fn a_stalled_request_times_out_but_an_idle_client_does_not() {
    let config = StoreConfig { operation_timeout: Duration::from_millis(200), ..StoreConfig::default() };
    let (server, _store) = serve(config);
    let mut silent = raw(server.local_addr());
    let mut stalled = raw(server.local_addr());
    stalled.write_all(&[9, 0, 0]).unwrap();
    assert!(closed(&mut stalled));
    silent.write_all(&Request::Delete { key: "k" }.encode().unwrap()).unwrap();
    assert_eq!(Response::decode(&response(&mut silent)), Ok(Response::Done(&[0])));
}

#[test]
fn requests_may_arrive_byte_by_byte_or_many_at_once() {
    let (server, _store) = serve(StoreConfig::default());
    let mut stream = raw(server.local_addr());
    let requests = [
        Request::Add { key: "n", amount: 2 },
        Request::Get { key: "missing", timeout: Duration::from_millis(20) },
        Request::Add { key: "n", amount: 3 },
    ];
    let frames: Vec<u8> = requests.iter().flat_map(|request| request.encode().unwrap()).collect();
    for byte in &frames {
        stream.write_all(&[*byte]).unwrap();
    }
    stream.write_all(&frames).unwrap();
    for sum in [2_i64, 5, 7, 10] {
        assert_eq!(Response::decode(&response(&mut stream)), Ok(Response::Done(&sum.to_le_bytes())));
        if sum % 5 == 2 {
            assert_eq!(Response::decode(&response(&mut stream)), Ok(Response::TimedOut(b"missing")));
        }
    }
}

#[test]
fn a_client_that_leaves_while_it_waits_does_not_count_as_connected() {
    let config = StoreConfig { connections_max: 2, ..StoreConfig::default() };
    let (server, store) = serve(config);
    for _ in 0..20 {
        let mut waiting = raw(server.local_addr());
        let forever = Request::Wait { keys: vec!["never"], timeout: Duration::MAX };
        waiting.write_all(&forever.encode().unwrap()).unwrap();
        store.set("k", b"v").unwrap();
    }
}

#[test]
fn a_wait_ends_when_all_keys_exist_at_the_same_time() {
    let (server, store) = serve(StoreConfig::default());
    let mut waiting = raw(server.local_addr());
    let wait = Request::Wait { keys: vec!["a", "b", "c"], timeout: SOON };
    waiting.write_all(&wait.encode().unwrap()).unwrap();
    for (key, gone) in [("a", "a"), ("b", ""), ("c", "b")] {
        store.set(key, b"").unwrap();
        store.delete(gone).unwrap();
    }
    waiting.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    assert!(!closed(&mut waiting), "the wait ended although keys are missing");
    waiting.set_read_timeout(Some(SOON)).unwrap();
    store.set("b", b"").unwrap();
    store.set("a", b"").unwrap();
    assert_eq!(Response::decode(&response(&mut waiting)), Ok(Response::Done(b"")));
}

#[test]
fn the_store_refuses_connections_for_channels() {
    let (server, _store) = serve(StoreConfig::default());
    let channel = ChannelId { group: GroupId::WORLD, kind: ChannelKind::Control };
    let dialed = dial(server.local_addr(), Hello { purpose: Purpose::Channel(channel), ..Hello::store(0) });
    assert!(matches!(dialed, Connected::Refused(Refusal::NotAPeer)));
}

#[test]
fn a_response_beyond_the_clients_limit_is_an_error() {
    let (server, store) = serve(StoreConfig::default());
    store.set("k", &[7; 1000]).unwrap();
    let config = StoreConfig { frame_bytes_max: 100, ..StoreConfig::default() };
    let modest = TcpStore::connect(server.local_addr(), config, SOON).unwrap();
    let error = modest.get("k", SOON).unwrap_err().to_string();
    assert!(error.contains("1001 bytes"), "{error}");
    assert!(!modest.delete("other").unwrap());
}

/// The resident memory of this process in KiB.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn clients_that_do_not_read_a_large_value_share_it() {
    let (server, store) = serve(StoreConfig::default());
    store.set("big", &vec![7; 15 << 20]).unwrap();
    let before = resident();
    let get = Request::Get { key: "big", timeout: Duration::ZERO }.encode().unwrap();
    let mut silent: Vec<_> = (0..40).map(|_| raw(server.local_addr())).collect();
    for stream in &mut silent {
        stream.write_all(&get).unwrap();
    }
    // The value of a later request is on its way, so the earlier ones were served.
    assert_eq!(store.get("big", SOON).unwrap().len(), 15 << 20);
    let more = resident().saturating_sub(before);
    assert!(more < 200 << 10, "{more} KiB for 40 clients");
    for stream in &mut silent {
        assert_eq!(response(stream).len(), (15 << 20) + 1);
    }
}

#[test]
fn partial_requests_are_completed_and_requests_over_the_limit_get_a_response() {
    let config = StoreConfig { stored_bytes_max: 4 << 20, ..StoreConfig::default() };
    let (server, store) = serve(config);
    let set = Request::Set { key: "k", value: &vec![0; 3 << 20] }.encode().unwrap();
    let mut stalled = raw(server.local_addr());
    stalled.write_all(&set[..set.len() - 1]).unwrap();
    // The stalled request counts once the server has received it. A value that is stored before
    // could leave no memory for it.
    let limit = Instant::now() + SOON;
    while server.held_bytes() < set.len() - (64 << 10) {
        assert!(Instant::now() < limit);
        std::thread::yield_now();
    }
    assert!(store.set("other", &vec![0; 2 << 20]).unwrap_err().to_string().contains("full"));
    store.set("small", b"fits").unwrap();
    stalled.write_all(&set[set.len() - 1..]).unwrap();
    assert_eq!(Response::decode(&response(&mut stalled)), Ok(Response::Done(b"")));
    assert!(store.delete("k").unwrap());
    store.set("other", &vec![0; 2 << 20]).unwrap();
}

#[test]
fn waits_for_many_keys_are_bounded_together_and_leave_capacity_for_others() {
    let config = StoreConfig { stored_bytes_max: 20 << 20, ..StoreConfig::default() };
    let (server, store) = serve(config);
    let keys = vec![""; 65_536];
    let wait = Request::Wait { keys, timeout: SOON * 10 }.encode().unwrap();
    let mut waiting: Vec<_> = (0..8).map(|_| raw(server.local_addr())).collect();
    for stream in &mut waiting {
        stream.write_all(&wait).unwrap();
    }
    waiting.iter().for_each(|stream| stream.set_nonblocking(true).unwrap());
    let refused = || waiting.iter().filter(|stream| stream.peek(&mut [0]).is_ok()).count();
    let limit = Instant::now() + SOON;
    while refused() < 5 {
        assert!(Instant::now() < limit);
        std::thread::yield_now();
    }
    // The server has had the time to refuse more.
    assert!(store.num_keys().is_ok());
    assert_eq!(refused(), 5, "three fit into 20 MiB");
    store.set("k", b"v").unwrap();
}

#[test]
fn a_timeout_lists_keys_up_to_a_length_and_counts_the_rest() {
    let (_server, store) = serve(StoreConfig::default());
    let keys: Vec<String> = (0..10_000).map(|key| format!("key{key:05}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let error = store.wait(&keys, Duration::ZERO).unwrap_err().to_string();
    assert!(error.contains("key00000, key00001") && error.contains(" more"), "{error}");
    assert!(error.len() < 10_000, "{}", error.len());
}
