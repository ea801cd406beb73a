//! Ranks as processes to which some devices of the machine are visible: a different one each, or
//! the same one.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::Read;
use std::process::Child;
use std::sync::Arc;

use comm_core::{Comm, Error, Invalid, Membership, ReduceOp};
use comm_nccl::{Cuda, Device, DeviceBuffer, NcclCommunicator, NcclConfig};

use crate::common::process::{self, RankTask};
use crate::common::{SOON, library};

const SHARE: (&str, &str) = ("NCCL_MULTI_RANK_GPU_ENABLE", "1");
/// The emulator's NCCL does not read the variable above.
const SHARED: (&str, &str) = ("GPU_EMU_SHARED_DEVICES", "1");

/// The body of the processes that other tests start; it passes immediately in any other process.
#[test]
fn run_as_a_rank() {
    let Some(RankTask { task, rank, size, host }) = process::task() else { return };
    let library = library();
    let device = Device::from_env().unwrap();
    assert_eq!((Device::count().unwrap(), device.ordinal()), (1, 0), "a rank uses the only visible device");
    println!("device {}", device.uuid().unwrap()[15]);
    let mut config = NcclConfig::new(Membership { rank, size }).unwrap();
    config.timeout = SOON;
    let connected = NcclCommunicator::connect(&library, &device, &*host, config);
    if task == "refused" {
        let error = connected.map(drop).unwrap_err();
        assert!(matches!(error, Error::Invalid(Invalid::SharedDevice { ranks: (0, 1), .. })), "{error}");
        return println!("{error}");
    }
    let comm = Comm::<Cuda>::over(Arc::new(connected.unwrap()));
    let mut sum = DeviceBuffer::from_host(&device.new_stream().unwrap(), &[rank as i64, 1]).unwrap();
    comm.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
    assert_eq!(sum.to_vec().unwrap(), [(size * (size - 1) / 2) as i64, size as i64]);
}

/// Starts ranks, each with its own variables, and returns their output after all have succeeded.
fn run<const N: usize>(task: &str, environments: [&[(&str, &str)]; N]) -> [String; N] {
    let folder = tempfile::tempdir().unwrap();
    let mut rank = 0..;
    let ranks: [Child; N] = environments
        .map(|environment| process::start(task, folder.path(), rank.next().unwrap(), N, environment));
    ranks.map(|mut rank| {
        let mut output = String::new();
        rank.stdout.take().unwrap().read_to_string(&mut output).unwrap();
        assert!(rank.wait().unwrap().success(), "{output}");
        output
    })
}

#[test]
fn a_rank_that_sees_one_device_uses_it_whatever_its_number() {
    let shown = |device| ("CUDA_VISIBLE_DEVICES", device);
    let output = run("visible::sum", [&[shown("2")], &[shown("0")], &[shown("5")]]);
    for (output, device) in output.iter().zip(["device 2", "device 0", "device 5"]) {
        assert!(output.contains(device), "{output}");
    }
}

#[test]
fn processes_on_one_device_are_refused() {
    let output = run("visible::refused", [&[("CUDA_VISIBLE_DEVICES", "3")]; 2]);
    for output in output {
        assert!(output.contains("is not for rank 0, rank 1"), "{output}");
    }
}

#[test]
fn processes_share_a_device_where_all_of_them_tell_nccl_so() {
    let shown = ("CUDA_VISIBLE_DEVICES", "3");
    run("visible::sum", [&[shown, SHARE, SHARED]; 2]);
    let output = run("visible::refused", [&[shown, SHARE, SHARED], &[shown, SHARED]]);
    assert!(output.iter().all(|output| output.contains("is not for rank 1\n")), "{output:?}");
    let old = ("GPU_EMU_NCCL_VERSION", "22809");
    let output = run("visible::refused", [&[shown, SHARE, SHARED, old]; 2]);
    assert!(output.iter().all(|output| output.contains("from 2.30.3 on")), "{output:?}");
}
