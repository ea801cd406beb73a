//! The table of cases. Each kind of case has its own file.

mod conformance;
mod failures;
mod groups;
mod host_and_device;
mod kernels;
mod lifecycle;
mod losses;
mod messages;
mod order;
mod refusals;

use comm_core::Collective;

use crate::context::RankContext;
use crate::error::Outcome;

/// The numbers of ranks with which a case runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ranks {
    /// One.
    One,
    /// All available ranks, at least two.
    Several,
    /// One rank, and then all available ones.
    OneAndSeveral,
}

/// A check of a property that holds on every device.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// The name in command lines and journals.
    pub name: &'static str,
    /// The checked property.
    pub shows: &'static str,
    /// The numbers of ranks with which it runs.
    pub ranks: Ranks,
    /// The rank that the case kills, if any.
    pub killed: Option<usize>,
    /// Runs one rank.
    pub(crate) run: fn(&RankContext) -> Outcome,
}

const fn case(
    name: &'static str,
    ranks: Ranks,
    shows: &'static str,
    run: fn(&RankContext) -> Outcome,
) -> Case {
    Case { name, shows, ranks, killed: None, run }
}

use Ranks::{One, OneAndSeveral, Several};

/// The case that must pass before any other case runs with several ranks.
pub(crate) const CONNECT: &str = "connect";

/// All cases, in the order in which they run.
pub const CASES: [Case; 38] = [
    case(CONNECT, Several, "several ranks connect, and complete a barrier", lifecycle::connect),
    case("all_reduce", OneAndSeveral, "every type and operator, in and out of place, bit for bit", |ctx| {
        conformance::collective(ctx, Collective::AllReduce)
    }),
    case(
        "reduce",
        OneAndSeveral,
        "the root has the result, and the buffers of other ranks are unchanged",
        |ctx| conformance::collective(ctx, Collective::Reduce),
    ),
    case("reduce_scatter", OneAndSeveral, "each rank has its block, of equal and unequal lengths", |ctx| {
        conformance::collective(ctx, Collective::ReduceScatter)
    }),
    case(
        "eight_bits",
        OneAndSeveral,
        "8-bit floats are reduced if the library and the device support it",
        conformance::eight_bits,
    ),
    case("broadcast", OneAndSeveral, "every rank has the data of the root, for every type", |ctx| {
        conformance::collective(ctx, Collective::Broadcast)
    }),
    case("all_gather", OneAndSeveral, "every rank has all blocks, of equal and unequal lengths", |ctx| {
        conformance::collective(ctx, Collective::AllGather)
    }),
    case("gather", OneAndSeveral, "the root has all blocks", |ctx| {
        conformance::collective(ctx, Collective::Gather)
    }),
    case("scatter", OneAndSeveral, "each rank has its block", |ctx| {
        conformance::collective(ctx, Collective::Scatter)
    }),
    case("all_to_all", OneAndSeveral, "blocks are exchanged between all ranks, also in place", |ctx| {
        conformance::collective(ctx, Collective::AllToAll)
    }),
    case(
        "large_buffers",
        OneAndSeveral,
        "every element of a sum of tens of megabytes is correct",
        conformance::large,
    ),
    case("ring", OneAndSeveral, "a batch of messages is sent around a ring", messages::ring),
    case(
        "batch",
        OneAndSeveral,
        "collectives in a batch give the same results as separate calls",
        messages::batch,
    ),
    case("messages", Several, "messages arrive in the order in which they were sent", messages::in_order),
    case(
        "streams",
        OneAndSeveral,
        "calls wait for streams that used their buffers, and streams wait for calls",
        order::streams,
    ),
    case(
        "foreign_memory",
        OneAndSeveral,
        "memory of another library is used in the order of its stream",
        order::foreign_memory,
    ),
    case(
        "joined_streams",
        OneAndSeveral,
        "a stream that joins calls runs after them, also with untracked memory",
        order::joined_streams,
    ),
    case(
        "freed_after_use",
        OneAndSeveral,
        "a buffer is freed after the call that uses it",
        order::freed_after_use,
    ),
    case(
        "barrier_device",
        OneAndSeveral,
        "calls return before they complete, and a barrier after",
        order::barrier_waits_for_the_device,
    ),
    case(
        "barrier_ranks",
        Several,
        "no rank leaves a barrier before the last one has entered it",
        order::barrier_waits_for_all,
    ),
    case(
        "refusals",
        OneAndSeveral,
        "invalid calls return errors and change nothing",
        refusals::refused_calls,
    ),
    case(
        "split",
        OneAndSeveral,
        "nested groups have the right members and outlive their parents",
        groups::split,
    ),
    case("shrink", Several, "the remaining ranks continue in a smaller group", groups::shrink),
    case(
        "staged",
        OneAndSeveral,
        "device buffers are staged through the host in pieces, with exact results",
        host_and_device::staged,
    ),
    case(
        "host_and_device",
        OneAndSeveral,
        "the host and device communicators of a group run concurrently and fail together",
        host_and_device::together,
    ),
    case(
        "elastic_group",
        Several,
        "a rank joins a running group, which connects its devices anew",
        host_and_device::grow,
    ),
    case("kernels", One, "kernels are bit-identical to the host's, for every type", kernels::kernels),
    case(
        "training",
        OneAndSeveral,
        "gradients in device memory are averaged, checked and clipped",
        kernels::training,
    ),
    case(
        "registration",
        OneAndSeveral,
        "a registered buffer can be used like any other",
        groups::registration,
    ),
    case(
        "settings",
        OneAndSeveral,
        "blocking calls, a name and a limit of thread blocks are supported",
        lifecycle::settings,
    ),
    case("leaks", OneAndSeveral, "50 communicators leak no memory, threads or descriptors", lifecycle::leaks),
    case(
        "abort",
        OneAndSeveral,
        "an abort ends waiting calls, and an aborted communicator can be dropped",
        failures::abort,
    ),
    case(
        "deadline",
        OneAndSeveral,
        "a call that does not complete fails at its deadline with an error that names it",
        failures::deadline,
    ),
    case("no_peer", One, "an initialization without its peers fails at its deadline", failures::no_peer),
    case(
        "absent_rank",
        Several,
        "a rank that waits for an absent rank gets an error that names it",
        losses::absent_rank,
    ),
    case(
        "different_calls",
        Several,
        "ranks in different calls get an error that names both calls",
        losses::different_calls,
    ),
    Case {
        killed: Some(1),
        ..case(
            "killed_rank",
            Several,
            "a rank that waits for a killed rank gets an error that names it, and can continue without it",
            losses::killed_rank,
        )
    },
    Case {
        killed: Some(1),
        ..case(
            "hybrid_shrink",
            Several,
            "after a rank is killed, the others continue with their host and device communicators",
            host_and_device::shrink,
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
