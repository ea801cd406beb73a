//! The store in a folder, shared by threads with separate handles.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use comm_core::{During, Error, Store};
use comm_tcp::FileStore;

const SOON: Duration = Duration::from_secs(30);

fn store() -> (tempfile::TempDir, FileStore) {
    let folder = tempfile::tempdir().unwrap();
    let store = FileStore::open(folder.path().join("made/by/the/store")).unwrap();
    (folder, store)
}

#[test]
fn operations_behave_as_in_c10d() {
    let (_folder, store) = store();
    store.set("a/b", b"1").unwrap();
    store.set("a/b", b"").unwrap();
    assert_eq!(store.get("a/b", Duration::ZERO).unwrap(), b"");
    assert_eq!((store.add("n", 5).unwrap(), store.add("n", -7).unwrap()), (5, -2));
    assert_eq!(store.get("n", Duration::ZERO).unwrap(), b"-2");
    assert_eq!(store.compare_set("c", b"other", b"x").unwrap(), b"");
    assert_eq!(store.compare_set("c", b"", b"x").unwrap(), b"x");
    assert_eq!(store.compare_set("c", b"y", b"z").unwrap(), b"x");
    assert!(store.add("c", 1).unwrap_err().to_string().contains("not a number"));
    assert_eq!((store.delete("c").unwrap(), store.delete("c").unwrap()), (true, false));
    store.wait(&["a/b", "n"], Duration::ZERO).unwrap();
    assert_eq!(store.num_keys().unwrap(), 2);
    assert_eq!((store.check(&["a/b", "n"]).unwrap(), store.check(&["n", "c"]).unwrap()), (true, false));
}

#[test]
fn values_can_be_read_only_by_their_owner() {
    let (_folder, store) = store();
    store.set("k", b"v").unwrap();
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&store.folder().join("k")), 0o600);
    assert_eq!(mode(store.folder()), 0o700);
}

#[test]
fn a_pipe_in_the_folder_is_an_error_and_does_not_block() {
    let (_folder, store) = store();
    for name in ["k", ".lock"] {
        assert!(Command::new("mkfifo").arg(store.folder().join(name)).status().unwrap().success());
    }
    let (send, receive) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let outcomes = [store.get("k", Duration::ZERO).map(drop), store.set("other", b"v")];
        send.send(outcomes).unwrap();
    });
    for outcome in receive.recv_timeout(SOON).unwrap() {
        assert!(matches!(outcome, Err(Error::Io { .. })), "{outcome:?}");
    }
}

#[test]
fn keys_that_look_like_paths_stay_in_the_folder_and_distinct() {
    let (folder, store) = store();
    let keys = ["../out", "/out", ".lock", "a/b", "a_b", "a%2Fb", "A/b", "ä", "", "%"];
    for (index, key) in keys.iter().enumerate() {
        store.set(key, &[index as u8]).unwrap();
    }
    for (index, key) in keys.iter().enumerate() {
        assert_eq!(store.get(key, Duration::ZERO).unwrap(), [index as u8], "{key}");
    }
    let made = fs::read_dir(store.folder()).unwrap().count();
    assert_eq!(made, keys.len() + 1, "a file per key and the lock, and no drafts");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    assert!(matches!(store.set(&"x".repeat(256), b""), Err(Error::Invalid(_))));
}

#[test]
fn a_missing_key_is_named_at_the_deadline() {
    let (_folder, store) = store();
    store.set("here", b"").unwrap();
    let began = Instant::now();
    for missed in [
        store.get("absent", Duration::from_millis(60)).map(drop),
        store.wait(&["here", "absent"], Duration::from_millis(60)),
    ] {
        let error = missed.unwrap_err();
        assert!(
            matches!(&error, Error::Timeout { during: During::Store { key }, .. } if key == "absent"),
            "{error}"
        );
    }
    assert!((Duration::from_millis(120)..SOON).contains(&began.elapsed()));
}

#[test]
fn a_waiter_gets_the_value_that_another_handle_sets() {
    let (_folder, store) = store();
    let other = FileStore::open(store.folder()).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| store.get("late", SOON).unwrap());
        thread::sleep(Duration::from_millis(20));
        other.set("late", b"value").unwrap();
        assert_eq!(waiter.join().unwrap(), b"value");
    });
}

#[test]
fn no_sum_is_lost_and_no_value_is_torn_between_handles() {
    let (_folder, store) = store();
    let (long, short) = (vec![1; 100_000], vec![2; 10]);
    thread::scope(|scope| {
        for value in [&long, &short] {
            let folder = store.folder();
            scope.spawn(move || {
                let handle = FileStore::open(folder).unwrap();
                for _ in 0..50 {
                    handle.add("sum", 1).unwrap();
                    handle.set("value", value).unwrap();
                    let read = handle.get("value", SOON).unwrap();
                    assert!(matches!((read.len(), read[0]), (100_000, 1) | (10, 2)), "{} bytes", read.len());
                }
            });
        }
    });
    assert_eq!(store.add("sum", 0).unwrap(), 100);
}

#[test]
fn a_folder_that_cannot_be_made_is_an_error_with_its_path() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let error = FileStore::open(file.path().join("below")).unwrap_err().to_string();
    assert!(error.contains("below"), "{error}");
}
