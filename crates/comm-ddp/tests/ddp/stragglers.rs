//! A rank that is late in compute is named by every rank, and no rank that merely waits for it.

use std::time::Duration;

use comm_core::{Comm, Fabric};
use comm_ddp::{
    BucketLimits, DataParallel, Options, Parameter, ParameterSet, Sgd, Stragglers, ZeroOptimizer,
};
use comm_ring::{RingCommunicator, RingConfig};
use comm_sim::network::{self, FaultPlan, VirtualClock};

const COMPUTE: Duration = Duration::from_millis(80);
const LATE: Duration = Duration::from_millis(50);
const STEPS: usize = 6;

fn parameters() -> ParameterSet {
    ParameterSet::new((0..3).map(|index| Parameter::new::<f32>(format!("p{index}"), [100]))).unwrap()
}

fn options() -> Options {
    Options::default().limits(BucketLimits::DEFAULT.first_bytes(1).bytes(1)).clock(network::now)
}

/// Runs `rank_main` in virtual time.
fn on_ranks<R: Send>(size: usize, rank_main: impl Fn(Comm, &VirtualClock) -> R + Sync) -> Vec<R> {
    network::run(size, 7, &FaultPlan::calm(), |fabric, clock| {
        assert_eq!(fabric.group().size(), size);
        let ring = RingCommunicator::new(fabric, RingConfig::default(), Duration::from_secs(5)).unwrap();
        rank_main(Comm::new(ring), &clock)
    })
}

/// Trains; `delay(rank, step)` is the extra time that a rank needs for the first of three
/// gradients, or `None` if it has no batch.
fn train(size: usize, delay: impl Fn(usize, usize) -> Option<Duration> + Sync) -> Stragglers {
    let reports = on_ranks(size, |comm, clock| {
        let mut replicas = DataParallel::new(&comm, parameters(), options()).unwrap();
        for number in 0..STEPS {
            let Some(delay) = delay(comm.rank(), number) else {
                replicas.join().unwrap().unwrap();
                continue;
            };
            let mut step = replicas.step().unwrap();
            clock.sleep(COMPUTE + delay);
            for index in (0..3).rev() {
                clock.sleep(Duration::from_millis(1));
                step.ready(index, &[1.0_f32; 100]).unwrap();
            }
            step.finish().unwrap();
        }
        replicas.stragglers().clone()
    });
    assert!(reports.iter().all(|report| *report == reports[0]), "ranks have different reports");
    reports[0].clone()
}

fn is_near(time: Duration, expected: Duration) -> bool {
    time.abs_diff(expected) < Duration::from_millis(2)
}

#[test]
fn a_rank_that_is_late_in_compute_is_named_and_the_ranks_that_wait_for_it_are_not() {
    for size in [2, 3, 4, 5, 8] {
        for slow in [0, 1, size - 1] {
            // It is late in steps 2 to 4, in which the others wait for it.
            let is_late = |rank: usize, step: usize| rank == slow && (2..5).contains(&step);
            let report =
                train(size, |rank, step| Some(if is_late(rank, step) { LATE } else { Duration::ZERO }));
            let late = report.late();
            assert_eq!(late.iter().map(|(rank, _)| *rank).collect::<Vec<_>>(), [slow], "{report}");
            let (_, lateness) = late[0];
            assert_eq!((lateness.count, report.steps()), (3, STEPS as u64));
            assert!(is_near(lateness.greatest, LATE) && is_near(lateness.total, 3 * LATE), "{lateness:?}");
            assert!(is_near(lateness.last, Duration::ZERO));
        }
    }
}

#[test]
fn time_in_the_optimizer_and_in_data_loading_counts_as_lateness() {
    let reports = on_ranks(3, |comm, clock| {
        let mut zero =
            ZeroOptimizer::<f32, _>::new(&comm, parameters(), options(), |_| Sgd::new(0.1)).unwrap();
        let mut values = vec![vec![0.0_f32; 100]; 3];
        for number in 0..4 {
            // Loading a batch takes longer on rank 2, before the step begins.
            clock.sleep(if comm.rank() == 2 && number > 0 { LATE } else { Duration::ZERO });
            let mut step = zero.step().unwrap();
            for index in 0..3 {
                step.ready(index, &[1.0_f32; 100]).unwrap();
            }
            step.finish().unwrap().update(values.iter_mut()).unwrap();
        }
        zero.stragglers().clone()
    });
    for report in reports {
        let late = report.late();
        assert!(late.len() == 1 && late[0].0 == 2 && late[0].1.count == 3, "{report}");
    }
}

#[test]
fn ranks_without_a_batch_do_not_make_the_others_late() {
    let report = train(5, |rank, step| (step == 0 || rank > 2).then_some(Duration::ZERO));
    assert!(report.late().is_empty(), "{report}");
}

#[test]
fn a_rank_is_late_from_the_configured_limit_on() {
    let options = options().late_after(Duration::from_millis(60));
    let reports = on_ranks(2, |comm, clock| {
        // Only rank 0's option is used.
        let options = if comm.rank() == 0 { options } else { options.late_after(Duration::ZERO) };
        let mut replicas = DataParallel::new(&comm, parameters(), options).unwrap();
        for number in 0..4_u32 {
            let step = replicas.step().unwrap();
            clock.sleep(if comm.rank() == 1 { number * Duration::from_millis(25) } else { Duration::ZERO });
            step.finish().unwrap();
        }
        replicas.stragglers().late().iter().map(|(rank, late)| (*rank, late.count)).collect::<Vec<_>>()
    });
    assert_eq!(reports, [[(1, 1)]; 2]);
}
