//! One suite that every transport passes.
//!
//! [`transport_conformance!`](crate::transport_conformance) turns each scenario of this module into
//! a test of a transport. Scenarios run one thread per rank, sleep on descriptors as a communicator
//! does, and fail instead of hanging when a wake-up is lost. They return what a transport reports
//! where it should not, and panic where it does not do what its contract says.

mod failure;
mod introduce;
mod lending;
mod opening;
mod port;
mod sleep;
mod streams;
mod subsets;

pub use introduce::introduce;

pub use failure::{
    abort_fails_everything_with_the_first_cause, abort_wakes_a_sleeper,
    death_before_sleep_is_not_slept_through, death_delivers_bytes_first,
    death_of_an_uninvolved_peer_wakes_a_sleeper, death_wakes_a_sender_without_room,
    other_streams_outlive_a_peer,
};
pub use lending::{
    elements_are_lent_whole, lent_bytes_stay_until_consumed, nothing_is_lent_only_if_nothing_is_there,
    receiving_goes_on_behind_what_was_lent, released_catches_up_with_accepted,
    revoking_nothing_breaks_nothing,
};
pub use opening::{
    a_full_channel_stalls_no_other, a_missing_rank_is_named, a_rank_that_left_is_not_awaited,
    a_world_of_one_has_channels, channels_open_in_any_order, ranks_know_who_they_are,
};
pub use sleep::{no_wakeup_is_lost, room_wakes_a_sleeper, tokens_wake_every_rank};
pub use streams::{
    all_pairs_exchange_ordered_bytes, empty_calls_move_nothing, large_transfers_run_both_ways,
};

pub use subsets::{
    a_death_is_told_by_the_rank_of_the_channel, a_list_of_members_that_cannot_be_is_refused,
    a_subset_of_one_waits_for_nobody, disjoint_subsets_open_at_once, members_count_in_the_order_of_the_list,
    overlapping_subsets_open_from_several_threads, unlike_lists_of_members_end_at_the_deadline,
};

/// How a suite gets the channels of `n` ranks that met, in rank order.
pub type Meet<'a, L> = &'a dyn Fn(usize) -> Vec<L>;

/// Defines a module of tests that hold a transport to its contract.
///
/// `$meet` is a `Fn(usize) -> Vec<impl Fabric>` that returns the channels of that many ranks, in
/// rank order. It is called once per test; if ranks must meet in threads of their own, it runs
/// them.
///
/// ```
/// comm_sim::transport_conformance!(in_process, comm_sim::in_process::InProcessFabric::create);
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! transport_conformance {
    ($name:ident, $meet:expr) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;

            $crate::transport_conformance! { @scenarios $meet;
                a_death_is_told_by_the_rank_of_the_channel
                a_full_channel_stalls_no_other
                a_list_of_members_that_cannot_be_is_refused
                a_missing_rank_is_named
                a_rank_that_left_is_not_awaited
                a_subset_of_one_waits_for_nobody
                a_world_of_one_has_channels
                abort_fails_everything_with_the_first_cause
                abort_wakes_a_sleeper
                all_pairs_exchange_ordered_bytes
                death_before_sleep_is_not_slept_through
                death_delivers_bytes_first
                death_of_an_uninvolved_peer_wakes_a_sleeper
                death_wakes_a_sender_without_room
                disjoint_subsets_open_at_once
                elements_are_lent_whole
                empty_calls_move_nothing
                channels_open_in_any_order
                large_transfers_run_both_ways
                lent_bytes_stay_until_consumed
                members_count_in_the_order_of_the_list
                no_wakeup_is_lost
                nothing_is_lent_only_if_nothing_is_there
                other_streams_outlive_a_peer
                overlapping_subsets_open_from_several_threads
                ranks_know_who_they_are
                receiving_goes_on_behind_what_was_lent
                released_catches_up_with_accepted
                revoking_nothing_breaks_nothing
                room_wakes_a_sleeper
                tokens_wake_every_rank
                unlike_lists_of_members_end_at_the_deadline
            }
        }
    };
    (@scenarios $meet:expr; $($scenario:ident)*) => {
        $(
            #[test]
            fn $scenario() {
                $crate::conformance::$scenario(&$meet).unwrap();
            }
        )*
    };
}
