//! Data that several ranks read lies in a shared buffer of the channels, and other data does not.
#![allow(clippy::unwrap_used)]

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use comm_core::{Allocation, ChannelId, Comm, Fabric, Group, LinkModel, ReduceOp, Result, Until};
use comm_ring::{RingCommunicator, RingConfig};
use comm_sim::in_process::{self, InProcessConfig, InProcessFabric};

/// The sizes in bytes of the shared buffers that were requested, in order.
type Asked = Arc<Mutex<Vec<usize>>>;

/// Channels that record requests for shared buffers.
struct Staging {
    fabric: InProcessFabric,
    asked: Asked,
}

impl Fabric for Staging {
    type Channel = <InProcessFabric as Fabric>::Channel;

    fn group(&self) -> Group {
        self.fabric.group()
    }

    fn now(&self) -> Instant {
        self.fabric.now()
    }

    fn links(&self) -> LinkModel {
        self.fabric.links()
    }

    fn open_among(&self, channel: ChannelId, members: &[usize], until: Until<'_>) -> Result<Self::Channel> {
        self.fabric.open_among(channel, members, until)
    }

    fn shared_buffer(&self, bytes: usize) -> Option<Allocation> {
        self.asked.lock().unwrap().push(bytes);
        Allocation::on_heap(bytes).ok()
    }
}

#[test]
fn a_shared_buffer_is_kept_for_data_that_several_ranks_read() {
    in_process::run(3, &InProcessConfig::default(), |fabric| {
        let (rank, asked) = (fabric.group().rank(), Asked::default());
        let timeout = Duration::from_secs(20);
        let fabric = Staging { fabric, asked: Arc::clone(&asked) };
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
        assert_eq!(staged_by(&|| staged.all_reduce(&mut [1_u8; 1536], ReduceOp::Sum).unwrap()), []);
        assert_eq!(staged_by(&|| gather(&staged, 2048)), [2048]);
        // Only the root of a broadcast has data that others read.
        let of_root = if rank == 1 { vec![9024] } else { vec![] };
        assert_eq!(staged_by(&|| staged.broadcast(1, &mut [0_u8; 9024]).unwrap()), of_root);
        // Of larger data, the buffer holds only the segments of one pass.
        let large = staged_by(&|| staged.broadcast(2, &mut vec![0_u8; 32 << 20]).unwrap());
        assert_eq!(large, if rank == 2 { vec![4 << 20] } else { vec![] });
    });
}
