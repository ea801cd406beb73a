//! A test suite that every transport must pass.
//!
//! [`transport_conformance!`](crate::transport_conformance) turns each scenario of this module into
//! a test of a transport. Scenarios run one thread per rank, sleep on descriptors as a communicator
//! does, and fail instead of hanging if a wake-up is lost. They return errors that a transport
//! should not report, and panic if it breaks its contract.

mod failure;
mod introduce;
mod on_demand;
mod opening;
mod port;
mod recv_buf;
mod sleep;
mod streams;
mod subsets;

pub use failure::*;
pub use introduce::introduce;
pub use on_demand::*;
pub use opening::*;
pub use recv_buf::*;
pub use sleep::*;
pub use streams::*;
pub use subsets::*;

/// A function that returns the fabrics of `n` ranks after their rendezvous, in rank order.
pub type CreateFabrics<'a, L> = &'a dyn Fn(usize) -> Vec<L>;

/// Defines a module of tests that check the contract of a transport.
///
/// `$create` is a `Fn(usize) -> Vec<impl Fabric>` that returns the fabrics of that many ranks, in
/// rank order. If the rendezvous of the ranks needs threads, `$create` starts them. With
/// `on_demand` before the name, the suite expects that a pair of ranks is connected when it first
/// uses a stream, so that a rank does not notice the end of others, and that opening a channel does
/// not wait for other ranks.
///
/// ```
/// comm_sim::transport_conformance!(in_process, comm_sim::in_process::InProcessFabric::create);
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! transport_conformance {
    ($name:ident, $create:expr) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;

            $crate::transport_conformance! { @streams $create }
            $crate::transport_conformance! { @scenarios $create;
                a_death_before_sleep_prevents_sleep
                a_missing_rank_is_named
                a_rank_that_left_is_named_by_the_deadline
                different_lists_of_members_end_at_the_deadline
            }
        }
    };
    (on_demand $name:ident, $create:expr) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;

            $crate::transport_conformance! { @streams $create }
            $crate::transport_conformance! { @scenarios $create;
                only_used_streams_are_connected
                a_rank_in_no_call_is_connected
                a_new_stream_keeps_a_rank_from_sleeping
            }
        }
    };
    (@streams $create:expr) => {
        $crate::transport_conformance! { @scenarios $create;
            a_death_names_the_rank_within_the_channel
            a_full_channel_does_not_block_others
            invalid_lists_of_members_are_refused
            a_subset_of_one_opens_at_once
            a_world_of_one_has_channels
            abort_fails_everything_with_the_first_cause
            abort_wakes_a_sleeper
            all_pairs_exchange_ordered_bytes
            bytes_sent_before_a_death_are_delivered
            death_of_an_uninvolved_peer_wakes_a_sleeper
            a_death_wakes_a_sender_without_capacity
            disjoint_subsets_open_at_once
            whole_elements_can_be_consumed_at_any_offset
            empty_calls_move_nothing
            channels_open_in_any_order
            large_transfers_run_both_ways
            bytes_stay_until_they_are_consumed
            members_are_ranked_in_the_order_of_the_list
            no_wakeup_is_lost
            the_buffer_is_empty_only_if_nothing_has_arrived
            other_streams_survive_a_death
            overlapping_subsets_open_from_several_threads
            ranks_know_their_own_rank
            receives_start_after_the_consumed_bytes
            all_accepted_bytes_are_released
            revoking_without_registered_memory_has_no_effect
            capacity_wakes_a_sleeper
            tokens_wake_every_rank
        }
    };
    (@scenarios $create:expr; $($scenario:ident)*) => {
        $(
            #[test]
            fn $scenario() {
                $crate::conformance::$scenario(&$create).unwrap();
            }
        )*
    };
}
