//! The memory of one rank, the call on it, and what must lie in it afterwards.

use std::ops::{Deref, DerefMut, Range};

use comm::{Buffer, Comm, ReduceOp};

use super::data::Data;
use super::error::{PerfError, Result};
use super::number::Number;
use super::operation::{Operation, Place};
use super::plan::Plan;

/// What no result is by accident everywhere.
const UNTOUCHED: u64 = 0xa5;

/// How many elements a rank sends from one buffer and receives into another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lengths {
    pub(crate) send: usize,
    pub(crate) recv: usize,
}

impl Lengths {
    /// Of a rank in a call of so many elements.
    pub(crate) fn of(plan: &Plan, is_root: bool, count: usize) -> Self {
        use Operation as O;
        let block = count / plan.ranks;
        let at_root = |len| if is_root { len } else { 0 };
        let (send, recv) = match (plan.operation, plan.place) {
            (O::Barrier, _) => (0, 0),
            (O::Gather, _) => (block, at_root(count)),
            (O::Scatter, _) => (at_root(count), block),
            (_, Place::In) => (0, count),
            (O::Reduce, Place::Out) => (count, at_root(count)),
            (O::AllGather, Place::Out) => (block, count),
            (O::ReduceScatter, Place::Out) => (count, block),
            (O::AllReduce | O::Broadcast | O::AllToAll | O::Scan | O::Exscan, Place::Out) => (count, count),
        };
        Self { send, recv }
    }
}

/// The buffers of one rank for calls of one size.
#[derive(Debug)]
pub(crate) struct Buffers<'a, T> {
    plan: &'a Plan,
    rank: usize,
    count: usize,
    send: Elements<T>,
    recv: Elements<T>,
}

impl<'a, T: Number> Buffers<'a, T> {
    /// Buffers whose every page has been written to.
    pub(crate) fn new(plan: &'a Plan, comm: &Comm, count: usize) -> Result<Self> {
        Self::with(plan, comm, count, Lengths::of(plan, comm.rank() == plan.root, count))
    }

    /// Buffers with which this rank can also be the root.
    pub(crate) fn for_any_root(plan: &'a Plan, comm: &Comm, count: usize) -> Result<Self> {
        Self::with(plan, comm, count, Lengths::of(plan, true, count))
    }

    fn with(plan: &'a Plan, comm: &Comm, count: usize, lengths: Lengths) -> Result<Self> {
        let source = plan.alloc.then_some(comm);
        let (send, recv) = (Elements::new(source, lengths.send)?, Elements::new(source, lengths.recv)?);
        Ok(Self { plan, rank: comm.rank(), count, send, recv })
    }

    /// Makes the call once.
    pub(crate) fn call(&mut self, comm: &Comm) -> comm::Result<()> {
        self.call_with_root(comm, self.plan.root)
    }

    /// Makes the call once, with this root instead of the plan's.
    pub(crate) fn call_with_root(&mut self, comm: &Comm, root: usize) -> comm::Result<()> {
        use Operation as O;
        let Self { plan, send, recv, .. } = self;
        let (send, recv) = (&send[..], &mut recv[..]);
        let op = plan.op.unwrap_or(ReduceOp::Sum);
        match (plan.operation, plan.place) {
            (O::AllReduce, Place::In) => comm.all_reduce(recv, op),
            (O::AllReduce, Place::Out) => comm.all_reduce_into(send, recv, op),
            (O::Reduce, Place::In) => comm.reduce(root, recv, op),
            (O::Reduce, Place::Out) => comm.reduce_into(root, send, recv, op),
            (O::Broadcast, _) => comm.broadcast(root, recv),
            (O::AllGather, Place::In) => comm.all_gather_in_place(recv),
            (O::AllGather, Place::Out) => comm.all_gather(send, recv),
            (O::ReduceScatter, Place::In) => comm.reduce_scatter_in_place(recv, op),
            (O::ReduceScatter, Place::Out) => comm.reduce_scatter(send, recv, op),
            (O::Gather, _) => comm.gather(root, send, recv),
            (O::Scatter, _) => comm.scatter(root, send, recv),
            (O::AllToAll, Place::In) => comm.all_to_all_in_place(recv),
            (O::AllToAll, Place::Out) => comm.all_to_all(send, recv),
            (O::Scan, Place::In) => comm.scan(recv, op),
            (O::Scan, Place::Out) => comm.scan_into(send, recv, op),
            (O::Exscan, Place::In) => comm.exscan(recv, op),
            (O::Exscan, Place::Out) => comm.exscan_into(send, recv, op),
            (O::Barrier, _) => comm.barrier(),
        }
    }

    /// Fills with zeros, which no number of calls turns into something that is slower to add.
    pub(crate) fn clear(&mut self) {
        self.send.fill(T::of(0));
        self.recv.fill(T::of(0));
    }

    /// Makes the call with other contributions in every rank and element, and counts the elements
    /// of this rank that are not what they must be, in any bit.
    pub(crate) fn check(&mut self, comm: &Comm) -> comm::Result<u64> {
        self.contribute();
        self.call(comm)?;
        Ok(self.wrong())
    }

    /// How many elements of the result are not what they must be after one call.
    fn wrong(&self) -> u64 {
        let wrong = self.result().filter(|&index| {
            let expected = T::of(self.expected(index));
            let found = self.recv.get(index);
            found.is_none_or(|found| bytemuck::bytes_of(found) != bytemuck::bytes_of(&expected))
        });
        wrong.count() as u64
    }

    fn data(&self) -> Data {
        Data::new(self.plan.ranks, self.plan.op)
    }

    fn block(&self) -> usize {
        self.count / self.plan.ranks
    }

    /// Writes this rank's contribution, and over all memory that gets a result.
    fn contribute(&mut self) {
        let (data, rank, block) = (self.data(), self.rank, self.block());
        self.recv.fill(T::of(UNTOUCHED));
        let into = match (self.plan.operation, self.plan.place) {
            (Operation::Broadcast, _) if rank != self.plan.root => return,
            (Operation::AllGather, Place::In) => {
                self.recv.get_mut(rank * block..(rank + 1) * block).unwrap_or_default()
            }
            (Operation::Gather | Operation::Scatter, _) | (_, Place::Out) => &mut self.send[..],
            (_, Place::In) => &mut self.recv[..],
        };
        for (index, element) in into.iter_mut().enumerate() {
            *element = T::of(data.contribution(rank, index));
        }
    }

    /// Where in the receive buffer the result lies.
    fn result(&self) -> Range<usize> {
        match (self.plan.operation, self.plan.place) {
            (Operation::ReduceScatter, Place::In) => self.rank * self.block()..(self.rank + 1) * self.block(),
            _ => 0..self.recv.len(),
        }
    }

    /// What an element of the receive buffer must be.
    fn expected(&self, index: usize) -> u64 {
        let (plan, data, rank, block) = (self.plan, self.data(), self.rank, self.block());
        match (plan.operation, plan.place) {
            (Operation::Barrier, _) => UNTOUCHED,
            // Only read.
            (Operation::Reduce, Place::In) if rank != plan.root => data.contribution(rank, index),
            (Operation::Scan, _) => data.reduced_below(rank + 1, index),
            // Nobody is before rank 0, whose result is left as it was.
            (Operation::Exscan, Place::In) if rank == 0 => data.contribution(rank, index),
            (Operation::Exscan, Place::Out) if rank == 0 => UNTOUCHED,
            (Operation::Exscan, _) => data.reduced_below(rank, index),
            (Operation::AllReduce | Operation::Reduce, _) => data.reduced(index),
            (Operation::ReduceScatter, Place::In) => data.reduced(index),
            (Operation::ReduceScatter, Place::Out) => data.reduced(rank * block + index),
            (Operation::Broadcast, _) => data.contribution(plan.root, index),
            (Operation::AllGather | Operation::Gather, _) => data.contribution(index / block, index % block),
            (Operation::Scatter, _) => data.contribution(plan.root, rank * block + index),
            (Operation::AllToAll, _) => data.contribution(index / block, rank * block + index % block),
        }
    }
}

/// The memory of a buffer.
#[derive(Debug)]
enum Elements<T> {
    /// As most programs have it.
    Own(Vec<T>),
    /// From the communicator.
    Given(Buffer<T>),
}

impl<T: Number> Elements<T> {
    /// From the communicator if there is one.
    fn new(source: Option<&Comm>, len: usize) -> Result<Self> {
        // Not zero: memory that is only ever read as zero need not exist.
        if let Some(comm) = source {
            let mut buffer = comm.alloc(len)?;
            buffer.fill(T::of(UNTOUCHED));
            return Ok(Self::Given(buffer));
        }
        let mut buffer = Vec::new();
        let refused = |_| PerfError::usage(format!("--max: no memory for {len} elements of {}", T::DTYPE));
        buffer.try_reserve_exact(len).map_err(refused)?;
        buffer.resize(len, T::of(UNTOUCHED));
        Ok(Self::Own(buffer))
    }
}

impl<T: Number> Deref for Elements<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::Own(buffer) => buffer,
            Self::Given(buffer) => buffer,
        }
    }
}

impl<T: Number> DerefMut for Elements<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Self::Own(buffer) => buffer,
            Self::Given(buffer) => buffer,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;
    use comm::{DType, Element};
    use half::bf16;

    use super::*;

    fn plan(operation: Operation, place: Place, ranks: usize, dtype: DType, op: ReduceOp) -> Plan {
        let root = if operation.facts().rooted { ranks - 1 } else { 0 };
        let op = operation.facts().reduces.then_some(op);
        Plan { operation, ranks, dtype, op, root, place, algorithm: None, alloc: false, sizes: Vec::new() }
    }

    /// Checks one call on every rank; then again with each rank's last element damaged.
    fn check<T: Number>(plan: &Plan, count: usize) {
        let found = comm::threads::run(plan.ranks, |comm| {
            let mut buffers = Buffers::<T>::new(plan, &comm, count).unwrap();
            let right = buffers.check(&comm).unwrap();
            let mut damaged = 0;
            if let Some(last) = buffers.result().last() {
                let element = bytemuck::bytes_of_mut(&mut buffers.recv[last]);
                element[0] ^= 1;
                damaged = 1;
            }
            (right, buffers.wrong(), damaged)
        });
        for (rank, (right, wrong, damaged)) in found.unwrap().into_iter().enumerate() {
            assert_eq!((right, wrong), (0, damaged), "rank {rank}, {count} elements of {plan:?}");
        }
    }

    #[test]
    fn every_result_is_checked_to_the_last_bit() {
        for operation in Operation::value_variants() {
            for ranks in [1, 2, 3, 5] {
                for place in operation.facts().places {
                    let mut plan = plan(*operation, *place, ranks, DType::F32, ReduceOp::Sum);
                    plan.alloc = ranks.is_multiple_of(2);
                    let counts = if operation.has_data() { [ranks, 7 * ranks] } else { [0; 2] };
                    counts.into_iter().for_each(|count| check::<f32>(&plan, count));
                }
            }
        }
    }

    #[test]
    fn every_operator_is_exact_in_narrow_types() {
        fn all<T: Number>() {
            for op in ReduceOp::ALL.into_iter().filter(|op| op.supports(<T as Element>::DTYPE)) {
                for ranks in [2, 3, 8] {
                    let plan = plan(Operation::AllReduce, Place::In, ranks, <T as Element>::DTYPE, op);
                    check::<T>(&plan, 100);
                }
            }
        }
        all::<i8>();
        all::<bf16>();
        all::<f64>();
    }
}
