//! Data parallel training on devices gives the bits of training on the host.
#![allow(clippy::unwrap_used, clippy::panic)]

use comm_core::{AsView, AsViewMut, Comm, DType, Fabric, Host, Kernels, Memory, Shape, bytemuck};
use comm_ddp::{BucketLimits, DataParallel, Divisor, Options, Parameter, ParameterSet};
use comm_hybrid::{DeviceChoice, DeviceConfig, DevicePath, HybridCommunicator};
use comm_nccl::Cuda;
use comm_sim::in_process::{InProcessConfig, run};
use gpu_emu::Setting;
use half::{bf16, f16};

use crate::device::{JITTERS, SOON, control, devices, faults_of, library, on_host};

/// Number of elements and type of each parameter.
const PARAMETERS: [(usize, DType); 5] =
    [(5, DType::F32), (300, DType::F32), (40, DType::BF16), (77, DType::F16), (3, DType::F64)];

/// Returns the bytes of a gradient: numbers near 1, so that no sum of two is subnormal.
fn gradient([rank, step, index]: [usize; 3]) -> Vec<u8> {
    let (len, dtype) = PARAMETERS[index];
    let number = |at: usize| {
        let angle = (rank * 31 + step * 7 + at * 3 + index) as f64;
        (angle.sin().abs() + 0.125).copysign(angle.cos())
    };
    (0..len)
        .map(number)
        .flat_map(|number| match dtype {
            DType::F64 => number.to_ne_bytes().to_vec(),
            DType::F32 => (number as f32).to_ne_bytes().to_vec(),
            DType::F16 => f16::from_f64(number).to_ne_bytes().to_vec(),
            _ => bf16::from_f64(number).to_ne_bytes().to_vec(),
        })
        .collect()
}

/// A buffer by reference.
struct Mut<'a, B>(&'a mut B);

impl<M: Memory, B: AsViewMut<M>> AsViewMut<M> for Mut<'_, B> {
    type Element = B::Element;

    fn as_view_mut(&mut self) -> comm_core::Result<M::ViewMut<'_>> {
        self.0.as_view_mut()
    }
}

fn buffer<M: Kernels>(comm: &Comm<M>, index: usize, bytes: &[u8]) -> M::Buffer {
    let (len, dtype) = PARAMETERS[index];
    let mut buffer = M::allocate(comm, dtype, len).unwrap();
    M::write(comm, buffer.as_view_mut().unwrap(), bytes).unwrap();
    buffer
}

fn bytes<M: Kernels>(comm: &Comm<M>, view: M::View<'_>) -> Vec<u8> {
    let mut bytes = vec![0; view.len() * view.dtype().size()];
    M::read(comm, view, &mut bytes).unwrap();
    bytes
}

/// Trains four steps in memory `M`: with weights, several passes, an unused parameter, gradients
/// that are not finite, a limit of the norm and copies in `f32`. Returns all results.
fn train<M: Kernels>(comm: &Comm<M>, divisor: Divisor) -> Vec<Vec<u8>> {
    let named = |(index, (len, dtype)): (usize, &(usize, DType))| {
        Parameter::with_dtype(format!("p{index}"), [*len], *dtype)
    };
    let parameters = ParameterSet::new(PARAMETERS.iter().enumerate().map(named)).unwrap();
    let limits = BucketLimits::DEFAULT.first_bytes(16).bytes(640);
    let options = Options::default().limits(limits).divisor(divisor).check_finite(true);
    let mut replicas = DataParallel::new(comm, parameters, options).unwrap();
    let all = 0..PARAMETERS.len();
    let mut values: Vec<M::Buffer> =
        all.clone().map(|index| buffer(comm, index, &gradient([comm.rank(), 9, index]))).collect();
    replicas.broadcast_parameters(values.iter_mut().map(Mut)).unwrap();
    let mut results: Vec<Vec<u8>> =
        values.iter().map(|value| bytes(comm, AsView::<M>::as_view(value).unwrap())).collect();
    for number in 0..4 {
        let mut step = replicas.step_with_weight((comm.rank() + 1) as f64).unwrap();
        for index in all.clone().filter(|index| number != 2 || *index != 1) {
            let mut own = gradient([comm.rank(), number, index]);
            if number == 3 && comm.rank() == 0 && index == 0 {
                own[..4].copy_from_slice(&f32::INFINITY.to_ne_bytes());
            }
            step.accumulate(index, &buffer(comm, index, &gradient([comm.rank(), 5, index]))).unwrap();
            step.ready(index, &buffer(comm, index, &own)).unwrap();
        }
        let mut averaged = step.finish().unwrap();
        assert_eq!(averaged.is_unused(1), number == 2);
        assert_eq!(averaged.is_finite().unwrap(), number != 3);
        results.push(averaged.total_weight().to_ne_bytes().to_vec());
        results.push(averaged.norm().unwrap().to_ne_bytes().to_vec());
        averaged.clip_norm(0.5).unwrap();
        for index in all.clone() {
            results.push(bytes(comm, averaged.view(index).unwrap()));
            let mut copy = M::allocate(comm, DType::F32, PARAMETERS[index].0).unwrap();
            averaged.copy_to(index, copy.as_view_mut().unwrap()).unwrap();
            results.push(bytes(comm, copy.as_view().unwrap()));
        }
    }
    results
}

#[test]
fn training_on_devices_is_bit_identical_to_the_host() {
    let devices = devices(2);
    for (size, path, jitter) in [
        (1, DevicePath::Nccl, JITTERS[0]),
        (2, DevicePath::Nccl, JITTERS[1]),
        (1, DevicePath::Staged, JITTERS[0]),
        (2, DevicePath::Staged, JITTERS[1]),
    ] {
        control().set(Setting::JitterMicroseconds, jitter);
        for divisor in [Divisor::Weights, Divisor::Ranks] {
            let results = run(size, &InProcessConfig::default(), |fabric| {
                let mut config = DeviceConfig::with_path(path);
                config.device = DeviceChoice::Ordinal(devices[fabric.group().rank()]);
                config.library = Some(library());
                config.timeout = SOON;
                let comm = HybridCommunicator::connect(on_host(fabric), &config).unwrap().with_timeout(SOON);
                assert_eq!(comm.path(), path);
                (train::<Host>(comm.host(), divisor), train::<Cuda>(comm.cuda(), divisor))
            });
            for (host, device) in &results {
                assert_eq!(host, &results[0].0, "replicas differ");
                for (number, (host, device)) in host.iter().zip(device).enumerate() {
                    assert_eq!(host, device, "{size} ranks, {path:?}, {divisor:?}: result {number}");
                }
                let norm: f64 = bytemuck::pod_read_unaligned(&device[6]);
                assert!(norm > 0.5, "the norm is limited");
            }
        }
    }
    control().set(Setting::JitterMicroseconds, 0);
    assert_eq!(faults_of(&devices), Vec::<String>::new());
}
