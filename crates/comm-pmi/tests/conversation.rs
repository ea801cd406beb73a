//! The client against process managers that the tests play.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use comm_core::{Error, Result};
use comm_pmi::{Introduction, ProcessManager};

const LONG: Duration = Duration::from_secs(60);
const INIT: (&str, &str) =
    ("cmd=init pmi_version=1 pmi_subversion=1", "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0");
const SPACE: (&str, &str) = ("cmd=get_my_kvsname", "cmd=my_kvsname kvsname=kvs_7_0");

/// Calls `client` with the descriptor of a socket, at whose other end each of these requests is
/// expected and answered, in this order, and then closes it.
fn with_manager<T>(conversation: &[(&str, &str)], client: impl FnOnce(i32) -> T) -> T {
    let (ours, theirs) = UnixStream::pair().unwrap();
    thread::scope(|scope| {
        let manager = scope.spawn(move || {
            let mut requests = BufReader::new(theirs.try_clone().unwrap()).lines();
            for (request, answer) in conversation {
                assert_eq!(requests.next().unwrap().unwrap(), *request);
                (&theirs).write_all(format!("{answer}\n").as_bytes()).unwrap();
            }
        });
        let result = client(ours.as_raw_fd());
        drop(ours);
        manager.join().unwrap();
        result
    })
}

fn answered(answer: &str) -> Result<()> {
    with_manager(&[INIT, SPACE, ("cmd=barrier_in", answer)], |descriptor| {
        ProcessManager::over(descriptor, LONG).unwrap().fence()
    })
}

#[test]
fn texts_are_exchanged() {
    let conversation = [
        INIT,
        SPACE,
        ("cmd=put kvsname=kvs_7_0 key=address value=[::1]:5,10.0.0.1:5", "cmd=put_result rc=0 msg=success"),
        ("cmd=barrier_in", "cmd=barrier_out"),
        ("cmd=get kvsname=kvs_7_0 key=address", "cmd=get_result rc=0 msg=success value=[::1]:5,10.0.0.1:5"),
        ("cmd=get kvsname=kvs_7_0 key=other", "cmd=get_result rc=-1 msg=key_other_not_found value=unknown"),
        ("cmd=finalize", "cmd=finalize_ack"),
    ];
    with_manager(&conversation, |descriptor| {
        let mut manager = ProcessManager::over(descriptor, LONG).unwrap();
        manager.put("address", "[::1]:5,10.0.0.1:5").unwrap();
        manager.fence().unwrap();
        assert_eq!(manager.get("address").unwrap().as_deref(), Some("[::1]:5,10.0.0.1:5"));
        assert_eq!(manager.get("other").unwrap(), None);
        manager.finalize().unwrap();
    });
}

#[test]
fn answers_that_do_not_fit_are_malformed() {
    let long = "x".repeat(5000);
    for answer in
        ["", "barrier_out", "cmd=barrier_outer", "cmd=put_result rc=0", "cmd=barrier_out rc=-1", &long]
    {
        let error = answered(answer).unwrap_err();
        assert!(matches!(error, Error::Malformed { .. }), "{answer:?}: {error}");
        assert!(error.to_string().contains("the process manager"), "{error}");
    }
    answered("cmd=barrier_out").unwrap();
    let refused = with_manager(&[(INIT.0, "cmd=response_to_init rc=-1")], |descriptor| {
        ProcessManager::over(descriptor, LONG).map(drop)
    });
    assert!(matches!(refused, Err(Error::Malformed { .. })), "{refused:?}");
}

#[test]
fn a_text_that_would_be_another_request_is_refused() {
    with_manager(&[INIT, SPACE], |descriptor| {
        let mut manager = ProcessManager::over(descriptor, LONG).unwrap();
        for (key, text) in [("a b", "c"), ("a", "b\ncmd=abort"), ("a", "é")] {
            let error = manager.put(key, text).unwrap_err();
            assert!(matches!(error, Error::Invalid(_)), "{error}");
        }
    });
}

#[test]
fn a_manager_that_ends_is_an_error() {
    let error = with_manager(&[INIT], |descriptor| ProcessManager::over(descriptor, LONG).unwrap_err());
    assert!(matches!(error, Error::Io { .. }), "{error}");
}

#[test]
fn a_silent_manager_is_not_awaited_after_the_deadline() {
    let (ours, _theirs) = UnixStream::pair().unwrap();
    let began = Instant::now();
    let error = ProcessManager::over(ours.as_raw_fd(), Duration::from_millis(50)).unwrap_err();
    assert!(began.elapsed() >= Duration::from_millis(50));
    let Error::Io { source, .. } = &error else { panic!("{error}") };
    assert_eq!(source.kind(), std::io::ErrorKind::TimedOut, "{error}");
}

#[test]
fn descriptors_that_are_no_sockets_are_refused() {
    let file = std::fs::File::open("/dev/null").unwrap();
    for descriptor in [-1, -2, 1_000_000, file.as_raw_fd()] {
        let error = ProcessManager::over(descriptor, LONG).unwrap_err();
        assert!(error.to_string().contains("PMI_FD"), "{descriptor}: {error}");
    }
    // The descriptor still belongs to the caller.
    assert!(file.metadata().is_ok());
}

/// Introduces process 5 to a process manager that answers with these lines, and then closes the
/// connection.
fn introduced(answer: &str) -> Result<Introduction> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::scope(|scope| {
        let manager = scope.spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            let mut requests = BufReader::new(socket.try_clone().unwrap()).lines();
            assert_eq!(requests.next().unwrap().unwrap(), "cmd=initack pmiid=5");
            // It fails if the client has left after the first wrong line.
            let _ = socket.write_all(answer.as_bytes());
        });
        let introduction = Introduction::request(&address, 5, LONG);
        manager.join().unwrap();
        introduction
    })
}

#[test]
fn a_process_manager_at_a_port_gives_the_rank() {
    let lines = "cmd=initack\ncmd=set size=8\ncmd=set rank=5\ncmd=set debug=0\n";
    let introduction = introduced(lines).unwrap();
    assert_eq!((introduction.rank, introduction.size), (5, 8));
    for (right, wrong) in [
        ("initack", "initack rc=-1"),
        ("cmd=initack\n", ""),
        ("size=8", "size=many"),
        ("size=8", "size=5"),
        ("set rank=5", "set"),
        ("set rank=5", "put rank=5"),
    ] {
        let error = introduced(&lines.replacen(right, wrong, 1)).unwrap_err();
        assert!(matches!(error, Error::Malformed { .. }), "{wrong:?}: {error}");
    }
    let error = introduced("cmd=initack\n").unwrap_err();
    assert!(matches!(error, Error::Io { .. }), "{error}");
}

#[test]
fn a_port_without_a_process_manager_is_an_error_that_names_it() {
    let unused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    for address in [unused.as_str(), "no.such.host.invalid:5", "no port"] {
        let error = Introduction::request(address, 0, LONG).unwrap_err();
        assert!(error.to_string().contains(&format!("PMI_PORT = {address:?}")), "{error}");
    }
}
