//! Decides in which calls receivers read the sender's memory in place.
//!
//! Reading in place makes one copy instead of two. But the receiver alone makes it, from cache
//! lines of the sender if that has just written them; and the sender waits meanwhile, which it has
//! to in most calls anyway. So it is faster for the caller's own buffers, in calls in which all
//! ranks receive at the same time, or several receive from one.

use std::ops::RangeInclusive;

use comm_core::Collective;

use crate::choose::CallShape;

/// The size in bytes from which on it was measured to be faster if two ranks reduce, and then
/// gather what they have just written.
const ALL_REDUCE_BYTES_MIN: usize = 4 << 20;

/// The sizes of a root's messages for which it was measured to be faster. Smaller ones are copied
/// to a ring in less time than they are read in place, and the two copies of larger ones overlap.
const MESSAGE_BYTES: RangeInclusive<usize> = (128 << 10)..=(512 << 10);

/// Returns whether receivers should read the memory of such a call in place.
pub(super) fn should_register(call: &CallShape) -> bool {
    match call.collective.base() {
        Collective::AllGather | Collective::ReduceScatter | Collective::AllToAll => true,
        // Several ranks receive data that one rank would have to copy for all.
        Collective::Scatter => call.bytes / call.ranks >= *MESSAGE_BYTES.start(),
        // With more ranks, most of the sent data was just combined, or is staged for all ranks that
        // gather it.
        Collective::AllReduce => call.ranks == 2 && call.bytes >= ALL_REDUCE_BYTES_MIN,
        Collective::Broadcast => call.ranks == 2 && MESSAGE_BYTES.contains(&call.bytes),
        // In a gather, one rank would have to copy what several can copy in parallel.
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
    fn buffers_of_the_caller_are_registered_and_data_just_written_is_not() {
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
