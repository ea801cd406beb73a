//! In which calls receivers may read what is sent where it lies in the memory of the sender.
//!
//! That takes one copy in place of two. But it takes it on the receiver's side alone, from lines that lie in the caches of the
//! sender if that has just written them; and the sender waits meanwhile, which it has to in most calls anyway. So it pays for what
//! the caller gave, in calls in which all ranks receive at the same time.

use comm_core::Collective;

use crate::choose::Question;

/// From how many bytes on what two ranks reduce, and then gather, has left their caches before it is read.
const ALL_REDUCE_BYTES_MIN: usize = 4 << 20;

/// Whether it pays in such a call.
pub(super) const fn pays(call: &Question) -> bool {
    match call.collective.base() {
        Collective::AllGather
        | Collective::ReduceScatter
        | Collective::AllToAll
        | Collective::Gather
        | Collective::Scatter => true,
        // With more ranks, most of what is sent was just combined, or goes to all who gather it from where it is staged.
        Collective::AllReduce => call.ranks == 2 && call.bytes >= ALL_REDUCE_BYTES_MIN,
        _ => false,
    }
}
