//! The buffers of one rank, the call on them, and the expected result.

use std::ops::{Deref, DerefMut, Range};

use comm::{Buffers, Call, Collective, Comm, Counts, Element, HostView, HostViewMut, ReduceOp};
use comm_sim::exact::{self, Small};

use super::plan::{Layout, Plan};
use crate::error::{CliError, Result};

/// The value of a receive buffer before a call.
const UNTOUCHED: i64 = 0xa5;

/// The lengths in elements of the two buffers of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lengths {
    pub(crate) send: usize,
    pub(crate) recv: usize,
}

impl Lengths {
    pub(crate) fn of(plan: &Plan, is_root: bool, count: usize) -> Self {
        use Collective as C;
        let block = count / plan.ranks;
        let at_root = |len| if is_root { len } else { 0 };
        let (send, recv) = match (plan.collective, plan.layout) {
            (C::Barrier, _) => (0, 0),
            (C::Gather, _) => (block, at_root(count)),
            (C::Scatter, _) => (at_root(count), block),
            (_, Layout::InPlace) => (0, count),
            (C::Reduce, Layout::OutOfPlace) => (count, at_root(count)),
            (C::AllGather, Layout::OutOfPlace) => (block, count),
            (C::ReduceScatter, Layout::OutOfPlace) => (count, block),
            (_, Layout::OutOfPlace) => (count, count),
        };
        Self { send, recv }
    }
}

/// A buffer of the program or of the communicator.
pub(super) type Memory<T> = Box<dyn DerefMut<Target = [T]> + Send + Sync>;

/// Copies of one buffer in one allocation; calls use one after the other.
struct Rotation<T> {
    memory: Memory<T>,
    len: usize,
    /// The distance between the starts of two copies in elements.
    stride: usize,
}

/// The alignment of buffers and of their copies: a page, as in other benchmarks of collectives.
const ALIGNMENT: usize = 4096;

impl<T: Small> Rotation<T> {
    fn new(comm: Option<&Comm>, len: usize, copies: usize) -> Result<Self> {
        let stride = if copies > 1 { len.next_multiple_of(ALIGNMENT / size_of::<T>()) } else { len };
        let elements = stride.saturating_mul(copies);
        Ok(Self { memory: allocate(comm, elements)?, len, stride })
    }

    fn copy(&self, at: usize) -> &[T] {
        &self.memory[at * self.stride..][..self.len]
    }

    fn copy_mut(&mut self, at: usize) -> &mut [T] {
        &mut self.memory[at * self.stride..][..self.len]
    }
}

/// The buffers of one rank for calls of one size.
pub(crate) struct RankBuffers<'a, T> {
    plan: &'a Plan,
    rank: usize,
    count: usize,
    send: Rotation<T>,
    recv: Rotation<T>,
    copies: usize,
    /// The copy that the next call uses.
    turn: usize,
}

impl<'a, T: Small> RankBuffers<'a, T> {
    pub(crate) fn new(plan: &'a Plan, comm: &Comm, count: usize) -> Result<Self> {
        Self::with(plan, comm, count, Lengths::of(plan, comm.rank() == plan.root, count))
    }

    /// Allocates buffers with which this rank can also be the root.
    pub(crate) fn for_any_root(plan: &'a Plan, comm: &Comm, count: usize) -> Result<Self> {
        Self::with(plan, comm, count, Lengths::of(plan, true, count))
    }

    fn with(plan: &'a Plan, comm: &Comm, count: usize, lengths: Lengths) -> Result<Self> {
        let comm_if_alloc = plan.alloc.then_some(comm);
        let copies = plan.copies(count * plan.dtype.size());
        let [send, recv] = [lengths.send, lengths.recv].map(|len| Rotation::new(comm_if_alloc, len, copies));
        Ok(Self { plan, rank: comm.rank(), count, send: send?, recv: recv?, copies, turn: 0 })
    }

    fn recv(&self) -> &[T] {
        self.recv.copy(self.turn)
    }

    /// Lets the next call use the next copy, and writes to the one that will be used last.
    pub(crate) fn rotate(&mut self) {
        let written = if self.plan.layout == Layout::InPlace { &mut self.recv } else { &mut self.send };
        written.copy_mut(self.turn).fill(T::negative_zero());
        self.turn = (self.turn + 1) % self.copies;
    }

    /// Makes the call of the plan, with `root` instead of the plan's root.
    pub(crate) fn run(&mut self, comm: &Comm, root: usize) -> comm::Result<()> {
        let op = exact::of_rank(self.plan.op.unwrap_or(ReduceOp::Sum), self.rank);
        let counts = Counts::Equal;
        let recv = HostViewMut::new(self.recv.copy_mut(self.turn));
        let buffers = match self.plan.layout {
            Layout::InPlace => Buffers::InPlace(recv),
            Layout::OutOfPlace => Buffers::Separate { send: HostView::new(self.send.copy(self.turn)), recv },
        };
        let call = match (self.plan.collective, buffers) {
            (Collective::AllReduce, buffers) => Call::AllReduce { buffers, op },
            (Collective::Reduce, buffers) => Call::Reduce { root, buffers, op },
            (Collective::Broadcast, Buffers::InPlace(buffer)) => Call::Broadcast { root, buffer },
            (Collective::AllGather, buffers) => Call::AllGather { buffers, counts },
            (Collective::ReduceScatter, buffers) => Call::ReduceScatter { buffers, counts, op },
            (Collective::Gather, buffers) => Call::Gather { root, buffers, counts },
            (Collective::Scatter, buffers) => Call::Scatter { root, buffers, counts },
            (Collective::AllToAll, buffers) => Call::AllToAll { buffers, send: counts, recv: counts },
            (Collective::Scan, buffers) => Call::Scan { buffers, op },
            (Collective::Exscan, buffers) => Call::Exscan { buffers, op },
            _ => Call::Barrier,
        };
        comm.communicator().run(call, comm.options())
    }

    /// Fills the buffers with negative zeros. Their repeated sums never become subnormal or
    /// infinite; such numbers can be slower to add. And they are not made of zero bits only, which
    /// some processors write to memory in less time than other data.
    pub(crate) fn clear(&mut self) {
        self.send.memory.fill(T::negative_zero());
        self.recv.memory.fill(T::negative_zero());
    }

    /// Makes the call with different contributions in every rank and element. Returns the number of
    /// elements of this rank that differ from the expected result in any bit.
    pub(crate) fn check(&mut self, comm: &Comm) -> comm::Result<u64> {
        self.contribute();
        self.run(comm, self.plan.root)?;
        Ok(self.count_wrong())
    }

    fn count_wrong(&self) -> u64 {
        let wrong = self.result().filter(|&index| {
            let expected = T::of(self.expected(index));
            let found = self.recv().get(index);
            found.is_none_or(|found| bytemuck::bytes_of(found) != bytemuck::bytes_of(&expected))
        });
        wrong.count() as u64
    }

    /// Returns element `index` of the contribution of `rank`.
    fn contribution(&self, rank: usize, index: usize) -> i64 {
        match self.plan.op {
            Some(op) => exact::contribution(op, self.plan.ranks, rank, index),
            None => exact::block_number(rank, 0, index),
        }
    }

    /// Returns element `index` of the reduction of the contributions of the ranks below `end`.
    fn reduced(&self, end: usize, index: usize) -> i64 {
        exact::reduced_below(self.plan.op.unwrap_or(ReduceOp::Sum), self.plan.ranks, end, index)
    }

    fn block(&self) -> usize {
        self.count / self.plan.ranks
    }

    /// Writes this rank's contribution, and overwrites all memory that receives a result.
    fn contribute(&mut self) {
        let (rank, block, turn) = (self.rank, self.block(), self.turn);
        self.recv.copy_mut(turn).fill(T::of(UNTOUCHED));
        let (range, is_sent) = match (self.plan.collective, self.plan.layout) {
            (Collective::Broadcast, _) if rank != self.plan.root => return,
            (Collective::AllGather, Layout::InPlace) => (rank * block..(rank + 1) * block, false),
            (_, Layout::OutOfPlace) => (0..self.send.len, true),
            (_, Layout::InPlace) => (0..self.recv.len, false),
        };
        for (index, at) in range.enumerate() {
            let number = T::of(self.contribution(rank, index));
            let into = if is_sent { &mut self.send } else { &mut self.recv };
            into.copy_mut(turn)[at] = number;
        }
    }

    /// Returns the range of the result in the receive buffer.
    fn result(&self) -> Range<usize> {
        match (self.plan.collective, self.plan.layout) {
            (Collective::ReduceScatter, Layout::InPlace) => {
                self.rank * self.block()..(self.rank + 1) * self.block()
            }
            _ => 0..self.recv.len,
        }
    }

    /// Returns the expected value of an element of the receive buffer.
    fn expected(&self, index: usize) -> i64 {
        use Collective as C;
        let (plan, rank, block) = (self.plan, self.rank, self.block());
        let ranks = plan.ranks;
        match (plan.collective, plan.layout) {
            (C::Reduce, Layout::InPlace) if rank != plan.root => self.contribution(rank, index),
            (C::Scan, _) => self.reduced(rank + 1, index),
            // The result of rank 0 is undefined; comm leaves the receive buffer unchanged.
            (C::Exscan, Layout::InPlace) if rank == 0 => self.contribution(rank, index),
            (C::Exscan, Layout::OutOfPlace) if rank == 0 => UNTOUCHED,
            (C::Exscan, _) => self.reduced(rank, index),
            (C::ReduceScatter, Layout::OutOfPlace) => self.reduced(ranks, rank * block + index),
            (C::AllReduce | C::Reduce | C::ReduceScatter, _) => self.reduced(ranks, index),
            (C::Broadcast, _) => self.contribution(plan.root, index),
            (C::AllGather | C::Gather, _) => self.contribution(index / block, index % block),
            (C::Scatter, _) => self.contribution(plan.root, rank * block + index),
            (C::AllToAll, _) => self.contribution(index / block, rank * block + index % block),
            _ => UNTOUCHED,
        }
    }
}

/// Allocates a buffer, from the communicator if there is one, and writes to all of its pages,
/// because untouched pages take no memory.
pub(super) fn allocate<T: Small>(comm: Option<&Comm>, len: usize) -> Result<Memory<T>> {
    if let Some(comm) = comm {
        let mut buffer = comm.alloc(len)?;
        buffer.fill(T::of(UNTOUCHED));
        return Ok(Box::new(buffer));
    }
    let mut memory = Vec::new();
    let no_memory =
        |_| CliError::usage(format!("--max: no memory for {len} elements of {}", <T as Element>::DTYPE));
    let longer = len.saturating_add(ALIGNMENT / size_of::<T>());
    memory.try_reserve_exact(longer).map_err(no_memory)?;
    memory.resize(longer, T::of(UNTOUCHED));
    let start = memory.as_ptr().align_offset(ALIGNMENT).min(longer - len);
    Ok(Box::new(Aligned { memory, range: start..start + len }))
}

/// The part of a vector that begins at a page.
struct Aligned<T> {
    memory: Vec<T>,
    range: Range<usize>,
}

impl<T> Deref for Aligned<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.memory[self.range.clone()]
    }
}

impl<T> DerefMut for Aligned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.memory[self.range.clone()]
    }
}

#[cfg(test)]
mod tests {
    use comm::DType;
    use comm::half::bf16;

    use super::*;
    use crate::collective::{has_data, has_root, measurable, reduces};

    fn plan(collective: Collective, layout: Layout, ranks: usize, dtype: DType, op: ReduceOp) -> Plan {
        let root = if has_root(collective) { ranks - 1 } else { 0 };
        let op = reduces(collective).then_some(op);
        Plan {
            collective,
            ranks,
            dtype,
            op,
            root,
            layout,
            algorithm: None,
            alloc: false,
            rotated_bytes: 0,
            sizes: Vec::new(),
        }
    }

    /// Checks one call on every rank; then again with each rank's last element damaged. Copies of
    /// the buffers take turns.
    fn check<T: Small>(plan: &Plan, count: usize) {
        let found = comm::threads::run(plan.ranks, |comm| {
            let mut buffers = RankBuffers::<T>::new(plan, &comm, count).unwrap();
            let mut right = 0;
            assert_eq!(buffers.copies > 1, plan.rotated_bytes > count * size_of::<T>());
            for call in 0..=buffers.copies {
                assert_eq!(buffers.turn, call % buffers.copies);
                right += buffers.check(&comm).unwrap();
                buffers.rotate();
            }
            right += buffers.check(&comm).unwrap();
            let mut damaged = 0;
            if let Some(last) = buffers.result().last() {
                let turn = buffers.turn;
                let element = bytemuck::bytes_of_mut(&mut buffers.recv.copy_mut(turn)[last]);
                element[0] ^= 1;
                damaged = 1;
            }
            (right, buffers.count_wrong(), damaged)
        });
        for (rank, (right, wrong, damaged)) in found.unwrap().into_iter().enumerate() {
            assert_eq!((right, wrong), (0, damaged), "rank {rank}, {count} elements of {plan:?}");
        }
    }

    #[test]
    fn buffers_begin_at_a_page() {
        for len in [0, 1, 1000, 100_000] {
            let buffer = allocate::<bf16>(None, len).unwrap();
            assert_eq!((buffer.as_ptr().addr() % ALIGNMENT, buffer.len()), (0, len));
        }
    }

    #[test]
    fn every_result_is_checked_to_the_last_bit() {
        for collective in measurable() {
            for ranks in [1, 2, 3, 5] {
                for layout in Layout::of(collective) {
                    let mut plan = plan(collective, *layout, ranks, DType::F32, ReduceOp::Sum);
                    plan.alloc = ranks.is_multiple_of(2);
                    plan.rotated_bytes = if ranks == 3 { 100 } else { 0 };
                    let counts = if has_data(collective) { [ranks, 7 * ranks] } else { [0; 2] };
                    counts.into_iter().for_each(|count| check::<f32>(&plan, count));
                }
            }
        }
    }

    /// Otherwise, later calls of a measurement would add other numbers than the first.
    #[test]
    fn sums_of_the_measured_numbers_are_the_same_numbers() {
        fn check<T: Small>(ranks: usize) {
            let plan = plan(Collective::AllReduce, Layout::InPlace, ranks, T::DTYPE, ReduceOp::Sum);
            let sums = comm::threads::run(ranks, |comm| {
                let mut buffers = RankBuffers::<T>::new(&plan, &comm, 100).unwrap();
                buffers.clear();
                buffers.run(&comm, 0).unwrap();
                buffers.recv().to_vec()
            });
            let expected = vec![T::negative_zero(); 100];
            for sums in sums.unwrap() {
                let [sums, expected] =
                    [&sums, &expected].map(|numbers| bytemuck::cast_slice::<T, u8>(numbers));
                assert_eq!(sums, expected, "{} of {ranks} ranks", T::DTYPE);
            }
        }
        for ranks in [2, 3, 8] {
            comm_sim::for_each_of_host!(T => check::<T>(ranks));
        }
    }

    #[test]
    fn every_operator_is_exact_in_narrow_types() {
        fn all<T: Small>() {
            for op in ReduceOp::ALL.into_iter().filter(|op| op.supports(<T as Element>::DTYPE)) {
                for ranks in [2, 3, 8] {
                    let plan = plan(Collective::AllReduce, Layout::InPlace, ranks, <T as Element>::DTYPE, op);
                    check::<T>(&plan, 100);
                }
            }
        }
        all::<i8>();
        all::<bf16>();
        all::<f64>();
    }
}
