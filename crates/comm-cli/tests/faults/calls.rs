//! Faults of programs: ranks in different calls, and values that are not numbers.

use crate::ranks::error_of;
use crate::table::fault_of;

fn mismatch(test: &str, deviation: &str) {
    fault_of(test).check(&error_of(0, 2, deviation, |_, _| {}));
}

#[test]
fn another_call_is_named() {
    mismatch("another_call_is_named", "call");
}

#[test]
fn another_length_is_named() {
    mismatch("another_length_is_named", "length");
}

#[test]
fn another_type_is_named() {
    mismatch("another_type_is_named", "dtype");
}

#[test]
fn another_operator_is_named() {
    mismatch("another_operator_is_named", "op");
}

#[test]
fn another_root_is_named() {
    mismatch("another_root_is_named", "root");
}

#[test]
fn a_nan_is_named() {
    let line = error_of(0, 3, "nan", |_, command| _ = command.env("COMM_NAN_CHECK", "1"));
    fault_of("a_nan_is_named").check(&line);
}
