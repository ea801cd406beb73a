//! Data that several ranks read lies in a shared buffer of the channels, and other data does not.
#![allow(clippy::unwrap_used)]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use comm_core::{Allocation, Comm, Fabric, ReduceOp};
use comm_ring::{RingCommunicator, RingConfig};
use comm_sim::SharingFabric;
use comm_sim::in_process::{self, InProcessConfig, InProcessFabric};

/// The sizes in bytes of the shared buffers that were requested, in order.
type Asked = Arc<Mutex<Vec<usize>>>;

#[test]
fn a_shared_buffer_is_kept_for_data_that_several_ranks_read() {
    in_process::run(3, &InProcessConfig::default(), |fabric| {
        let (rank, asked) = (fabric.group().rank(), Asked::default());
        let timeout = Duration::from_secs(20);
        let record = Arc::clone(&asked);
        let share = move |_: &InProcessFabric, bytes| {
            record.lock().unwrap().push(bytes);
            Allocation::on_heap(bytes).ok()
        };
        let fabric = SharingFabric { fabric, share };
        let comm = Comm::new(RingCommunicator::new(fabric, RingConfig::default(), timeout).unwrap());
        let staged_by = |call: &dyn Fn()| {
            asked.lock().unwrap().clear();
            call();
            asked.lock().unwrap().clone()
        };
        let (staged, ring) = (comm.with_algorithm("staged"), comm.with_algorithm("ring"));
        let gather = |comm: &Comm, len: usize| {
            let mut all = vec![0_u8; 3 * len];
            comm.all_gather(&vec![rank as u8 + 1; len], &mut all).unwrap();
            assert!(all.iter().enumerate().all(|(at, byte)| *byte as usize == at / len + 1));
        };
        assert_eq!(staged_by(&|| gather(&ring, 1000)), []);
        assert_eq!(staged_by(&|| comm.reduce(0, &mut [1.0_f32; 1000], ReduceOp::Sum).unwrap()), []);
        assert_eq!(staged_by(&|| gather(&staged, 1024)), [1024]);
        assert_eq!(staged_by(&|| gather(&staged, 600)), []);
        assert_eq!(staged_by(&|| staged.all_reduce(&mut [1_u8; 900], ReduceOp::Sum).unwrap()), []);
        assert_eq!(staged_by(&|| gather(&staged, 2048)), [2048]);
        // Only the root of a broadcast has data that others read.
        let of_root = if rank == 1 { vec![9024] } else { vec![] };
        assert_eq!(staged_by(&|| staged.broadcast(1, &mut [0_u8; 9024]).unwrap()), of_root);
        // Of larger data, the buffer holds only the segments of one pass.
        let large = staged_by(&|| staged.broadcast(2, &mut vec![0_u8; 32 << 20]).unwrap());
        assert_eq!(large, if rank == 2 { vec![2 << 20] } else { vec![] });
    });
}
