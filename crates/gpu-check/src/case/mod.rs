//! The cases, one file for each kind, and the table through which everybody else knows them.

mod failures;
mod groups;
mod lifecycle;
mod losses;
mod messages;
mod movements;
mod order;
mod reductions;
mod refusals;
mod sides;

use crate::player::Player;
use crate::trouble::Outcome;

/// How many ranks a case has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ranks {
    /// One.
    One,
    /// As many as can be had, and at least two.
    Several,
    /// One, and then as many as can be had.
    OneAndSeveral,
}

/// Something that is to be so on every device.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// A name for command lines and journals.
    pub name: &'static str,
    /// What is so if it passes.
    pub shows: &'static str,
    /// How many ranks play it.
    pub ranks: Ranks,
    /// A rank that is killed in the course of it.
    pub killed: Option<usize>,
    /// What each of them does.
    pub(crate) play: fn(&Player) -> Outcome,
}

const fn case(name: &'static str, ranks: Ranks, shows: &'static str, play: fn(&Player) -> Outcome) -> Case {
    Case { name, shows, ranks, killed: None, play }
}

use Ranks::{One, OneAndSeveral, Several};

/// Without this one, no other of several ranks is worth its time.
pub(crate) const CONNECT: &str = "connect";

/// All cases, in the order in which they run.
pub const CASES: [Case; 34] = [
    case(CONNECT, Several, "several ranks are connected, and wait for each other", lifecycle::connect),
    case(
        "all_reduce",
        OneAndSeveral,
        "every type and operator, in and out of place, bit by bit",
        reductions::all_reduce,
    ),
    case("reduce", OneAndSeveral, "the root has the result, and others what they had", reductions::reduce),
    case(
        "reduce_scatter",
        OneAndSeveral,
        "each rank has its block, of equal and unequal lengths",
        reductions::reduce_scatter,
    ),
    case(
        "eight_bits",
        OneAndSeveral,
        "floats of 8 bits are reduced, where library and device do",
        reductions::eight_bits,
    ),
    case("broadcast", OneAndSeveral, "all have what the root has, of every type", movements::broadcast),
    case(
        "all_gather",
        OneAndSeveral,
        "all have all blocks, of equal and unequal lengths",
        movements::all_gather,
    ),
    case("gather", OneAndSeveral, "the root has all blocks", movements::gather),
    case("scatter", OneAndSeveral, "each rank has its block", movements::scatter),
    case("all_to_all", OneAndSeveral, "the matrix of blocks is turned, also in place", movements::all_to_all),
    case(
        "large_buffers",
        OneAndSeveral,
        "sums of tens of megabytes are right to the last element",
        reductions::large,
    ),
    case("circle", OneAndSeveral, "a batch of messages goes around", messages::circle),
    case("batch", OneAndSeveral, "collectives in a batch do what they do alone", messages::batch),
    case("messages", Several, "messages arrive in their order", messages::in_order),
    case(
        "streams",
        OneAndSeveral,
        "calls wait for the streams that used their buffers, and they for the calls",
        order::streams,
    ),
    case(
        "foreign_memory",
        OneAndSeveral,
        "memory of others is used in the order of their stream",
        order::foreign_memory,
    ),
    case(
        "joined_streams",
        OneAndSeveral,
        "a stream that joins calls goes on behind them, also with memory that nobody tracks",
        order::joined_streams,
    ),
    case(
        "freed_behind",
        OneAndSeveral,
        "a buffer is freed behind the call that uses it",
        order::freed_behind,
    ),
    case(
        "barrier_device",
        OneAndSeveral,
        "calls return before they are done, and a barrier does not",
        order::barrier_waits_for_the_device,
    ),
    case(
        "barrier_ranks",
        Several,
        "no rank leaves a barrier before the last one came",
        order::barrier_waits_for_all,
    ),
    case(
        "refusals",
        OneAndSeveral,
        "calls that cannot be are refused, and change nothing",
        refusals::refused_calls,
    ),
    case(
        "split",
        OneAndSeveral,
        "groups of groups have the right members, and outlive their parent",
        groups::split,
    ),
    case("shrink", Several, "those that are left go on as a group", groups::shrink),
    case(
        "staged",
        OneAndSeveral,
        "buffers of devices go through the host in pieces, and bit by bit",
        sides::staged,
    ),
    case(
        "sides",
        OneAndSeveral,
        "the sides of a group for hosts and for devices work beside each other, and end together",
        sides::together,
    ),
    case("registration", OneAndSeveral, "a registered buffer is a buffer like others", groups::registration),
    case("settings", OneAndSeveral, "blocking calls, a name and few blocks do as well", lifecycle::settings),
    case(
        "leaks",
        OneAndSeveral,
        "50 communicators leave no memory, threads or descriptors behind",
        lifecycle::leaks,
    ),
    case(
        "abort",
        OneAndSeveral,
        "an abort ends what waits, and dropping what was aborted does no harm",
        failures::abort,
    ),
    case(
        "deadline",
        OneAndSeveral,
        "a call that does not end is given up at its deadline, and says which",
        failures::deadline,
    ),
    case("no_peer", One, "an initialization whose peers never come ends at its deadline", failures::no_peer),
    case(
        "absent_rank",
        Several,
        "who waits for a rank that makes no call is told which",
        losses::absent_rank,
    ),
    case("different_calls", Several, "ranks in different calls are told both", losses::different_calls),
    Case {
        killed: Some(1),
        ..case(
            "killed_rank",
            Several,
            "who waits for a rank that is killed is told, and goes on without it",
            losses::killed_rank,
        )
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_of_one_case_each() {
        let mut names = CASES.map(|case| case.name);
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
    }
}
