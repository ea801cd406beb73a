//! The client of PyTorch's store against PyTorch. Not run by default:
//!
//! ```sh
//! COMM_TEST_PYTHON=path/to/python cargo test -p comm-tcp --test all torch -- --ignored
//! ```

#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use comm_core::{Error, Membership, Store};
use comm_tcp::{RendezvousConfig, StoreConfig, TcpFabric, TorchStore};

const SOON: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(100);

/// Serves a store, prints its port, sets a key, and then gets or sets keys by command.
const SERVER: &str = "
import sys
from torch.distributed import TCPStore
uv = sys.argv[1] == 'libuv'
store = TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False, use_libuv=uv)
store.set('from python', 'hello')
print(store.port, flush=True)
for line in sys.stdin:
    what, key = line.rstrip().split(' ', 1)
    if what == 'set':
        store.set(key, 'set')
    print(store.get(key).decode(), flush=True)
";

/// A process with a store. It ends with the test.
struct Python {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Python {
    fn serve(backend: &str) -> (Self, SocketAddr) {
        let mut child = Command::new(std::env::var("COMM_TEST_PYTHON").unwrap())
            .args(["-c", SERVER, backend])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let mut python = Self { child, stdin, stdout };
        let port = python.line();
        (python, format!("127.0.0.1:{port}").parse().unwrap())
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn run(&mut self, command: &str) -> String {
        writeln!(self.stdin, "{command}").unwrap();
        self.line()
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
#[ignore = "needs PyTorch, in the python that COMM_TEST_PYTHON names"]
fn against_real_pytorch() {
    for backend in ["libuv", "legacy"] {
        let (mut python, address) = Python::serve(backend);
        let store = TorchStore::connect(address, StoreConfig::default(), SOON).unwrap();
        operations_behave_as_in_c10d(&store);
        both_sides_see_the_same(&store, &mut python);
        waits_end_in_time(&store);
        errors_leave_the_store_usable(&store);
        operations_are_linearizable(&store);
        ranks_meet(&store);
    }
}

fn operations_behave_as_in_c10d(store: &TorchStore) {
    store.set("a", b"1").unwrap();
    assert_eq!(store.get("a", SOON).unwrap(), b"1");
    assert_eq!(store.add("a", 41).unwrap(), 42);
    assert_eq!(store.get("a", SOON).unwrap(), b"42");
    assert_eq!(store.compare_set("a", b"41", b"x").unwrap(), b"42");
    assert_eq!(store.compare_set("a", b"42", b"x").unwrap(), b"x");
    assert_eq!(store.compare_set("a", b"x", b"x").unwrap(), b"x");
    assert_eq!(store.compare_set("b", b"something", b"x").unwrap(), b"");
    assert_eq!(store.compare_set("b", b"something", b"something").unwrap(), b"");
    assert_eq!(store.compare_set("b", b"", b"y").unwrap(), b"y");
    assert_eq!(store.compare_set("b", b"", b"z").unwrap(), b"y");
    store.wait(&["a", "b"], SOON).unwrap();
    store.wait(&[], SOON).unwrap();
    assert!(store.delete("a").unwrap());
    assert!(!store.delete("a").unwrap());
    store.set("", b"").unwrap();
    assert_eq!(store.get("", SOON).unwrap(), b"");
    let large = vec![7; 8 << 20];
    store.set("large", &large).unwrap();
    assert!(store.get("large", SOON).unwrap() == large);
}

fn both_sides_see_the_same(store: &TorchStore, python: &mut Python) {
    assert_eq!(store.get("from python", SOON).unwrap(), b"hello");
    store.set("from rust", b"hello, python").unwrap();
    assert_eq!(python.run("get from rust"), "hello, python");
    thread::scope(|scope| {
        let waiting = scope.spawn(|| store.get("later", SOON).unwrap());
        thread::sleep(SHORT);
        assert_eq!(python.run("set later"), "set");
        assert_eq!(waiting.join().unwrap(), b"set");
    });
}

fn waits_end_in_time(store: &TorchStore) {
    for timeout in [Duration::ZERO, SHORT, 12 * SHORT] {
        let start = Instant::now();
        let error = store.wait(&["b", "missing", "gone"], timeout).unwrap_err();
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
        assert!(error.to_string().contains("missing, gone"), "{error}");
        assert!(matches!(store.get("missing", timeout), Err(Error::Timeout { .. })));
        assert!((2 * timeout..2 * timeout + SOON).contains(&start.elapsed()));
    }
    // Sleeping waits are woken by every operation that creates a key.
    let make: [(&str, &(dyn Fn() + Sync)); 3] = [
        ("w1", &|| store.set("w1", b"v").unwrap()),
        ("w2", &|| assert_eq!(store.compare_set("w2", b"", b"v").unwrap(), b"v")),
        ("w3", &|| assert_eq!(store.add("w3", 1).unwrap(), 1)),
    ];
    for (key, make) in make {
        thread::scope(|scope| {
            let waiting = scope.spawn(move || store.wait(&["b", key], SOON).unwrap());
            thread::sleep(SHORT);
            // This creates no key, but a server may wake its waiters.
            assert_eq!(store.compare_set(key, b"x", b"y").unwrap(), b"");
            thread::sleep(SHORT);
            assert!(!waiting.is_finished());
            make();
        });
    }
}

fn errors_leave_the_store_usable(store: &TorchStore) {
    for text in [&b"seven"[..], b""] {
        store.set("text", text).unwrap();
        assert!(matches!(store.add("text", 1), Err(Error::Invalid(_))));
    }
    store.set("most", i64::MAX.to_string().as_bytes()).unwrap();
    assert!(matches!(store.add("most", 1), Err(Error::Invalid(_))));
    assert!(matches!(store.set(&"k".repeat(8192), b""), Err(Error::Invalid(_))));
    store.set(&"k".repeat(8191), b"v").unwrap();
    assert_eq!(store.get(&"k".repeat(8191), SOON).unwrap(), b"v");
}

fn operations_are_linearizable(store: &TorchStore) {
    const THREADS: i64 = 8;
    const ROUNDS: i64 = 50;
    let start = Barrier::new(THREADS as usize);
    let run = |thread: i64| {
        let mut won = 0;
        start.wait();
        for round in 0..ROUNDS {
            let ours = thread.to_string();
            let key = format!("race/{round}");
            won += i64::from(store.compare_set(&key, b"", ours.as_bytes()).unwrap() == ours.as_bytes());
            store.add("sum", thread).unwrap();
            let own = format!("own/{thread}");
            store.set(&own, round.to_string().as_bytes()).unwrap();
            assert_eq!(store.get(&own, SOON).unwrap(), round.to_string().as_bytes());
        }
        won
    };
    let won: i64 = thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || run(thread))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(won, ROUNDS);
    assert_eq!(store.add("sum", 0).unwrap(), ROUNDS * THREADS * (THREADS - 1) / 2);
}

fn ranks_meet(store: &TorchStore) {
    const RANKS: usize = 5;
    for round in 0..3 {
        thread::scope(|scope| {
            for rank in 0..RANKS {
                scope.spawn(move || {
                    let mut config = RendezvousConfig::new(Membership { rank, size: RANKS });
                    config.member.round = round;
                    config.member.timeout = SOON;
                    TcpFabric::rendezvous(store, &config).unwrap();
                });
            }
        });
    }
}
