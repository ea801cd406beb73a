//! The reducer serves buffers that the host cannot see.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use comm_core::{
    AsViewMut, Buffers, Call, CallOptions, Comm, Communicator, DType, Error, Group, GroupId, Membership,
    Memory, ReduceOp, Result, Shape,
};
use comm_ddp::{BucketLimits, BucketPlan, Parameter, Reducer};

/// Memory of a device that does not exist.
struct Device;

/// A device buffer: a handle and a length.
#[derive(Debug)]
struct Buffer {
    handle: usize,
    len: usize,
}

struct View<'a>(&'a Buffer);
struct ViewMut<'a>(&'a mut Buffer);

impl Memory for Device {
    type Communicator = dyn Communicator<Self>;
    type View<'a> = View<'a>;
    type ViewMut<'a> = ViewMut<'a>;

    fn into_view(buffer: Self::ViewMut<'_>) -> Self::View<'_> {
        View(buffer.0)
    }
}

impl Shape for View<'_> {
    fn dtype(&self) -> DType {
        DType::BF16
    }

    fn len(&self) -> usize {
        self.0.len
    }
}

impl Shape for ViewMut<'_> {
    fn dtype(&self) -> DType {
        DType::BF16
    }

    fn len(&self) -> usize {
        self.0.len
    }
}

impl AsViewMut<Device> for Buffer {
    type Element = f32;

    fn as_view_mut(&mut self) -> Result<ViewMut<'_>> {
        Ok(ViewMut(self))
    }
}

/// The reduced buffers, and their operators.
type Record = Arc<Mutex<Vec<(usize, ReduceOp)>>>;

/// Notes which buffers it reduces.
struct Recorder(Record);

impl Communicator<Device> for Recorder {
    fn group(&self) -> Group {
        Group::new(GroupId::WORLD, Membership { rank: 0, size: 1 }).unwrap()
    }

    fn run(&self, call: Call<'_, Device>, _: &CallOptions) -> Result<()> {
        match call {
            Call::AllReduce { buffers: Buffers::InPlace(ViewMut(buffer)), op } => {
                self.0.lock().unwrap().push((buffer.handle, op));
                Ok(())
            }
            _ => Err(unused()),
        }
    }

    fn abort(&self, _: &str) {}
}

fn unused() -> Error {
    Error::Internal("the reducer does not make this call".into())
}

/// A reducer of three buckets with one parameter each, and what it will have reduced.
fn reducer() -> (Reducer<Buffer, Device>, Record) {
    let parameters: Vec<Parameter> =
        (0..3).map(|slot| Parameter::with_dtype(slot.to_string(), [slot + 1], DType::BF16)).collect();
    let plan = BucketPlan::new(&parameters, &[2, 1, 0], BucketLimits::DEFAULT.first_bytes(1).bytes(1));
    let reduced = Record::default();
    let recorder: Arc<dyn Communicator<Device>> = Arc::new(Recorder(Arc::clone(&reduced)));
    let comm = Comm::over(recorder);
    let allocate =
        |bucket: &comm_ddp::Bucket| Ok(Buffer { handle: 100 + bucket.slots()[0], len: bucket.len() });
    (Reducer::new(comm, plan, Instant::now, allocate).unwrap(), reduced)
}

#[test]
fn buffers_of_any_memory_are_averaged_in_the_order_of_the_plan() {
    let (mut reducer, reduced) = reducer();
    for _ in 0..2 {
        reducer.begin().unwrap();
        for slot in [0, 2] {
            assert!(reducer.mark_ready(slot));
            assert!(!reducer.mark_ready(slot));
        }
        assert!(reducer.buffer(0).is_none(), "the first bucket is in flight");
        assert!(reducer.buffer_mut(1).is_some() && reducer.buffer(2).is_some());
        let timeline = reducer.finish().unwrap();
        let bytes: Vec<usize> = timeline.buckets.iter().map(|bucket| bucket.bytes).collect();
        assert_eq!(bytes, [6, 4, 2]);
        assert!((0..3).all(|bucket| reducer.buffer(bucket).is_some()));
        let order = [102, 101, 100].map(|handle| (handle, ReduceOp::Avg));
        assert_eq!(std::mem::take(&mut *reduced.lock().unwrap()), order);
    }
}

#[test]
fn a_step_cannot_begin_over_buckets_in_flight() {
    let (mut reducer, _) = reducer();
    reducer.begin().unwrap();
    assert!(reducer.mark_ready(2));
    assert!(matches!(reducer.begin(), Err(comm_ddp::Error::Abandoned)));
    assert!(matches!(reducer.begin(), Err(comm_ddp::Error::Poisoned(_))));
    assert!(matches!(reducer.finish(), Err(comm_ddp::Error::Poisoned(_))));
}
