//! Ranks as processes, for which this program starts itself; one of them is killed.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::{BufRead, BufReader};
use std::process::Child;
use std::sync::Arc;
use std::thread;

use comm_core::{Comm, Communicator, During, Error, Membership, ReduceOp};
use comm_nccl::{Cuda, Device, DeviceBuffer, NcclCommunicator, NcclConfig, ShrinkMode};

use crate::common::process::{self, RankTask};
use crate::common::{SOON, library, options};

/// The body of the processes that other tests start; it passes immediately in any other process.
#[test]
fn run_as_a_rank() {
    let Some(RankTask { task, rank, size, host }) = process::task() else { return };
    // Loads the emulator before any device is opened.
    let library = library();
    let device = Device::from_env().unwrap();
    assert_eq!(device.ordinal(), rank);
    let mut config = NcclConfig::new(Membership { rank, size }).unwrap();
    config.timeout = SOON;
    let communicator = Arc::new(NcclCommunicator::connect(&library, &device, &*host, config).unwrap());
    let comm = Comm::<Cuda>::over(Arc::<NcclCommunicator>::clone(&communicator)).with_timeout(SOON);
    let mut sum = DeviceBuffer::from_host(&device.new_stream().unwrap(), &[rank as i64, 1]).unwrap();
    comm.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
    assert_eq!(sum.to_vec().unwrap(), [(size * (size - 1) / 2) as i64, size as i64]);
    if task == "sum" {
        return;
    }
    println!("ready");
    if rank == 1 {
        thread::sleep(SOON);
    }
    comm.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
    let error = sum.to_vec().unwrap_err();
    match error.root_cause() {
        Error::PeerLost { peer: 1, during: During::Call { sequence: 2, .. }, .. } => {}
        // The other waiting rank was the first to detect it.
        Error::Aborted { reason, .. } if reason.contains("rank 1 was lost") => {}
        other => panic!("{other}"),
    }
    let left = communicator.shrink(&[1], ShrinkMode::Abort, &options()).unwrap();
    assert_eq!((left.group().rank(), left.group().size()), (rank / 2, size - 1));
    let left = Comm::<Cuda>::over(Arc::new(left));
    sum.copy_from_host(&[rank as i64, 1]).unwrap();
    left.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
    assert_eq!(sum.to_vec().unwrap(), [(0..size as i64).sum::<i64>() - 1, size as i64 - 1]);
}

#[test]
fn processes_meet_in_a_folder_and_reduce_together() {
    for size in [1, 2, 3] {
        let folder = tempfile::tempdir().unwrap();
        let ranks: Vec<Child> =
            (0..size).map(|rank| process::start("processes::sum", folder.path(), rank, size, &[])).collect();
        for mut rank in ranks {
            assert!(rank.wait().unwrap().success());
        }
    }
}

#[test]
fn a_killed_rank_is_named_by_all_waiting_ranks_which_shrink_without_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut ranks: Vec<Child> =
        (0..3).map(|rank| process::start("processes::wait", folder.path(), rank, 3, &[])).collect();
    let mut victim = ranks.remove(1);
    let said = BufReader::new(victim.stdout.take().unwrap());
    assert!(said.lines().any(|line| line.unwrap().ends_with("ready")));
    victim.kill().unwrap();
    victim.wait().unwrap();
    for mut rank in ranks {
        assert!(rank.wait().unwrap().success());
    }
}
