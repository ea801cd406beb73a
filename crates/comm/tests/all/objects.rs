//! Tests of collectives of objects.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::sync::Barrier;
use std::time::Duration;

use comm::objects::{LimitedObjects, OBJECT_LIMIT, ObjectFailure};
use comm::{
    Collective, Comm, Error, ObjectCollectives, ObjectError, RingCommunicator, RingConfig, Signature,
};
use comm_sim::in_process::{self, InProcessConfig};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

const WORLDS: [usize; 5] = [1, 2, 3, 5, 8];
const TIMEOUT: Duration = Duration::from_secs(20);

/// Runs `rank` on every rank, as threads.
fn run<R: Send>(ranks: usize, rank: impl Fn(Comm) -> R + Sync) -> Vec<R> {
    let mut config = RingConfig::default();
    config.announce_after = Duration::from_millis(20);
    in_process::run(ranks, &InProcessConfig::default(), |fabric| {
        let communicator = RingCommunicator::new(fabric, config.clone(), TIMEOUT).unwrap();
        rank(Comm::new(communicator).with_timeout(TIMEOUT))
    })
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Report {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    loss: Option<f64>,
    shape: (usize, i8, char, u128),
    counts: BTreeMap<String, Vec<u64>>,
    events: Vec<Event>,
    #[serde(flatten)]
    place: Place,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Place {
    host: Option<Box<Place>>,
    #[serde(rename = "where")]
    at: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Event {
    Started,
    Step(u64, f32),
    Failed { reason: String },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind")]
enum Tagged {
    Number { value: i64 },
    Text { value: String },
}

fn report(rank: usize) -> Report {
    Report {
        name: format!("rank {rank}"),
        loss: rank.is_multiple_of(2).then_some(rank as f64 / 3.0),
        shape: (rank, -(rank as i8), 'ß', u128::MAX),
        counts: (0..rank).map(|at| (at.to_string(), vec![u64::MAX; at])).collect(),
        events: vec![Event::Started, Event::Step(1, 0.5), Event::Failed { reason: String::new() }],
        place: Place { host: Some(Box::new(Place { host: None, at: 1 })), at: u64::MAX - rank as u64 },
    }
}

/// Makes every collective with an object per rank.
fn every_collective<T>(comm: &Comm, object: impl Fn(usize) -> T)
where
    T: Serialize + DeserializeOwned + PartialEq + Debug,
{
    let (rank, ranks) = (comm.rank(), comm.size());
    let all: Vec<T> = (0..ranks).map(&object).collect();
    assert_eq!(comm.all_gather_object(&object(rank)).unwrap(), all);
    for root in [0, ranks - 1] {
        let is_root = rank == root;
        let given = is_root.then(|| object(root));
        assert_eq!(comm.broadcast_object(root, given.as_ref()).unwrap(), object(root));
        let gathered = comm.gather_object(root, &object(rank)).unwrap();
        assert_eq!(gathered.as_deref(), is_root.then_some(&all[..]));
        assert_eq!(comm.scatter_object(root, is_root.then_some(&all[..])).unwrap(), object(rank));
    }
}

#[test]
fn objects_of_all_kinds_arrive_as_they_were_sent() {
    for ranks in WORLDS {
        run(ranks, |comm| {
            every_collective(&comm, |_| ());
            every_collective(&comm, |_| String::new());
            every_collective(&comm, |_| Vec::<u32>::new());
            every_collective(&comm, |rank| rank as i32 - 3);
            every_collective(&comm, |rank| (rank != 1).then(|| format!("ä{rank}")));
            every_collective(&comm, |rank| vec![vec![rank as f32 / 3.0; rank]; 3]);
            every_collective(&comm, report);
            every_collective(&comm, |rank| match rank % 2 {
                0 => Tagged::Number { value: i64::MIN },
                _ => Tagged::Text { value: "text".repeat(rank) },
            });
            every_collective(&comm, |rank| HashMap::from([((rank, 'k'), Ok::<u8, String>(7))]));
            every_collective(&comm, |rank| serde_json::json!({ "a": [rank, null, 2.5], "b": {} }));
        });
    }
}

#[test]
fn sizes_may_differ_between_ranks() {
    for ranks in WORLDS {
        run(ranks, |comm| {
            // From empty to one mebibyte, with the large ones on different ranks.
            for turn in 0..3 {
                every_collective(&comm, |rank| match (rank + turn) % 3 {
                    0 => String::new(),
                    1 => "x".repeat(rank),
                    _ => "y".repeat((1 << 20) - rank),
                });
            }
        });
    }
}

#[test]
fn arguments_of_other_ranks_than_the_root_are_ignored() {
    run(3, |comm| {
        let own = vec![comm.rank(); comm.rank()];
        assert_eq!(comm.broadcast_object(2, Some(&own)).unwrap(), [2, 2]);
        assert_eq!(comm.scatter_object(0, Some(&[comm.rank() + 5; 3][..])).unwrap(), 5);
    });
}

/// An object whose encoding can fail in the middle.
#[derive(Debug, Clone, PartialEq, Deserialize)]
struct Moody {
    mood: bool,
}

impl Serialize for Moody {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::{Error as _, SerializeStruct};
        let mut object = serializer.serialize_struct("Moody", 1)?;
        object.serialize_field("mood", &self.mood)?;
        if self.mood { Err(S::Error::custom("not today")) } else { object.end() }
    }
}

/// All four calls with their names and the failing rank as the root.
type ByName<T> = (&'static str, fn(&Comm, usize, &T) -> Result<(), ObjectError>);

fn calls<T: Serialize + DeserializeOwned + Clone>() -> [ByName<T>; 4] {
    [
        ("broadcast_object", |comm, root, own| comm.broadcast_object(root, Some(own)).map(drop)),
        ("gather_object", |comm, root, own| comm.gather_object(root, own).map(drop)),
        ("all_gather_object", |comm, _, own| comm.all_gather_object(own).map(drop)),
        ("scatter_object", |comm, root, own| {
            comm.scatter_object(root, Some(&vec![own.clone(); comm.size()])).map(drop)
        }),
    ]
}

#[test]
fn an_object_that_cannot_be_encoded_fails_the_call_on_all_ranks() {
    for ranks in WORLDS {
        for (name, call) in calls::<Moody>() {
            run(ranks, |comm| {
                let moody = ranks - 1;
                let object = Moody { mood: comm.rank() == moody };
                for _ in 0..3 {
                    let error = call(&comm, moody, &object).unwrap_err();
                    assert!(!error.is_fatal());
                    match error {
                        ObjectError::Encode { source } if comm.rank() == moody => {
                            assert!(source.to_string().contains("not today"), "{source}");
                        }
                        ObjectError::Peer { rank, failure: ObjectFailure::Encode } => assert_eq!(rank, moody),
                        other => panic!("{name} of {ranks}: {other}"),
                    }
                }
                every_collective(&comm, report);
            });
        }
    }
}

#[test]
fn of_several_failures_other_ranks_get_the_first() {
    run(5, |comm| {
        let error = comm.all_gather_object(&Moody { mood: comm.rank() % 2 == 1 }).unwrap_err();
        match error {
            ObjectError::Encode { .. } => assert_eq!(comm.rank() % 2, 1),
            ObjectError::Peer { rank: 1, .. } => assert_eq!(comm.rank() % 2, 0),
            other => panic!("{other}"),
        }
        comm.barrier().unwrap();
    });
}

#[test]
fn a_wrong_number_of_objects_fails_the_call_on_all_ranks() {
    for ranks in WORLDS {
        run(ranks, |comm| {
            let root = ranks / 2;
            let lists = [vec![], vec![1; ranks - 1], vec![1; ranks + 1]];
            let scatters = lists.iter().map(|list| comm.scatter_object::<u8>(root, Some(list)));
            let missing = [comm.scatter_object::<u8>(root, None), comm.broadcast_object::<u8>(root, None)];
            for result in scatters.chain(missing) {
                let error = result.unwrap_err();
                assert!(!error.is_fatal());
                match error {
                    ObjectError::Count { expected, got } if comm.rank() == root => assert_ne!(expected, got),
                    ObjectError::Peer { rank, failure: ObjectFailure::Count } if comm.rank() != root => {
                        assert_eq!(rank, root);
                    }
                    other => panic!("{other}"),
                }
            }
            every_collective(&comm, report);
        });
    }
}

#[test]
fn an_invalid_root_fails_before_anything_is_sent() {
    run(2, |comm| {
        for result in [
            comm.broadcast_object(2, Some(&1_u8)).map(drop),
            comm.gather_object(2, &1_u8).map(drop),
            comm.scatter_object(2, Some(&[1_u8, 2][..])).map(drop),
        ] {
            assert!(matches!(result, Err(ObjectError::Comm(Error::Invalid(_)))), "{result:?}");
        }
        comm.barrier().unwrap();
    });
}

fn decode_failure<T: Debug>(result: Result<T, ObjectError>, from: usize) {
    match result {
        Err(error @ ObjectError::Decode { rank, .. }) => {
            assert_eq!(rank, from, "{error}");
            assert!(!error.is_fatal());
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_different_type_fails_only_where_it_is_decoded() {
    run(3, |comm| {
        let text = "hello".to_string();
        match comm.rank() {
            0 => assert_eq!(comm.broadcast_object(0, Some(&text)).unwrap(), text),
            1 => decode_failure(comm.broadcast_object::<u32>(0, None), 0),
            _ => decode_failure(comm.broadcast_object::<Report>(0, None), 0),
        }
        match comm.rank() {
            1 => decode_failure(comm.all_gather_object(&Event::Started), 0),
            rank => decode_failure(comm.all_gather_object(&report(rank)), 1),
        }
        match comm.rank() {
            2 => decode_failure(comm.gather_object(2, &7_u64), 0),
            rank => assert_eq!(comm.gather_object(2, &vec![rank]).unwrap(), None),
        }
        // A number that does not fit.
        match comm.rank() {
            0 => assert_eq!(comm.scatter_object(0, Some(&[1_u32, 256, 255][..])).unwrap(), 1),
            1 => decode_failure(comm.scatter_object::<u8>(0, None), 0),
            _ => assert_eq!(comm.scatter_object::<u8>(0, None).unwrap(), 255),
        }
        every_collective(&comm, report);
    });
}

#[test]
fn objects_above_the_limit_fail_on_every_rank() {
    for ranks in WORLDS {
        run(ranks, |comm| {
            let (rank, largest, limited) = (comm.rank(), ranks - 1, comm.with_object_limit(1000));
            let text = |rank: usize| "x".repeat(if rank == largest { 1000 } else { 0 });
            let all: Vec<String> = (0..ranks).map(text).collect();
            let results = [
                limited.all_gather_object(&text(rank)).map(drop),
                limited.gather_object(0, &text(rank)).map(drop),
                limited.broadcast_object(largest, Some(&text(rank))).map(drop),
                limited.scatter_object(largest, Some(&all)).map(drop),
            ];
            for result in results {
                match result.unwrap_err() {
                    ObjectError::TooLarge { rank, bytes, limit: 1000 } => {
                        assert_eq!(rank, largest);
                        assert!((1001..1100).contains(&bytes), "{bytes}");
                    }
                    other => panic!("{other}"),
                }
            }
            assert_eq!(limited.all_gather_object(&"x".repeat(900 / ranks)).unwrap().len(), ranks);
            every_collective(&comm, text);
        });
    }
}

/// Returns the extra fingerprint of an object call.
fn fingerprint(kind: Collective, limit: u64) -> u64 {
    Signature::fingerprint_of([u64::from_le_bytes(*b"objects\0"), u64::from(kind.code()), limit, 0])
}

#[test]
fn an_impossible_size_allocates_no_memory() {
    run(3, |comm| {
        if comm.rank() == 1 {
            let comm = comm.with_extra_fingerprint(fingerprint(Collective::AllGather, OBJECT_LIMIT));
            comm.all_gather(&[1_u64 << 60], &mut [0; 3]).unwrap();
            let comm = comm.with_extra_fingerprint(fingerprint(Collective::Broadcast, OBJECT_LIMIT));
            comm.broadcast(1, &mut [u64::MAX - 2]).unwrap();
        } else {
            let gathered = comm.all_gather_object(&1_u8).unwrap_err();
            assert!(matches!(gathered, ObjectError::TooLarge { rank: 1, .. }), "{gathered}");
            let sent = comm.broadcast_object::<u8>(1, None).unwrap_err();
            assert!(matches!(sent, ObjectError::TooLarge { rank: 1, limit: OBJECT_LIMIT, .. }), "{sent}");
        }
        comm.barrier().unwrap();
    });
}

/// Returns the errors of two ranks that make different calls.
fn desync(
    first: impl Fn(&Comm) -> Result<(), ObjectError> + Sync,
    second: impl Fn(&Comm) -> Result<(), ObjectError> + Sync,
) {
    let errors = run(2, |comm| {
        let result = if comm.rank() == 0 { first(&comm) } else { second(&comm) };
        // A rank that only sends may complete before it detects the mismatch.
        result.and_then(|()| Ok(comm.barrier()?)).unwrap_err()
    });
    for error in errors {
        match &error {
            ObjectError::Comm(cause) if matches!(cause.root_cause(), Error::Desync(_)) => {}
            other => panic!("expected a desync, got: {other}"),
        }
        assert!(error.is_fatal());
    }
}

#[test]
fn calls_of_different_kinds_are_a_desync() {
    let own = 5_u64;
    for (at, (_, first)) in calls::<u64>().into_iter().enumerate() {
        for (_, second) in calls::<u64>().into_iter().skip(at + 1) {
            desync(|comm| first(comm, 0, &own), |comm| second(comm, 0, &own));
        }
    }
    // An exchange of sizes does not match the same collective of a program.
    desync(|comm| comm.all_gather_object(&own).map(drop), |comm| Ok(comm.all_gather(&[own], &mut [0; 2])?));
    desync(
        |comm| comm.broadcast_object(0, Some(&own)).map(drop),
        |comm| comm.broadcast_object(1, Some(&own)).map(drop),
    );
    let limited = |bytes| {
        move |comm: &Comm| {
            let comm: LimitedObjects = comm.with_object_limit(bytes);
            comm.all_gather_object(&1_u8).map(drop)
        }
    };
    desync(limited(100), limited(101));
}

#[test]
fn each_call_is_two_collectives() {
    let errors = run(2, |comm| {
        every_collective(&comm, report);
        comm.broadcast(1 - comm.rank(), &mut [0_u8]).unwrap_err()
    });
    for error in errors {
        // An all-gather, and two collectives of each of the others.
        let Error::Desync(desync) = error else { panic!("{error}") };
        assert_eq!(desync.sequence, 2 * 7 + 1);
    }
}

#[test]
fn an_absent_rank_is_named() {
    let others_failed = Barrier::new(3);
    let errors = run(3, |comm| {
        if comm.rank() == 1 {
            others_failed.wait();
            return comm.all_gather_object(&1_u8).unwrap_err();
        }
        let error = comm.with_timeout(Duration::from_millis(300)).all_gather_object(&1_u8).unwrap_err();
        others_failed.wait();
        error
    });
    for error in errors {
        let ObjectError::Comm(cause) = &error else { panic!("{error}") };
        assert!(matches!(cause.root_cause(), Error::Timeout { waiting_for, .. } if waiting_for == &[1]));
    }
}

#[cfg(feature = "sim")]
#[test]
fn ranks_that_are_threads() {
    comm::threads::run(3, |comm| every_collective(&comm, report)).unwrap();
}

#[test]
fn objects_are_sent_and_received() {
    for ranks in [1, 2, 3, 5] {
        run(ranks, |comm| {
            let (next, last) = ((comm.rank() + 1) % ranks, (comm.rank() + ranks - 1) % ranks);
            comm.send_object(next, 9, &(format!("from {}", comm.rank()), vec![0.5; comm.rank()])).unwrap();
            let ((name, numbers), received): ((String, Vec<f64>), _) = comm.recv_object(last, 9).unwrap();
            assert_eq!((name, numbers, received.source), (format!("from {last}"), vec![0.5; last], last));
        });
    }
}

#[test]
fn an_object_above_the_limit_is_neither_sent_nor_received() {
    run(1, |comm| {
        let limited = comm.with_object_limit(10);
        let refused = limited.send_object(0, 1, &vec![7_u32; 100]).unwrap_err();
        assert!(matches!(refused, ObjectError::TooLarge { limit: 10, .. }), "{refused}");
        comm.send_object(0, 1, &vec![7_u32; 100]).unwrap();
        let refused = limited.recv_object::<Vec<u32>>(0, 1).unwrap_err();
        assert!(matches!(refused, ObjectError::TooLarge { limit: 10, .. }), "{refused}");
        assert_eq!(comm.recv_object::<Vec<u32>>(0, 1).unwrap().0, [7; 100]);
    });
}
