//! Tests that errors read as sentences and contain each cause once.

use super::*;

#[test]
fn messages_name_ranks_and_reasons() {
    let timeout = Error::Timeout {
        waiting_for: vec![0, 2, 7],
        after: Duration::from_millis(1500),
        during: During::Rendezvous,
    };
    assert_eq!(timeout.to_string(), "timed out after 1.5s during rendezvous, waiting for ranks 0, 2 and 7");
    let during = During::Store { key: "a".into() };
    let store = Error::Timeout { waiting_for: Vec::new(), after: Duration::from_secs(2), during };
    assert_eq!(store.to_string(), "timed out after 2s during a store operation on \"a\"");
    let lost = Error::PeerLost { peer: 3, during: During::Connect, loss: Loss::Closed };
    assert_eq!(
        lost.to_string(),
        "rank 3 was lost while connecting the members of a group: its connection closed unexpectedly, so its process has exited or was killed"
    );
}

#[test]
fn measured_times_are_rounded() {
    let text = |after| Error::Timeout { waiting_for: vec![1], after, during: During::Idle }.to_string();
    for (nanos, expected) in [
        (7_999_960_257, "8s"),
        (1_004_999_999, "1s"),
        (12_346_000_000, "12.35s"),
        (250_400_000, "250.4ms"),
        (994_999_999, "994.999999ms"),
    ] {
        let text = text(Duration::from_nanos(nanos));
        assert!(text.starts_with(&format!("timed out after {expected} ")), "{text}");
    }
    assert!(text(Duration::MAX).contains("timed out after 18446744073709551615.999999999s"));
}

/// Returns the text that a reporter prints for an error and its chain of sources.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |&cause| cause.source());
    causes.fold(error.to_string(), |text, cause| text + ": " + &cause.to_string())
}

#[test]
fn a_chain_of_sources_repeats_no_message() {
    let io = Error::io("bind 10.0.0.1:29500", io::Error::other("address in use"));
    let errors = [
        (io.clone(), "address in use"),
        (Error::from(Invalid::Root { root: 5, size: 2 }), "root 5"),
        (Error::NotConnected(Arc::new(io.clone())), "address in use"),
        (Error::Poisoned(Arc::new(io)), "address in use"),
        (
            Error::PeerLost {
                peer: 1,
                during: During::Idle,
                loss: Loss::Io(Arc::new(io::Error::other("reset by peer"))),
            },
            "reset by peer",
        ),
    ];
    for (error, cause) in errors {
        assert_eq!(chain(&error).matches(cause).count(), 1, "{}", chain(&error));
    }
}

/// The standard library prints `Error: ` and the `Debug` text of what `main` returns.
#[test]
fn debug_is_the_text_that_users_read() {
    let timeout =
        Error::Timeout { waiting_for: vec![1], after: Duration::from_secs(3), during: During::Rendezvous };
    let poisoned = Error::Poisoned(Arc::new(timeout));
    assert_eq!(
        format!("{poisoned:?}"),
        "the communicator is unusable after an earlier error: \
         timed out after 3s during rendezvous, waiting for rank 1"
    );
}

/// Collects the pieces that are written: each is a system call of standard error.
#[derive(Default)]
struct Pieces(Vec<String>);

impl std::fmt::Write for Pieces {
    fn write_str(&mut self, piece: &str) -> std::fmt::Result {
        self.0.push(piece.to_owned());
        Ok(())
    }
}

#[test]
fn debug_is_written_in_one_piece() {
    let error = Error::PeerLost { peer: 3, during: During::Connect, loss: Loss::Closed };
    let mut pieces = Pieces::default();
    std::fmt::write(&mut pieces, format_args!("{error:?}")).unwrap();
    assert_eq!(pieces.0, [error.to_string()]);
}

#[test]
fn only_the_callers_own_mistakes_are_not_fatal() {
    assert!(!Error::from(Invalid::Root { root: 5, size: 2 }).is_fatal());
    let first = Error::Aborted { by: 1, reason: "stop".into() };
    let poisoned = Error::Poisoned(Arc::new(first.clone()));
    assert!(poisoned.is_fatal());
    assert_eq!(poisoned.root_cause().to_string(), first.to_string());
}
