//! Records of calls and faults.

use std::collections::VecDeque;
use std::fmt::Display;
use std::sync::Mutex;

use crate::sync::lock;

/// The largest number of lines that are kept, so that a test that never reads them does not exhaust
/// memory.
const LINES_MAX: usize = 65_536;

static CALLS: Mutex<VecDeque<String>> = Mutex::new(VecDeque::new());
static FAULTS: Mutex<VecDeque<String>> = Mutex::new(VecDeque::new());

/// Records a call of `name` that returned `code`. `arguments` has the form `key=value`, separated
/// by spaces.
pub(crate) fn call(name: &str, arguments: &dyn Display, code: i32) {
    push(&CALLS, format!("{name}\t{code}\t{arguments}"));
}

/// Records a fault, and the device on which it happened, if known.
pub(crate) fn fault(device: Option<usize>, what: &str) {
    push(&FAULTS, device.map_or_else(|| format!("\t{what}"), |device| format!("{device}\t{what}")));
}

pub(crate) fn take_calls() -> String {
    take(&CALLS)
}

pub(crate) fn take_faults() -> String {
    take(&FAULTS)
}

fn push(lines: &Mutex<VecDeque<String>>, line: String) {
    let mut lines = lock(lines);
    if lines.len() == LINES_MAX {
        lines.pop_front();
    }
    lines.push_back(line);
}

fn take(lines: &Mutex<VecDeque<String>>) -> String {
    let mut lines = lock(lines);
    lines.drain(..).map(|line| line + "\n").collect()
}
