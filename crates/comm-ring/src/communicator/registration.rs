//! In which calls receivers may read what is sent where it lies in the memory of the sender.
//!
//! That takes one copy in place of two. But it takes it on the receiver's side alone, from lines that lie in the caches of the
//! sender if that has just written them; and the sender waits meanwhile, which it has to in most calls anyway. So it pays for what
//! the caller gave, in calls in which all ranks receive at the same time, or several receive from one.

use std::ops::RangeInclusive;

use comm_core::Collective;

use crate::choose::CallShape;

/// From how many bytes on it was found to pay where two ranks reduce, and then gather what they have just written.
const ALL_REDUCE_BYTES_MIN: usize = 4 << 20;

/// For which messages of a root it was found to pay. Smaller ones are copied to a ring sooner than they are read where they lie, and of
/// larger ones both copies through the ring overlap.
const MESSAGE_BYTES: RangeInclusive<usize> = (128 << 10)..=(512 << 10);

/// Whether receivers should read the memory of such a call where it lies.
pub(super) fn should_register(call: &CallShape) -> bool {
    match call.collective.base() {
        Collective::AllGather | Collective::ReduceScatter | Collective::AllToAll => true,
        // Several ranks receive what one would have to copy for all.
        Collective::Scatter => call.bytes / call.ranks >= *MESSAGE_BYTES.start(),
        // With more ranks, most of what is sent was just combined, or goes to all who gather it from where it is staged.
        Collective::AllReduce => call.ranks == 2 && call.bytes >= ALL_REDUCE_BYTES_MIN,
        Collective::Broadcast => call.ranks == 2 && MESSAGE_BYTES.contains(&call.bytes),
        // In a gather, one rank would have to copy what several can.
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use comm_core::ReduceOrder;

    use super::*;

    fn exposed(collective: Collective, ranks: usize, bytes: usize) -> bool {
        should_register(&CallShape { collective, ranks, bytes, order: ReduceOrder::Any })
    }

    #[test]
    fn what_the_caller_gave_is_exposed_and_what_ranks_have_just_written_is_not() {
        for collective in [Collective::AllToAll, Collective::AllToAllV, Collective::AllGather] {
            assert!(exposed(collective, 8, 0) && exposed(collective, 2, 1 << 30));
        }
        for collective in [Collective::Reduce, Collective::Scan, Collective::Gather, Collective::Barrier] {
            assert!(!exposed(collective, 2, 1 << 22));
        }
        let two = |collective| [1 << 16, 1 << 18, 1 << 22].map(|bytes| exposed(collective, 2, bytes));
        assert_eq!(two(Collective::AllReduce), [false, false, true]);
        assert_eq!(two(Collective::Broadcast), [false, true, false]);
        assert_eq!(two(Collective::Scatter), [false, true, true]);
        assert!(!exposed(Collective::AllReduce, 3, 1 << 22) && !exposed(Collective::Broadcast, 3, 1 << 18));
    }
}
