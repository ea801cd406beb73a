//! Ranks as threads, and the values of modules.

use std::collections::BTreeMap;
use std::time::Duration;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use comm_core::Comm;
use comm_ring::{RingCommunicator, RingConfig};
use comm_sim::in_process::{self, InProcessConfig};

pub(crate) const WORLDS: [usize; 3] = [1, 2, 3];

/// The time after which an operation counts as hanging.
const SOON: Duration = Duration::from_secs(60);

/// Runs `rank_main` on this many ranks and returns their results, in rank order.
pub(crate) fn on_ranks<R: Send>(size: usize, rank_main: impl Fn(Comm) -> R + Sync) -> Vec<R> {
    in_process::run(size, &InProcessConfig::default(), |fabric| {
        let communicator = RingCommunicator::new(fabric, RingConfig::default(), SOON).unwrap();
        rank_main(Comm::new(communicator).with_timeout(SOON))
    })
}

pub(crate) fn flex() -> Device {
    Device::flex().autodiff()
}

/// burn deprecates this backend, but still has it.
#[allow(deprecated, reason = "it is tested as long as burn has it")]
pub(crate) fn ndarray() -> Device {
    Device::ndarray().autodiff()
}

/// A parameter with the numbers from `first` on.
pub(crate) fn numbers<const D: usize>(first: usize, shape: [usize; D], device: &Device) -> Param<Tensor<D>> {
    Param::from_tensor(tensor(first, shape, device))
}

/// A tensor with the numbers from `first` on.
pub(crate) fn tensor<const D: usize>(first: usize, shape: [usize; D], device: &Device) -> Tensor<D> {
    let numbers = (first..first + shape.iter().product::<usize>()).map(|number| number as f32).collect();
    Tensor::from_data(TensorData::new::<f32, _>(numbers, shape), device)
}

/// Everything about a parameter except its id.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Found {
    pub(crate) data: TensorData,
    pub(crate) requires_grad: bool,
}

/// All parameters of a module, by path.
pub(crate) fn parameters<M: Module>(module: &M) -> BTreeMap<String, Found> {
    collect(module).found
}

/// The ids of all parameters, by path.
pub(crate) fn ids<M: Module>(module: &M) -> BTreeMap<String, ParamId> {
    collect(module).ids
}

/// All elements of all parameters, widened.
pub(crate) fn elements<M: Module>(module: &M) -> Vec<f64> {
    parameters(module).values().flat_map(|found| found.data.iter::<f64>().collect::<Vec<_>>()).collect()
}

fn collect<M: Module>(module: &M) -> Collector {
    let mut collector = Collector::default();
    module.visit(&mut collector);
    collector
}

#[derive(Default)]
struct Collector {
    path: Vec<String>,
    found: BTreeMap<String, Found>,
    ids: BTreeMap<String, ParamId>,
}

impl Collector {
    fn add(&mut self, id: ParamId, data: TensorData, requires_grad: bool) {
        let path = self.path.join(".");
        self.ids.extend([(path.clone(), id)]);
        let twice = self.found.insert(path, Found { data, requires_grad });
        assert_eq!(twice, None);
    }
}

impl ModuleVisitor for Collector {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        drop(self.path.pop());
    }

    fn visit_float<const D: usize>(&mut self, parameter: &Param<Tensor<D>>) {
        self.add(parameter.id, parameter.val().into_data(), parameter.is_require_grad());
    }

    fn visit_int<const D: usize>(&mut self, parameter: &Param<Tensor<D, Int>>) {
        self.add(parameter.id, parameter.val().into_data(), false);
    }

    fn visit_bool<const D: usize>(&mut self, parameter: &Param<Tensor<D, Bool>>) {
        self.add(parameter.id, parameter.val().into_data(), false);
    }
}
