//! Injected faults. They are per device, so that tests in one process do not affect each other.

use std::collections::BTreeMap;
use std::sync::Mutex;

use nccl_sys::ncclResult_t;

use crate::sync::lock;

/// An injected fault of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InjectedFault {
    /// The operation waits until its communicator is aborted.
    Hang,
    /// The operation hangs, and the communicator reports this error in the meantime.
    AsyncError(ncclResult_t),
    /// The operation succeeds with one wrong bit in its result.
    WrongBit,
}

#[derive(Debug, Default)]
struct Planned {
    /// Planned results of calls: (name, number of earlier calls, code).
    answers: Vec<(String, u64, u32)>,
    /// Planned faults of operations: (number of earlier operations, fault).
    faults: Vec<(u64, InjectedFault)>,
}

static PLANNED: Mutex<BTreeMap<usize, Planned>> = Mutex::new(BTreeMap::new());

/// Plans that a call of `name`, after `before` others, returns `code` and does nothing else.
pub(crate) fn plan_answer(device: usize, name: String, before: u64, code: u32) {
    lock(&PLANNED).entry(device).or_default().answers.push((name, before, code));
}

/// Plans a fault of an operation, after `before` others.
pub(crate) fn plan_fault(device: usize, before: u64, fault: InjectedFault) {
    lock(&PLANNED).entry(device).or_default().faults.push((before, fault));
}

/// Counts a call, and returns its planned result, if there is one.
pub(crate) fn answer(device: usize, name: &str) -> Option<u32> {
    let mut planned = lock(&PLANNED);
    let answers = &mut planned.get_mut(&device)?.answers;
    let index = answers.iter().position(|(planned, _, _)| planned == name)?;
    if answers[index].1 > 0 {
        answers[index].1 -= 1;
        return None;
    }
    Some(answers.remove(index).2)
}

/// Counts an operation, and returns its planned fault, if there is one.
pub(crate) fn fault(device: usize) -> Option<InjectedFault> {
    let mut planned = lock(&PLANNED);
    let faults = &mut planned.get_mut(&device)?.faults;
    let due = faults.iter().position(|(before, _)| *before == 0);
    faults.iter_mut().for_each(|(before, _)| *before = before.saturating_sub(1));
    due.map(|index| faults.remove(index).1)
}
