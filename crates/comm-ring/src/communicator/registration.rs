//! Decides in which calls receivers read the sender's memory in place.
//!
//! Reading in place takes one copy instead of two. However, the receiver makes that copy alone, and
//! from the sender's cache if the sender has just written the data. The sender has to wait for it,
//! which it does in most calls anyway. Reading in place is therefore faster for the caller's own
//! buffers, in calls in which all ranks receive at the same time, or several ranks receive from
//! one.

use comm_core::{Collective, RegistrationSizes};

use crate::choose::CallShape;

/// Returns whether receivers should read the sender's memory in place in such a call.
pub(super) fn should_register(call: &CallShape, sizes: &RegistrationSizes) -> bool {
    match call.collective.base() {
        Collective::AllGather | Collective::ReduceScatter | Collective::AllToAll => true,
        // Several ranks receive data that one rank would have to copy for all.
        Collective::Scatter => call.bytes / call.ranks >= sizes.root_min,
        // With more ranks, most of the sent data was just combined, or is staged for all ranks that
        // gather it.
        Collective::AllReduce => call.ranks == 2 && call.bytes >= sizes.reduced_min,
        Collective::Broadcast => call.ranks == 2 && (sizes.root_min..=sizes.root_max).contains(&call.bytes),
        // In a gather, one rank would have to copy what several can copy in parallel.
        _ => false,
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    fn registers(collective: Collective, ranks: usize, bytes: usize) -> bool {
        let sizes = RegistrationSizes::any().reduced_min(4 << 20).root_min(128 << 10).root_max(512 << 10);
        should_register(&CallShape::new(collective).ranks(ranks).bytes(bytes), &sizes)
    }

    #[test]
    fn buffers_of_the_caller_are_registered_and_data_just_written_is_not() {
        for collective in [Collective::AllToAll, Collective::AllToAllV, Collective::AllGather] {
            assert!(registers(collective, 8, 0) && registers(collective, 2, 1 << 30));
        }
        for collective in [Collective::Reduce, Collective::Scan, Collective::Gather, Collective::Barrier] {
            assert!(!registers(collective, 2, 1 << 22));
        }
        let two = |collective| [1 << 16, 1 << 18, 1 << 22].map(|bytes| registers(collective, 2, bytes));
        assert_eq!(two(Collective::AllReduce), [false, false, true]);
        assert_eq!(two(Collective::Broadcast), [false, true, false]);
        assert_eq!(two(Collective::Scatter), [false, true, true]);
        assert!(
            !registers(Collective::AllReduce, 3, 1 << 22) && !registers(Collective::Broadcast, 3, 1 << 18)
        );
    }
}
