//! Contributions that are not numbers.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use comm_core::{Comm, Error, ReduceOp, Result};
use comm_ring::RingConfig;

use crate::common::virtual_world;

const CULPRIT: usize = 2;

/// Runs a call of three ranks with a NaN in the contribution of one, and returns their outcomes.
fn outcomes(reject: bool, call: impl Fn(&Comm, &mut [f32]) -> Result<()> + Sync) -> Vec<Result<()>> {
    let mut config = RingConfig::default();
    config.reject_nan = reject;
    virtual_world(3, 0, &config, |comm, _| {
        let mut buffer = [f32::INFINITY; 9];
        if comm.rank() == CULPRIT {
            buffer[5] = f32::NAN;
        }
        // A rank that only sends may have completed the call before it knows.
        call(&comm, &mut buffer).and_then(|()| comm.barrier())
    })
}

#[test]
fn every_rank_learns_which_rank_contributed_a_nan() {
    type Call = fn(&Comm, &mut [f32]) -> Result<()>;
    let calls: [Call; 5] = [
        |comm, buffer| comm.all_reduce(buffer, ReduceOp::Sum),
        |comm, buffer| comm.all_reduce_into(&*buffer, &mut [0.0; 9], ReduceOp::Avg),
        |comm, buffer| comm.reduce_scatter(&*buffer, &mut [0.0; 3], ReduceOp::Max),
        |comm, buffer| comm.scan(buffer, ReduceOp::Prod),
        |comm, buffer| comm.reduce(0, buffer, ReduceOp::Sum),
    ];
    for call in calls {
        for outcome in outcomes(true, call) {
            let error = outcome.unwrap_err();
            let Error::Aborted { by: CULPRIT, reason } = error.root_cause() else { panic!("{error}") };
            assert!(reason.starts_with("its contribution to ") && reason.ends_with(" is NaN at element 5"));
        }
    }
}

#[test]
fn a_nan_that_is_moved_or_allowed_is_no_error() {
    for outcome in outcomes(true, |comm, buffer| comm.broadcast(CULPRIT, buffer)) {
        outcome.unwrap();
    }
    for outcome in outcomes(false, |comm, buffer| comm.all_reduce(buffer, ReduceOp::Sum)) {
        outcome.unwrap();
    }
}
