//! Groups of calls. No call begins before the outermost group ends.

use std::cell::RefCell;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::device::stream::Stream;
use crate::settings::{self, Setting};
use crate::sync::lock;

use super::communicator::{Communicator, Link};
use super::failure::{self, Failure, Outcome};
use super::operation::Operation;
use super::run::run;

/// Connects a communicator to its members.
pub(super) type Connect = Box<dyn FnOnce() -> Outcome<Option<Link>> + Send>;

/// Operations of one communicator, each with its stream.
type Enqueued = Vec<(Arc<Stream>, Operation)>;

/// The work of a call.
pub(super) enum Job {
    Connect(Arc<Communicator>, Connect),
    Launch(Arc<Communicator>, Arc<Stream>, Operation),
}

#[derive(Default)]
struct Group {
    depth: usize,
    jobs: Vec<Job>,
    /// The failure of the first invalid call of the group. If there is one, no call of the group
    /// begins.
    refused: Option<Failure>,
}

thread_local! {
    static GROUP: RefCell<Group> = RefCell::default();
}

pub(super) fn start() {
    GROUP.with_borrow_mut(|group| group.depth += 1);
}

/// Ends a group. The end of the outermost one begins all calls.
pub(super) fn end() -> Outcome {
    let ended = GROUP.with_borrow_mut(|group| match group.depth {
        0 => Err(Failure::usage("ncclGroupEnd: not in a group call.")),
        1 => Ok(Some(std::mem::take(group))),
        _ => {
            group.depth -= 1;
            Ok(None)
        }
    })?;
    match ended {
        Some(Group { refused: Some(failure), .. }) => Err(failure),
        Some(group) => begin(group.jobs),
        None => Ok(()),
    }
}

/// Runs the work of a call now, or at the end of its group.
pub(super) fn submit(job: Outcome<Job>) -> Outcome {
    start();
    let refused = job.as_ref().err().cloned();
    GROUP.with_borrow_mut(|group| match job {
        Ok(job) => group.jobs.push(job),
        Err(failure) => {
            group.refused.get_or_insert(failure);
        }
    });
    let ended = end();
    refused.map_or(ended, Err)
}

fn begin(jobs: Vec<Job>) -> Outcome {
    let mut connecting = Vec::new();
    let mut launches: Vec<(Arc<Communicator>, Enqueued)> = Vec::new();
    for job in jobs {
        match job {
            Job::Connect(communicator, how) => connecting.push(connect(communicator, how)?),
            Job::Launch(communicator, stream, operation) => {
                let known = launches.iter_mut().find(|(other, _)| Arc::ptr_eq(other, &communicator));
                match known {
                    Some((_, operations)) => operations.push((stream, operation)),
                    None => launches.push((communicator, vec![(stream, operation)])),
                }
            }
        }
    }
    let mut outcome = Ok(());
    for (communicator, operations) in launches {
        outcome = first_of(outcome, launch(communicator, operations));
    }
    for (communicator, thread) in connecting {
        let connected = if communicator.blocking {
            thread.join().unwrap_or_else(|_| Err(Failure::aborted()))
        } else {
            Err(Failure::in_progress())
        };
        outcome = first_of(outcome, connected);
    }
    outcome
}

fn first_of(one: Outcome, other: Outcome) -> Outcome {
    one.and(other)
}

type Connecting = (Arc<Communicator>, thread::JoinHandle<Outcome>);

/// Connects on a separate thread, because members of one group wait for each other.
fn connect(communicator: Arc<Communicator>, how: Connect) -> Outcome<Connecting> {
    let (member, busy) = (communicator.clone(), communicator.busy());
    let thread = thread::Builder::new().name("gpu-emu connect".to_owned()).spawn(move || {
        thread::sleep(Duration::from_millis(settings::get(Setting::InitMilliseconds)));
        let outcome = how().map(|link| {
            if let Some(link) = link {
                member.connect(link);
            }
        });
        if let Err(failure) = &outcome {
            failure::remember(failure);
            member.fail(failure.code);
        }
        drop(busy);
        outcome
    })?;
    Ok((communicator, thread))
}

/// Enqueues the operations of one communicator, either now or, if it is non-blocking, after a
/// delay.
fn launch(communicator: Arc<Communicator>, operations: Enqueued) -> Outcome {
    if communicator.blocking {
        enqueue(&communicator, operations);
        return Ok(());
    }
    let busy = communicator.busy();
    thread::Builder::new().name("gpu-emu launch".to_owned()).spawn(move || {
        thread::sleep(Duration::from_millis(settings::get(Setting::CallMilliseconds)));
        enqueue(&communicator, operations);
        drop(busy);
    })?;
    Err(Failure::in_progress())
}

/// Combines the operations into one item of work on the first of their streams. It waits for the
/// other streams, and they wait for it.
fn enqueue(communicator: &Arc<Communicator>, operations: Enqueued) {
    let mut streams: Vec<Arc<Stream>> = Vec::new();
    let mut plan = Vec::new();
    for (stream, mut operation) in operations {
        operation.sequence = communicator.number(&operation);
        plan.push(operation);
        if !streams.iter().any(|other| Arc::ptr_eq(other, &stream)) {
            streams.push(stream);
        }
    }
    let Some((first, others)) = streams.split_first() else { return };
    let mut last = lock(&communicator.last);
    let before = last.take().into_iter().chain(others.iter().map(|other| other.last()));
    before.for_each(|marker| first.wait_for(marker));
    let member = communicator.clone();
    let done = first.add(move |device| run(&member, &plan, device));
    others.iter().for_each(|other| other.wait_for(done.clone()));
    *last = Some(done);
}
