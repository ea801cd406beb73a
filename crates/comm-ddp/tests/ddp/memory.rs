//! Gradients are in memory that only kernels and collectives access.

use std::ops::Range;

use comm_core::{
    AsView, AsViewMut, Buffers, Call, CallOptions, Comm, Communicator, DType, Erased, ErasedBuffer, Error,
    Group, Groups, Host, HostView, HostViewMut, Kernels, Memory, Result, Shape,
};
use comm_ddp::{
    BucketLimits, CastHook, DataParallel, Options, Parameter, ParameterSet, PowerSgdHook, QuantizationHook,
};

use crate::on_ranks;

/// Memory whose elements only its own kernels and communicator access.
struct Device;

#[derive(Debug)]
struct Buffer(ErasedBuffer);
struct View<'a>(HostView<'a>);
struct ViewMut<'a>(HostViewMut<'a>);

trait DeviceCommunicator: Communicator<Device> + Groups<Device> {}

impl Memory for Device {
    type Communicator = dyn DeviceCommunicator;
    type View<'a> = View<'a>;
    type ViewMut<'a> = ViewMut<'a>;

    fn into_view(buffer: Self::ViewMut<'_>) -> Self::View<'_> {
        View(buffer.0.into_read_only())
    }
}

impl Shape for View<'_> {
    fn dtype(&self) -> DType {
        self.0.dtype()
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

impl Shape for ViewMut<'_> {
    fn dtype(&self) -> DType {
        self.0.dtype()
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

impl AsView<Device> for Buffer {
    type Element = Erased;

    fn as_view(&self) -> Result<View<'_>> {
        self.0.as_view().map(View)
    }
}

impl AsViewMut<Device> for Buffer {
    type Element = Erased;

    fn as_view_mut(&mut self) -> Result<ViewMut<'_>> {
        self.0.as_view_mut().map(ViewMut)
    }
}

/// Makes the calls on a communicator of the host.
struct Staged(Comm);

impl DeviceCommunicator for Staged {}

impl Communicator<Device> for Staged {
    fn group(&self) -> Group {
        self.0.group()
    }

    fn run(&self, call: Call<'_, Device>, options: &CallOptions) -> Result<()> {
        let call = match call {
            Call::AllReduce { buffers: Buffers::InPlace(ViewMut(buffer)), op } => {
                Call::AllReduce { buffers: Buffers::InPlace(buffer), op }
            }
            Call::AllGather { buffers: Buffers::InPlace(ViewMut(buffer)), counts } => {
                Call::AllGather { buffers: Buffers::InPlace(buffer), counts }
            }
            Call::AllToAll { buffers: Buffers::InPlace(ViewMut(buffer)), send, recv } => {
                Call::AllToAll { buffers: Buffers::InPlace(buffer), send, recv }
            }
            Call::Broadcast { root, buffer: ViewMut(buffer) } => Call::Broadcast { root, buffer },
            _ => return Err(Error::Internal("training does not make this call".into())),
        };
        self.0.communicator().run(call, options)
    }

    fn abort(&self, reason: &str) {
        self.0.abort(reason);
    }
}

impl Groups<Device> for Staged {
    fn split(&self, _: Option<u64>, _: i64, _: &CallOptions) -> Result<Option<Box<dyn DeviceCommunicator>>> {
        Ok(None)
    }

    fn new_group(&self, _: &[usize], _: &CallOptions) -> Result<Option<Box<dyn DeviceCommunicator>>> {
        Ok(None)
    }

    fn duplicate(&self, _: &CallOptions) -> Result<Box<dyn DeviceCommunicator>> {
        Ok(Box::new(Self(self.0.duplicate()?)))
    }
}

/// Returns a handle that the host's kernels take and do not use.
fn unused(_: &Comm<Device>) -> Comm {
    comm::threads::run(1, |comm| comm).unwrap().remove(0)
}

impl Kernels for Device {
    type Buffer = Buffer;

    fn allocate(comm: &Comm<Self>, dtype: DType, len: usize) -> Result<Buffer> {
        Host::allocate(&unused(comm), dtype, len).map(Buffer)
    }

    fn get(view: Self::View<'_>, range: Range<usize>) -> Option<Self::View<'_>> {
        view.0.get(range).map(View)
    }

    fn get_mut(view: Self::ViewMut<'_>, range: Range<usize>) -> Option<Self::ViewMut<'_>> {
        view.0.get_mut(range).map(ViewMut)
    }

    fn write(comm: &Comm<Self>, into: ViewMut<'_>, bytes: &[u8]) -> Result<()> {
        Host::write(&unused(comm), into.0, bytes)
    }

    fn read(comm: &Comm<Self>, from: View<'_>, bytes: &mut [u8]) -> Result<()> {
        Host::read(&unused(comm), from.0, bytes)
    }

    fn zero(comm: &Comm<Self>, into: ViewMut<'_>) -> Result<()> {
        Host::zero(&unused(comm), into.0)
    }

    fn copy(comm: &Comm<Self>, into: ViewMut<'_>, from: View<'_>) -> Result<()> {
        Host::copy(&unused(comm), into.0, from.0)
    }

    fn convert(comm: &Comm<Self>, into: ViewMut<'_>, from: View<'_>, factor: f32) -> Result<()> {
        Host::convert(&unused(comm), into.0, from.0, factor)
    }

    fn add(comm: &Comm<Self>, into: ViewMut<'_>, from: View<'_>) -> Result<()> {
        Host::add(&unused(comm), into.0, from.0)
    }

    fn scale(comm: &Comm<Self>, into: ViewMut<'_>, factor: f64) -> Result<()> {
        Host::scale(&unused(comm), into.0, factor)
    }

    fn sum_of_squares(comm: &Comm<Self>, from: View<'_>) -> Result<f64> {
        Host::sum_of_squares(&unused(comm), from.0)
    }

    fn is_finite(comm: &Comm<Self>, from: View<'_>) -> Result<bool> {
        Host::is_finite(&unused(comm), from.0)
    }
}

const LENGTHS: [usize; 3] = [5, 40, 3];
const HOOKS: [&str; 5] = ["none", "f16", "int8", "int4", "power_sgd"];

fn gradient(rank: usize, step: usize, index: usize) -> Vec<f32> {
    (0..LENGTHS[index]).map(|at| ((rank * 31 + step * 7 + at) as f32).sin() * (index + 1) as f32).collect()
}

/// Trains three steps with a hook in memory `M`, whose buffers `buffer` fills and `numbers` reads.
/// Returns the bits of the averages and of the last norm.
fn train<M: Kernels>(comm: &Comm<M>, hook: &str) -> Vec<u64> {
    // The second parameter is a matrix that PowerSGD compresses.
    let shape = |len: usize| if len == 40 { vec![8, 5] } else { vec![len] };
    let named = |(index, len): (usize, &usize)| Parameter::new::<f32>(format!("p{index}"), shape(*len));
    let parameters = ParameterSet::new(LENGTHS.iter().enumerate().map(named)).unwrap();
    let options = Options::default().limits(BucketLimits::DEFAULT.first_bytes(16).bytes(64));
    let mut replicas = DataParallel::new(comm, parameters, options).unwrap();
    match hook {
        "f16" => replicas.register_comm_hook(CastHook::f16()).unwrap(),
        "int8" => replicas.register_comm_hook(QuantizationHook::int8()).unwrap(),
        "int4" => replicas.register_comm_hook(QuantizationHook::int4()).unwrap(),
        "power_sgd" => replicas.register_comm_hook(PowerSgdHook::new(1).start_step(1)).unwrap(),
        _ => {}
    }
    let buffer = |numbers: &[f32]| {
        let mut buffer = M::allocate(comm, DType::F32, numbers.len()).unwrap();
        M::write(comm, buffer.as_view_mut().unwrap(), comm_core::bytemuck::cast_slice(numbers)).unwrap();
        buffer
    };
    let numbers = |view: M::View<'_>| {
        let mut numbers = vec![0_f32; view.len()];
        M::read(comm, view, comm_core::bytemuck::cast_slice_mut(&mut numbers)).unwrap();
        numbers
    };
    let mut values: Vec<M::Buffer> = (0..3).map(|index| buffer(&gradient(comm.rank(), 9, index))).collect();
    replicas.broadcast_parameters(values.iter_mut().map(Mut)).unwrap();
    let mut bits: Vec<u64> = values
        .iter()
        .flat_map(|value| numbers(value.as_view().unwrap()))
        .map(|number| u64::from(number.to_bits()))
        .collect();
    for number in 0..3 {
        let mut step = replicas.step_with_weight((comm.rank() + 1) as f64).unwrap();
        for index in 0..3 {
            step.accumulate(index, &buffer(&gradient(comm.rank(), 5, index))).unwrap();
            step.ready(index, &buffer(&gradient(comm.rank(), number, index))).unwrap();
        }
        let mut averaged = step.finish().unwrap();
        assert!(averaged.is_finite().unwrap());
        bits.push(averaged.clip_norm(0.5).unwrap().to_bits());
        for index in 0..3 {
            bits.extend(
                numbers(averaged.view(index).unwrap()).iter().map(|number| u64::from(number.to_bits())),
            );
        }
    }
    bits
}

/// A buffer by reference.
struct Mut<'a, B>(&'a mut B);

impl<M: Memory, B: AsViewMut<M>> AsViewMut<M> for Mut<'_, B> {
    type Element = B::Element;

    fn as_view_mut(&mut self) -> Result<M::ViewMut<'_>> {
        self.0.as_view_mut()
    }
}

#[test]
fn training_in_device_memory_is_bit_identical_to_training_in_host_memory() {
    for (size, hook) in [1, 2, 3].into_iter().flat_map(|size| HOOKS.map(|hook| (size, hook))) {
        let host = on_ranks(size, |comm| train::<Host>(&comm, hook));
        let device = on_ranks(size, |comm| {
            let communicator: std::sync::Arc<dyn DeviceCommunicator> = std::sync::Arc::new(Staged(comm));
            train::<Device>(&Comm::over(communicator), hook)
        });
        assert_eq!(host, device, "{hook}");
        assert!(host.iter().all(|bits| *bits == host[0]), "replicas differ with {hook}");
    }
}
