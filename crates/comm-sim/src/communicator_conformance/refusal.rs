//! Calls that are not valid for the group.

use comm_core::{AsView, AsViewMut, Buffers, Call, Counts, Error, ReduceOp, Result};

use super::outcome::{ensure, same_bits};
use super::{CheckResult, Member};

/// Checks that calls with a wrong root, length, list of counts, type or operator are rejected
/// before anything is sent, change no buffer, and leave the communicator usable.
///
/// # Errors
/// [`Failure`](super::Failure).
pub fn refuses_invalid_calls<M: Member>(member: &M) -> CheckResult {
    let (comm, options) = (member.communicator(), member.features().options);
    let (rank, size) = (comm.group().rank(), comm.group().size());
    let (equal, op) = (Counts::Equal, ReduceOp::Sum);
    let overflow = vec![usize::MAX; size];
    let uneven = vec![2; size + 1];
    // Too long by one element for a buffer with a block of two elements per rank.
    let len = 2 * size + 1;
    let two = member.buffer(&[3.0_f32; 2])?;
    let ints = member.buffer(&vec![3_i32; len])?;
    let mut long = member.buffer(&vec![4.0_f32; len])?;
    macro_rules! check {
        ($call:expr, $what:expr $(,)?) => {
            refused($what, comm.run($call, &options))?
        };
    }
    macro_rules! separate {
        () => {
            Buffers::Separate { send: two.as_view()?, recv: long.as_view_mut()? }
        };
    }
    macro_rules! in_place {
        () => {
            Buffers::InPlace(long.as_view_mut()?)
        };
    }
    let none = size + 3;
    check!(Call::Broadcast { root: none, buffer: long.as_view_mut()? }, "a broadcast from no rank");
    check!(Call::Reduce { root: none, buffers: in_place!(), op }, "a reduce to no rank");
    check!(Call::Gather { root: none, buffers: separate!(), counts: equal }, "a gather to no rank");
    check!(Call::Scatter { root: none, buffers: separate!(), counts: equal }, "a scatter from no rank");
    check!(Call::AllReduce { buffers: separate!(), op }, "an all-reduce into a longer buffer");
    check!(Call::Reduce { root: rank, buffers: separate!(), op }, "a reduce into a longer buffer");
    check!(Call::AllGather { buffers: separate!(), counts: equal }, "an all-gather into a longer buffer");
    check!(Call::Gather { root: rank, buffers: separate!(), counts: equal }, "a gather into a longer buffer");
    check!(Call::Scatter { root: rank, buffers: separate!(), counts: equal }, "a scatter of too little");
    check!(Call::ReduceScatter { buffers: separate!(), counts: equal, op }, "a reduce-scatter of too little",);
    check!(
        Call::AllToAll { buffers: separate!(), send: equal, recv: equal },
        "an all-to-all of unequal lengths",
    );
    for (counts, what) in [
        (&[][..], "counts of no rank"),
        (&uneven[..], "counts of too many ranks"),
        (&overflow[..], "counts that overflow"),
    ] {
        let counts = Counts::PerRank(counts);
        check!(Call::AllGather { buffers: separate!(), counts }, what);
        check!(Call::ReduceScatter { buffers: separate!(), counts, op }, what);
        check!(Call::Gather { root: rank, buffers: separate!(), counts }, what);
        check!(Call::Scatter { root: rank, buffers: separate!(), counts }, what);
        check!(Call::AllToAll { buffers: separate!(), send: counts, recv: counts }, what);
    }
    let types = Buffers::Separate { send: ints.as_view()?, recv: long.as_view_mut()? };
    check!(Call::AllReduce { buffers: types, op }, "a sum of integers into floats");
    check!(Call::AllReduce { buffers: in_place!(), op: ReduceOp::BitXor }, "bits of floats");
    let unknown = options.clone().algorithm("none");
    refused("an unknown algorithm", comm.run(Call::AllReduce { buffers: in_place!(), op }, &unknown))?;
    same_bits("a buffer of refused calls", &member.read(&long)?, &vec![4.0; len])?;
    comm.run(Call::AllReduce { buffers: in_place!(), op }, &options)?;
    same_bits("the sum after refused calls", &member.read(&long)?, &vec![4.0 * size as f32; len])
}

fn refused(what: &str, outcome: Result<()>) -> CheckResult {
    ensure(matches!(outcome, Err(Error::Invalid(_))), || format!("{what} is not refused: {outcome:?}"))
}
