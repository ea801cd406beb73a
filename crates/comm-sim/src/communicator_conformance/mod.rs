//! A test suite that every communicator must pass, for host and device memory.
//!
//! [`communicator_conformance!`](crate::communicator_conformance!) turns each case of this module
//! into a test of a backend: it makes calls and compares the results with a model, bit by bit. A
//! program that prints a report can run the same checks on its own [`Member`].

mod check;
mod group;
mod host;
mod member;
mod mismatch;
mod model;
mod outcome;
mod refusal;

pub use check::{check, repeats_the_same_bits};
pub use group::splits_into_groups;
pub use host::HostMember;
pub use member::{Features, Member};
pub use mismatch::{MISMATCHES, Mismatch, mismatch_fails};
pub use outcome::{CheckResult, Failure, same_bits};
pub use refusal::refuses_invalid_calls;

use comm_core::Error;

use crate::run_each;

/// Runs `body` on every rank of the worlds of these sizes, which `create` returns.
///
/// # Panics
/// If the body fails on a rank.
pub fn in_worlds<M: Member + Send>(
    worlds: &[usize],
    create: impl Fn(usize) -> Vec<M>,
    body: impl Fn(&M) -> CheckResult + Sync,
) {
    for &ranks in worlds {
        run_each(create(ranks), |member| {
            let outcome = body(&member);
            let failure = outcome.map_err(|failure| failure.to_string()).err();
            assert!(failure.is_none(), "{}", failure.unwrap_or_default());
            // If the group has failed, the body expected that.
            let left = member.leave();
            assert!(matches!(left, Ok(()) | Err(Error::Poisoned(_))), "leaving the group: {left:?}");
        });
    }
}

/// Defines a module of tests that check the contract of a communicator.
///
/// `$worlds` is the list of world sizes, `$create` a `Fn(usize) -> Vec<impl Member>` that returns
/// one [`Member`] per rank, in rank order. If the rendezvous of the ranks needs threads, `$create`
/// starts them.
///
/// ```ignore
/// comm_sim::communicator_conformance!(in_process, [1, 2, 3, 5, 8], create);
/// ```
#[macro_export]
macro_rules! communicator_conformance {
    ($name:ident, $worlds:expr, $create:expr) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;

            $crate::communicator_conformance! { @collectives $worlds, $create;
                all_gather_gives_every_rank_all_blocks: AllGather,
                all_reduce_gives_every_rank_the_reduction: AllReduce,
                all_to_all_exchanges_the_blocks: AllToAll,
                barriers_return: Barrier,
                broadcast_gives_every_rank_the_data_of_the_root: Broadcast,
                gather_gives_the_root_all_blocks: Gather,
                reduce_gives_the_root_alone_the_reduction: Reduce,
                reduce_scatter_gives_each_rank_its_block: ReduceScatter,
                scans_give_each_rank_its_prefix: Scan Exscan,
                scatter_gives_each_rank_its_block: Scatter,
            }
            $crate::communicator_conformance! { @cases $worlds, $create;
                invalid_calls_are_refused_and_change_nothing: refuses_invalid_calls,
                reductions_have_the_same_bits_on_every_rank_and_repetition: repeats_the_same_bits,
                groups_reduce_among_their_members: splits_into_groups,
            }

            #[test]
            fn different_calls_fail_on_every_rank() {
                for mismatch in $crate::communicator_conformance::MISMATCHES {
                    let worlds = [2, 3];
                    $crate::communicator_conformance::in_worlds(&worlds, $create, |member| {
                        $crate::communicator_conformance::mismatch_fails(member, mismatch)
                    });
                }
            }
        }
    };
    (@collectives $worlds:expr, $create:expr; $($name:ident: $($collective:ident)+,)*) => {
        $(
            #[test]
            fn $name() {
                let collectives = [$($crate::communicator_conformance::Collective::$collective),+];
                $crate::communicator_conformance::in_worlds(&$worlds, $create, |member| {
                    collectives.iter().try_for_each(|collective| {
                        $crate::communicator_conformance::check(member, *collective)
                    })
                });
            }
        )*
    };
    (@cases $worlds:expr, $create:expr; $($name:ident: $case:ident,)*) => {
        $(
            #[test]
            fn $name() {
                $crate::communicator_conformance::in_worlds(&$worlds, $create, |member| {
                    $crate::communicator_conformance::$case(member)
                });
            }
        )*
    };
}

#[doc(hidden)]
pub use comm_core::Collective;
