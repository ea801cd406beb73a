//! Ranks as threads, and models that differ between ranks.

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor, Var};
use candle_nn::VarMap;
use comm_core::{Comm, Fabric, Transport, Until};
use comm_ring::{RingCommunicator, RingConfig};
use comm_sim::in_process::{self, InProcessConfig, InProcessFabric, InProcessTransport};
use comm_sim::{AlteredFabric, AlteredTransport};

pub(crate) const WORLDS: [usize; 5] = [1, 2, 3, 4, 5];

/// The time after which an operation counts as hanging.
const SOON: Duration = Duration::from_secs(30);

/// Runs `rank_main` on this many ranks and returns their results, in rank order.
pub(crate) fn on_ranks<R: Send>(size: usize, rank_main: impl Fn(Comm) -> R + Sync) -> Vec<R> {
    in_process::run(size, &InProcessConfig::default(), |fabric| {
        let communicator = RingCommunicator::new(fabric, RingConfig::default(), SOON).unwrap();
        rank_main(Comm::new(communicator).with_timeout(SOON))
    })
}

/// Like [`on_ranks`], with the number of bytes that a rank has sent so far, in the pieces that the
/// transport took.
pub(crate) fn counting<R: Send>(size: usize, rank_main: impl Fn(Comm, &AtomicUsize) -> R + Sync) -> Vec<R> {
    in_process::run(size, &InProcessConfig::default(), |fabric| {
        let sent = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&sent);
        let open = move |fabric: &InProcessFabric, channel, members: &[usize], until: Until<'_>| {
            let (transport, count) = (fabric.open_among(channel, members, until)?, Arc::clone(&count));
            let send = move |transport: &mut InProcessTransport, to: usize, bytes: &[IoSlice<'_>]| {
                let sent = transport.try_send(to, bytes)?;
                count.fetch_add(usize::from(sent > 0), Ordering::Relaxed);
                Ok(sent)
            };
            Ok(AlteredTransport { transport, alteration: send })
        };
        let communicator = RingCommunicator::new(AlteredFabric { fabric, open }, RingConfig::default(), SOON);
        rank_main(Comm::new(communicator.unwrap()).with_timeout(SOON), &sent)
    })
}

/// A map of these tensors, filled in an order that depends on the rank.
pub(crate) fn map(rank: usize, tensors: &[(&str, Tensor)]) -> VarMap {
    let map = VarMap::new();
    let mut tensors: Vec<_> = tensors.iter().collect();
    let by = rank % tensors.len().max(1);
    tensors.rotate_left(by);
    let vars =
        tensors.into_iter().map(|(name, tensor)| ((*name).to_owned(), Var::from_tensor(tensor).unwrap()));
    map.data().lock().unwrap().extend(vars);
    map
}

/// The variable of this name.
pub(crate) fn var(map: &VarMap, name: &str) -> Var {
    map.data().lock().unwrap()[name].clone()
}

/// A tensor with the numbers from `first` on.
pub(crate) fn numbers(first: usize, shape: &[usize], dtype: DType) -> Tensor {
    let len: usize = shape.iter().product();
    let numbers: Vec<f64> = (first..first + len).map(|number| number as f64).collect();
    Tensor::from_vec(numbers, shape, &Device::Cpu).unwrap().to_dtype(dtype).unwrap()
}

/// All elements, widened, which is exact.
pub(crate) fn elements(tensor: &Tensor) -> Vec<f64> {
    let flat = tensor.flatten_all().unwrap();
    flat.to_dtype(DType::F64).unwrap().to_vec1().unwrap()
}

/// Gradients of these variables.
pub(crate) fn store(map: &VarMap, gradients: &[(&str, Tensor)]) -> GradStore {
    let mut store = GradStore::default();
    for (name, gradient) in gradients {
        store.insert(&var(map, name), gradient.clone());
    }
    store
}

/// The gradient of the variable of this name.
pub(crate) fn gradient<'g>(map: &VarMap, name: &str, store: &'g GradStore) -> Option<&'g Tensor> {
    store.get(&var(map, name))
}

/// The address of the elements of an `f32` tensor.
pub(crate) fn address(tensor: &Tensor) -> usize {
    let (storage, layout) = tensor.storage_and_layout();
    let candle_core::Storage::Cpu(storage) = &*storage else { panic!("not on the CPU") };
    storage.as_slice::<f32>().unwrap()[layout.start_offset()..].as_ptr().addr()
}
