//! Linear reduce: every rank sends its data to the root, which combines all contributions in the
//! order of the tree.
//!
//! Each rank sends one message per segment, and none waits for another. Latency is therefore paid
//! once if messages are buffered, and at most ceil(n/2) times without buffering, because the root
//! combines in about log2 n slots of scratch. The root receives the data of all ranks, so this
//! suits small groups and small data.

use std::iter;

use comm_core::{Place, Step};

use super::ordered_fan_in::{self, FanIn};
use super::{Cost, Pacing, Params, Steps};

pub(super) fn slots(p: &Params) -> usize {
    if p.rank == p.root { p.slots(ordered_fan_in::slots(p.ranks)) } else { 0 }
}

pub(super) fn cost(p: &Params) -> Cost {
    ordered_fan_in::cost(p)
}

pub(super) fn time(p: &Params, pacing: &Pacing) -> f64 {
    pacing.slowest(p).fan((p.ranks - 1) * p.segments, true)
}

pub(super) fn steps(params: &Params) -> Steps {
    let p = *params;
    Box::new((0..p.segments).flat_map(move |segment| -> Steps {
        let block = p.block(0, segment);
        if p.rank != p.root {
            return Box::new(iter::once(Step::send(p.root, Place::Input, block)));
        }
        Box::new(FanIn::new(&p, 0, segment, p.own()).recv_all())
    }))
}
