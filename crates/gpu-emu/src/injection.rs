//! What goes wrong on purpose: per device, so that tests in one process do not disturb each other.

use std::collections::BTreeMap;
use std::sync::Mutex;

use nccl_sys::ncclResult_t;

use crate::sync::lock;

/// What an operation does instead of ending well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// It waits until its communicator is aborted.
    Hang,
    /// So it does, and the communicator reports this error meanwhile.
    AsyncError(ncclResult_t),
    /// It ends as if all were well, with one wrong bit in its result.
    WrongBit,
}

#[derive(Debug, Default)]
struct Planned {
    /// Calls that answer something else: (name, how many succeed before, answer).
    answers: Vec<(String, u64, u32)>,
    /// Operations that do not end well: (how many do before, what happens).
    troubles: Vec<(u64, Trouble)>,
}

static PLANNED: Mutex<BTreeMap<usize, Planned>> = Mutex::new(BTreeMap::new());

/// The call of `name` after `before` others answers `code` and does nothing else.
pub(crate) fn plan_answer(device: usize, name: String, before: u64, code: u32) {
    lock(&PLANNED).entry(device).or_default().answers.push((name, before, code));
}

/// The operation after `before` others does not end well.
pub(crate) fn plan_trouble(device: usize, before: u64, trouble: Trouble) {
    lock(&PLANNED).entry(device).or_default().troubles.push((before, trouble));
}

/// What a call that is made now answers, if it is planned.
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

/// What happens to an operation that begins now, if it is planned.
pub(crate) fn trouble(device: usize) -> Option<Trouble> {
    let mut planned = lock(&PLANNED);
    let troubles = &mut planned.get_mut(&device)?.troubles;
    let due = troubles.iter().position(|(before, _)| *before == 0);
    troubles.iter_mut().for_each(|(before, _)| *before = before.saturating_sub(1));
    due.map(|index| troubles.remove(index).1)
}
