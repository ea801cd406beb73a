//! Communication runs while backward does, and the timeline shows it.

use std::cell::Cell;
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use comm_core::Comm;
use comm_ddp::{BucketLimits, Clock, DataParallel, Error, Options, Parameter, ParameterSet};
use comm_ring::{RingCommunicator, RingConfig};
use comm_sim::network::{self, FaultPlan};

use crate::on_ranks;

/// Three parameters of two elements, each in its own bucket.
fn replicas(comm: &Comm, clock: Clock) -> DataParallel {
    let named = |index: usize| Parameter::new::<f32>(format!("p{index}"), [2]);
    let limits = BucketLimits::DEFAULT.first_bytes(1).bytes(1);
    let parameters = ParameterSet::new((0..3).map(named)).unwrap();
    DataParallel::new(comm, parameters, Options::default().limits(limits).clock(clock)).unwrap()
}

/// The number of times that this test's communication threads read the clock: once when a
/// collective starts and once when it ends.
static TIMES: (Mutex<usize>, Condvar) = (Mutex::new(0), Condvar::new());

std::thread_local! {
    /// Whether this thread runs backward.
    static IS_BACKWARD: Cell<bool> = const { Cell::new(false) };
}

fn observed_clock() -> Instant {
    if !IS_BACKWARD.get() {
        *TIMES.0.lock().unwrap() += 1;
        TIMES.1.notify_all();
    }
    Instant::now()
}

/// Waits until this many buckets of each of three ranks have been averaged.
fn wait_for_buckets(buckets: usize) {
    drop(TIMES.1.wait_while(TIMES.0.lock().unwrap(), |times| *times < 3 * 2 * buckets).unwrap());
}

/// Backward does not continue before the first bucket has been averaged. If buckets were sent at
/// the end, the test would hang.
#[test]
fn buckets_are_averaged_while_backward_runs() {
    let timelines = on_ranks(3, |comm| {
        IS_BACKWARD.set(true);
        let mut replicas = replicas(&comm, observed_clock);
        let mut step = replicas.step().unwrap();
        step.ready(2, &[1.0_f32, 1.0]).unwrap();
        wait_for_buckets(1);
        step.ready(1, &[1.0_f32, 1.0]).unwrap();
        wait_for_buckets(2);
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
        let mut replicas = replicas(&comm, Instant::now);
        let mut step = replicas.step().unwrap();
        for index in [0, 2, 1] {
            step.ready(index, &[1.0_f32, 1.0]).unwrap();
        }
        let averaged = step.finish().unwrap();
        let timeline = averaged.timeline();
        assert!(timeline.began <= timeline.backward_ended && timeline.backward_ended <= timeline.finished);
        for bucket in &timeline.buckets {
            let instants = [timeline.began, bucket.filled, bucket.launched, bucket.started, bucket.completed];
            assert!(instants.is_sorted() && bucket.completed <= timeline.finished, "{timeline:?}");
            assert_eq!(bucket.bytes, 2 * size_of::<f32>());
        }
        let [first, .., last] = &timeline.buckets[..] else { panic!("{timeline:?}") };
        assert!(last.filled < first.filled && first.launched <= last.launched);
        assert!(timeline.communicating() > Duration::ZERO);
    });
}

/// The events of a step, in the order in which the clock saw them.
#[test]
fn the_first_bucket_is_reduced_before_backward_ends() {
    let timelines = network::run(3, 5, &FaultPlan::calm(), |fabric, clock| {
        let ring = RingCommunicator::new(fabric, RingConfig::default(), Duration::from_secs(5)).unwrap();
        let mut replicas = replicas(&Comm::new(ring), network::now);
        let mut step = replicas.step().unwrap();
        for index in (0..3).rev() {
            // Backward computes the next gradient, longer than a bucket takes.
            clock.sleep(Duration::from_millis(10));
            step.ready(index, &[1.0_f32, 1.0]).unwrap();
        }
        clock.sleep(Duration::from_millis(10));
        step.finish().unwrap().timeline().clone()
    });
    for timeline in timelines {
        let since = |instant: Instant| instant.duration_since(timeline.began).as_millis();
        let completed: Vec<u128> = timeline.buckets.iter().map(|bucket| since(bucket.completed)).collect();
        assert_eq!(completed, [10, 20, 30], "each is reduced while backward computes the next gradient");
        assert_eq!((since(timeline.backward_ended), timeline.overlapped()), (40, 3));
        assert!(timeline.exposed() < Duration::from_millis(1));
        assert!(timeline.communicating() < Duration::from_millis(3));
    }
}

#[test]
fn gradients_are_views_of_their_buckets_in_every_step() {
    on_ranks(2, |comm| {
        let parameters = [3, 40, 5].map(|len| Parameter::new::<f32>(format!("p{len}"), [len]));
        let options = Options::default().follow_first_step(false);
        let mut replicas = DataParallel::new(&comm, ParameterSet::new(parameters).unwrap(), options).unwrap();
        let mut first = Vec::new();
        for _ in 0..3 {
            let mut step = replicas.step().unwrap();
            let addresses = [0, 1, 2].map(|index| {
                let gradient = step.gradient_mut::<f32>(index).unwrap();
                gradient.fill((comm.rank() + index) as f32);
                gradient.as_ptr().addr()
            });
            // One bucket: its gradients are contiguous, the last registered one first.
            assert_eq!([addresses[2] + 5 * 4, addresses[2] + 45 * 4], [addresses[1], addresses[0]]);
            (0..3).for_each(|index| step.mark_ready(index).unwrap());
            let averaged = step.finish().unwrap();
            for (index, address) in addresses.iter().enumerate() {
                let average = averaged.get::<f32>(index).unwrap();
                assert_eq!((average.as_ptr().addr(), average[0]), (*address, index as f32 + 0.5));
            }
            first = if first.is_empty() { addresses.to_vec() } else { first };
            assert_eq!(first, addresses);
        }
    });
}

#[test]
fn buckets_do_not_wait_for_a_parameter_that_is_marked_as_unused() {
    on_ranks(3, |comm| {
        let mut replicas = replicas(&comm, Instant::now);
        for is_used_by_one in [false, true] {
            let mut step = replicas.step().unwrap();
            if is_used_by_one && comm.rank() == 1 {
                step.ready(2, &[3.0_f32, 6.0]).unwrap();
            } else {
                step.mark_unused(2).unwrap();
            }
            assert!(matches!(step.mark_unused(2), Err(Error::AlreadyReady { .. })));
            // Gradients accumulated before `mark_unused` are kept.
            step.accumulate(1, &[2.0_f32, 2.0]).unwrap();
            step.mark_unused(1).unwrap();
            let averaged = step.finish().unwrap();
            let timeline = averaged.timeline();
            assert!(timeline.buckets[..2].iter().all(|bucket| bucket.launched < timeline.backward_ended));
            let used = [0, 1, 2].map(|index| !averaged.is_unused(index));
            assert_eq!(used, [false, true, is_used_by_one]);
            assert_eq!(averaged.get::<f32>(1).unwrap(), [2.0, 2.0]);
            let expected = if is_used_by_one { [1.0, 2.0] } else { [0.0, 0.0] };
            assert_eq!(averaged.get::<f32>(2).unwrap(), expected);
        }
    });
}
