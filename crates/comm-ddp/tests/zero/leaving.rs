//! Each rank leaves at each moment of a step, and the others continue with its state.

use comm::Comm;
use comm_core::ShrinkOptions;
use comm_ddp::{AdamW, Result, Sgd};
use half::bf16;

use crate::on_ranks;
use crate::training::{Moment, References, Run, Settings, Survivor, UPDATES, Value, check_survivors};

/// Trains until the last update, in smaller groups after failures. Returns `None` if this rank
/// leaves.
fn train<V: Value, O: Settings>(comm: &Comm, leaves: Option<(u64, Moment)>) -> Result<Option<Survivor<V>>> {
    let mut run = Run::<V, O>::new(comm)?;
    let is_done = run.train(leaves, &ShrinkOptions::default())?;
    Ok(is_done.then(|| run.into_survivor()))
}

fn check<V: Value, O: Settings>(sizes: &[usize], number: u64, moments: &[Moment]) {
    let mut references = References::<V>::new();
    for &size in sizes {
        for victim in 0..size {
            for &moment in moments {
                let survivors = on_ranks(size, |comm| {
                    let leaves = (comm.rank() == victim).then_some((number, moment));
                    train::<V, O>(&comm, leaves).unwrap()
                });
                let survivors: Vec<Survivor<V>> = survivors.into_iter().flatten().collect();
                let context = format!("rank {victim} of {size} leaves update {number} at {moment:?}");
                assert_eq!(survivors.len(), size - 1, "{context}");
                check_survivors::<V, O>(&survivors, &mut references, &context);
            }
        }
    }
}

const MOMENTS: [Moment; 5] =
    [Moment::Begin, Moment::Backward, Moment::Averaged, Moment::Update(7), Moment::End];

#[test]
fn the_others_continue_with_the_state_of_a_rank_that_leaves() {
    check::<f32, Sgd>(&[2, 3, 4, 5], 3, &MOMENTS);
    check::<f32, AdamW>(&[2, 3, 4, 5], 3, &MOMENTS);
    check::<bf16, Sgd>(&[2, 3, 4, 5], 3, &MOMENTS);
    check::<bf16, AdamW>(&[2, 3, 4, 5], 3, &MOMENTS);
}

#[test]
fn a_rank_may_leave_any_update_after_the_second() {
    for number in 3..=UPDATES - 1 {
        check::<bf16, AdamW>(&[3], number, &[Moment::Backward, Moment::End]);
    }
}

#[test]
fn a_rank_may_leave_at_any_access_to_a_parameter() {
    let moments: Vec<Moment> = (0..40).map(Moment::Update).collect();
    check::<f32, Sgd>(&[3], 4, &moments);
    check::<bf16, AdamW>(&[3], 4, &moments);
}
