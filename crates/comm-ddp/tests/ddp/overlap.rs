//! Communication runs while backward does, and the timeline shows it.

use std::time::Duration;

use comm_core::Comm;
use comm_ddp::{BucketLimits, DataParallel, Options, Parameter, ParameterSet};

use crate::room::{on_ranks, on_watching_ranks};

/// Calls that preparing makes before the first bucket: one to compare models, two to agree on
/// settings.
const PREPARATION: usize = 3;

/// Three parameters of two elements, each in a bucket of its own.
fn replicas(comm: &Comm) -> DataParallel<f32> {
    let named = |index: usize| Parameter::new::<f32>(format!("p{index}"), [2]);
    let limits = BucketLimits::DEFAULT.first_bytes(1).bytes(1);
    let parameters = ParameterSet::new((0..3).map(named)).unwrap();
    DataParallel::new(comm, parameters, Options::default().limits(limits)).unwrap()
}

/// Backward does not go on before the first bucket is back. If buckets were sent at the end, this
/// would hang.
#[test]
fn buckets_travel_while_backward_runs() {
    let timelines = on_watching_ranks(3, |comm, watch| {
        let mut replicas = replicas(&comm);
        let mut step = replicas.step().unwrap();
        step.ready(2, &[1.0, 1.0]).unwrap();
        watch.wait_for(PREPARATION + 1);
        step.ready(1, &[1.0, 1.0]).unwrap();
        watch.wait_for(PREPARATION + 2);
        step.finish().unwrap().timeline().clone()
    });
    for timeline in timelines {
        assert!(timeline.overlapped() >= 2, "{timeline:?}");
        assert!(timeline.buckets[1].started < timeline.backward_ended);
        assert!(timeline.buckets[2].started >= timeline.backward_ended);
    }
}

#[test]
fn a_timeline_is_in_order() {
    on_ranks(2, |comm| {
        let mut replicas = replicas(&comm);
        let mut step = replicas.step().unwrap();
        for index in [0, 2, 1] {
            step.ready(index, &[1.0, 1.0]).unwrap();
        }
        let averaged = step.finish().unwrap();
        let timeline = averaged.timeline();
        assert!(timeline.began <= timeline.backward_ended && timeline.backward_ended <= timeline.finished);
        for bucket in &timeline.buckets {
            let instants = [timeline.began, bucket.filled, bucket.launched, bucket.started, bucket.completed];
            assert!(instants.is_sorted() && bucket.completed <= timeline.finished, "{timeline:?}");
            // Two elements and the mark of who uses them.
            assert_eq!(bucket.bytes, 3 * size_of::<f32>());
        }
        let [first, .., last] = &timeline.buckets[..] else { panic!("{timeline:?}") };
        assert!(last.filled < first.filled && first.launched <= last.launched);
        assert!(timeline.communicating() > Duration::ZERO);
    });
}
