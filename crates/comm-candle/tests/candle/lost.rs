//! Gradients that candle loses are found in the first step.

use std::sync::{Arc, Mutex};

use candle_core::DType;
use comm_candle::{DataParallel, Error, LostGradients, Options, Report, ZeroOptimizer, sync_gradients};
use comm_core::Comm;
use comm_ddp::Sgd;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::ranks::{elements, map, numbers, on_ranks, store, var};
use crate::transformer::{Operations, Transformer};

/// The warnings that `run` logs on this thread.
fn warnings<R>(run: impl FnOnce() -> R) -> (R, Vec<String>) {
    let log = Log::default();
    let result = tracing::subscriber::with_default(log.clone(), run);
    let warnings = log.0.lock().unwrap().clone();
    (result, warnings)
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN && metadata.target().starts_with("comm_candle")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        struct Message(String);
        impl Visit for Message {
            fn record_debug(&mut self, _: &Field, value: &dyn std::fmt::Debug) {
                self.0 = format!("{value:?}");
            }
        }
        let mut message = Message(String::new());
        event.record(&mut message);
        self.0.lock().unwrap().push(message.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// One step with one of the interfaces.
fn step(
    comm: &Comm,
    model: &Transformer,
    options: Options,
    is_sharded: bool,
) -> comm_candle::Result<Vec<Report>> {
    let gradients = |step| model.loss(step, comm.rank()).and_then(|loss| loss.backward());
    if is_sharded {
        let mut zero = ZeroOptimizer::with_options(&model.variables, comm, options, |_| Sgd::new(0.1))?;
        (0..2).map(|number| zero.step(&gradients(number)?)).collect()
    } else {
        let mut replicas = DataParallel::with_options(&model.variables, comm, options)?;
        (0..2).map(|number| replicas.sync_gradients(&mut gradients(number)?)).collect()
    }
}

#[test]
fn a_transformer_with_fast_operations_is_warned_about_in_the_first_step() {
    for (size, is_sharded) in [(1, false), (2, false), (3, false), (1, true), (3, true)] {
        on_ranks(size, |comm| {
            let model = Transformer::new(Operations::Fast, DType::F32).unwrap();
            let (reports, found) = warnings(|| step(&comm, &model, Options::DEFAULT, is_sharded).unwrap());
            let [warning] = &found[..] else { panic!("{found:?}") };
            for words in
                ["28 of 30", "\"blocks.0.down.bias\"", "and 18 more", "softmax_last_dim", "LayerNorm"]
            {
                assert!(warning.contains(words), "{warning}");
            }
            for report in &reports {
                assert_eq!(report.without_gradient().len(), 28);
                assert!(!report.without_gradient().iter().any(|name| name.starts_with("head.")));
            }
            // The same is an error on every rank if rank 0 says so.
            let response = if comm.rank() == 0 { LostGradients::Refuse } else { LostGradients::Allow };
            let before = elements(&var(&model.variables, "head.weight"));
            let (refused, found) =
                warnings(|| step(&comm, &model, Options::DEFAULT.lost_gradients(response), is_sharded));
            match refused.unwrap_err() {
                Error::LostGradients { names, trained: 30 } => assert_eq!(names.len(), 28),
                other => panic!("{other}"),
            }
            assert!(found.is_empty() && elements(&var(&model.variables, "head.weight")) == before);
            let allow = Options::DEFAULT.lost_gradients(LostGradients::Allow);
            assert!(warnings(|| step(&comm, &model, allow, is_sharded).unwrap()).1.is_empty());
        });
    }
}

#[test]
fn a_transformer_with_slow_operations_has_all_gradients() {
    for is_sharded in [false, true] {
        on_ranks(2, |comm| {
            let model = Transformer::new(Operations::Slow, DType::F32).unwrap();
            let options = Options::DEFAULT.lost_gradients(LostGradients::Refuse);
            let (reports, found) = warnings(|| step(&comm, &model, options, is_sharded).unwrap());
            assert!(found.is_empty() && reports.iter().all(|report| report.without_gradient().is_empty()));
        });
    }
}

#[test]
fn a_refused_step_can_be_repeated_and_later_steps_may_lack_gradients() {
    on_ranks(2, |comm| {
        let tensors = ["a", "b"].map(|name| (name, numbers(1, &[2], DType::F32)));
        let variables = map(comm.rank(), &tensors);
        let options = Options::DEFAULT.lost_gradients(LostGradients::Refuse);
        let mut replicas = DataParallel::with_options(&variables, &comm, options).unwrap();
        let one = || store(&variables, &tensors[..1]);
        for _ in 0..2 {
            let refused = replicas.sync_gradients(&mut one()).unwrap_err();
            assert!(matches!(refused, Error::LostGradients { names, .. } if names == ["b"]));
        }
        replicas.sync_gradients(&mut store(&variables, &tensors)).unwrap();
        assert_eq!(replicas.sync_gradients(&mut one()).unwrap().without_gradient(), ["b"]);
        // One rank with a gradient is enough.
        let mut replicas = DataParallel::with_options(&variables, &comm, options).unwrap();
        let mut gradients = store(&variables, if comm.rank() == 0 { &tensors } else { &tensors[..1] });
        replicas.sync_gradients(&mut gradients).unwrap();
    });
}

#[test]
fn the_function_warns_once_in_a_process() {
    let counts = on_ranks(2, |comm| {
        let variables = map(comm.rank(), &["a", "b"].map(|name| (name, numbers(1, &[2], DType::F32))));
        let sync = || sync_gradients(&variables, &mut store(&variables, &[]), &comm).unwrap();
        let (reports, found) = warnings(|| [sync(), sync()]);
        assert!(reports.iter().all(|report| report.without_gradient() == ["a", "b"]));
        found.len()
    });
    // The call of another test may have been the first.
    assert!(counts.iter().sum::<usize>() <= 1, "{counts:?}");
}
