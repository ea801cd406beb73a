//! Device kernels give the same bits as the host, and respect the order of other work.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;

use comm_core::{AsView, AsViewMut, Comm, DType, Error, Fabric, Host, Kernels, ReduceOp};
use comm_nccl::{Cuda, DeviceBuffer, ErasedDeviceBuffer, NcclCommunicator};
use comm_ring::{RingCommunicator, RingConfig};
use comm_sim::in_process::{InProcessConfig, run};
use comm_sim::kernels_conformance::{LENGTHS, check};
use gpu_emu::Setting;

use crate::common::hold::hold;
use crate::common::{JITTERS, Rank, SOON, control, devices, faults_of, world};

fn on_host() -> Comm {
    let mut comms = run(1, &InProcessConfig::default(), |fabric| {
        assert_eq!(fabric.group().size(), 1);
        Comm::<Host>::over(Arc::new(RingCommunicator::new(fabric, RingConfig::default(), SOON).unwrap()))
    });
    comms.remove(0)
}

fn on_device(rank: Rank) -> (Comm<Cuda>, Arc<NcclCommunicator>) {
    let communicator = Arc::new(rank.comm);
    (Comm::<Cuda>::over(Arc::<NcclCommunicator>::clone(&communicator)).with_timeout(SOON), communicator)
}

fn buffer(comm: &Comm<Cuda>, dtype: DType, bytes: &[u8]) -> ErasedDeviceBuffer {
    let mut buffer = Cuda::allocate(comm, dtype, bytes.len() / dtype.size()).unwrap();
    Cuda::write(comm, buffer.as_view_mut().unwrap(), bytes).unwrap();
    buffer
}

#[test]
fn kernels_are_bit_identical_to_the_host() {
    let devices = devices(1);
    let host = on_host();
    world(&devices, |rank| {
        let (device, _) = on_device(rank);
        check(&device, &host, &LENGTHS).unwrap();
    });
    assert_eq!(faults_of(&devices), Vec::<String>::new());
}

/// Returns the errors of calls that are rejected on any memory.
fn refused<M: Kernels>(comm: &Comm<M>) -> Vec<String> {
    let buffer = |dtype, len| M::allocate(comm, dtype, len).unwrap();
    let (mut three, mut ints, mut small) =
        (buffer(DType::F32, 3), buffer(DType::I32, 3), buffer(DType::F8E4M3, 3));
    let (four, halves) = (buffer(DType::F32, 4), buffer(DType::F16, 3));
    assert!(M::get(four.as_view().unwrap(), 3..5).is_none());
    assert!(M::get_mut(three.as_view_mut().unwrap(), 4..4).is_none());
    let errors = [
        M::copy(comm, three.as_view_mut().unwrap(), four.as_view().unwrap()),
        M::copy(comm, three.as_view_mut().unwrap(), ints.as_view().unwrap()),
        M::copy(comm, small.as_view_mut().unwrap(), three.as_view().unwrap()),
        M::add(comm, three.as_view_mut().unwrap(), four.as_view().unwrap()),
        M::add(comm, three.as_view_mut().unwrap(), halves.as_view().unwrap()),
        M::scale(comm, ints.as_view_mut().unwrap(), 0.5),
        M::write(comm, three.as_view_mut().unwrap(), &[0; 13]),
        M::read(comm, four.as_view().unwrap(), &mut [0; 15]),
        M::sum_of_squares(comm, ints.as_view().unwrap()).map(drop),
        M::is_finite(comm, small.as_view().unwrap()).map(drop),
    ];
    errors.into_iter().map(|error| error.unwrap_err().to_string()).collect()
}

#[test]
fn what_the_host_refuses_a_device_refuses() {
    let host = refused(&on_host());
    world(&devices(1), |rank| {
        let (device, _) = on_device(rank);
        assert_eq!(refused(&device), host);
        let mut small = Cuda::allocate(&device, DType::F8E5M2, 1).unwrap();
        let error = Cuda::scale(&device, small.as_view_mut().unwrap(), 2.0).unwrap_err();
        assert!(error.to_string().contains("cuda"), "{error}");
    });
}

#[test]
fn memory_of_another_device_is_refused() {
    let devices = devices(2);
    let foreign = world(&devices[..1], |rank| rank.buffer(&[1.0_f32; 4])).remove(0);
    world(&devices[1..], |rank| {
        let (device, _) = on_device(rank);
        let mut ours = Cuda::allocate(&device, DType::F32, 4).unwrap();
        let error = Cuda::add(&device, ours.as_view_mut().unwrap(), foreign.view()).unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{error}");
    });
    drop(foreign);
    assert_eq!(faults_of(&devices), Vec::<String>::new());
}

#[test]
fn kernels_run_between_the_uses_of_their_memory() {
    let devices = devices(2);
    for jitter in JITTERS {
        control().set(Setting::JitterMicroseconds, jitter);
        world(&devices, |rank| {
            let (first, second) = (rank.device.new_stream().unwrap(), rank.device.new_stream().unwrap());
            let (device, _) = on_device(rank);
            let fill = |buffer: &mut DeviceBuffer<f32>, value: f32| buffer.copy_from_host(&[value; 600]);
            let mut terms = DeviceBuffer::<f32>::zeros(&first, 600).unwrap();
            let mut sums = DeviceBuffer::<f32>::zeros(&second, 600).unwrap();
            for round in 1..10 {
                fill(&mut terms, round as f32).unwrap();
                fill(&mut sums, 1.0).unwrap();
                // Everything is enqueued while both streams are blocked, including the kernel after
                // them.
                let held = [hold(&first), hold(&second)];
                terms.as_mut_slice().write_on(&first, |_| Ok(())).unwrap();
                sums.as_mut_slice().write_on(&second, |_| Ok(())).unwrap();
                Cuda::add(&device, sums.view_mut(), terms.view()).unwrap();
                device.all_reduce(&mut sums, ReduceOp::Sum).unwrap();
                Cuda::scale(&device, sums.view_mut(), 0.5).unwrap();
                drop(held);
                fill(&mut terms, -1.0).unwrap();
                assert_eq!(sums.to_vec().unwrap(), vec![1.0 + round as f32; 600]);
            }
        });
    }
    control().set(Setting::JitterMicroseconds, 0);
    assert_eq!(faults_of(&devices), Vec::<String>::new());
}

#[test]
fn results_of_a_lost_call_are_lost_through_kernels() {
    let devices = devices(2);
    control().plan_hang(devices[0], 0);
    control().plan_hang(devices[1], 0);
    world(&devices, |rank| {
        let (device, communicator) = on_device(rank);
        let ones = [1.0_f32; 40];
        let mut reduced = buffer(&device, DType::F32, bytemuck::cast_slice(&ones));
        let mut converted = Cuda::allocate(&device, DType::F64, 40).unwrap();
        let [mut sum, mut zeroed] =
            [(); 2].map(|()| buffer(&device, DType::F32, bytemuck::cast_slice(&ones)));
        device.all_reduce(&mut reduced, ReduceOp::Sum).unwrap();
        Cuda::scale(&device, reduced.as_view_mut().unwrap(), 0.5).unwrap();
        Cuda::copy(&device, converted.as_view_mut().unwrap(), reduced.as_view().unwrap()).unwrap();
        Cuda::add(&device, sum.as_view_mut().unwrap(), reduced.as_view().unwrap()).unwrap();
        Cuda::copy(&device, zeroed.as_view_mut().unwrap(), reduced.as_view().unwrap()).unwrap();
        Cuda::zero(&device, zeroed.as_view_mut().unwrap()).unwrap();
        communicator.fail(Error::Aborted { by: 0, reason: "enough".into() });
        let mut bytes = [0; 160];
        for lost in [&reduced, &sum] {
            let error = Cuda::read(&device, lost.as_view().unwrap(), &mut bytes).unwrap_err();
            assert!(matches!(&error, Error::Poisoned(_)) && error.to_string().contains("enough"), "{error}");
        }
        let error = Cuda::sum_of_squares(&device, converted.as_view().unwrap()).unwrap_err();
        assert!(matches!(error, Error::Poisoned(_)), "{error}");
        let error = Cuda::is_finite(&device, converted.as_view().unwrap()).unwrap_err();
        assert!(matches!(error, Error::Poisoned(_)), "{error}");
        Cuda::read(&device, zeroed.as_view().unwrap(), &mut bytes).unwrap();
        assert_eq!(bytes, [0; 160]);
    });
}

#[test]
fn errors_of_the_driver_have_their_code() {
    let devices = devices(1);
    let code = |error: Error| match error {
        Error::Backend { backend: "cuda", code, detail } => (code, detail),
        error => panic!("{error}"),
    };
    world(&devices, |rank| {
        let (device, _) = on_device(rank);
        control().plan_code(devices[0], c"cuModuleLoadData", 2, 218);
        let (number, detail) = code(Cuda::allocate(&device, DType::F32, 4).unwrap_err());
        assert!(number == 218 && detail.contains("load kernels"), "{detail}");
        let mut buffer = Cuda::allocate(&device, DType::F32, 4).unwrap();
        control().plan_code(devices[0], c"cuLaunchKernel", 0, 2);
        let (number, detail) = code(Cuda::scale(&device, buffer.as_view_mut().unwrap(), 2.0).unwrap_err());
        assert!(number == 2 && detail.contains("launch a kernel"), "{detail}");
        Cuda::scale(&device, buffer.as_view_mut().unwrap(), 2.0).unwrap();
        assert!(Cuda::is_finite(&device, buffer.as_view().unwrap()).unwrap());
    });
}
