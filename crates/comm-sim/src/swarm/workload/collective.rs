//! Random collectives with exact data.

use comm_core::{Collective, Comm, ReduceOp, ReduceOrder, Result};

use crate::exact::{self, Small};
use crate::random::Random;
use crate::swarm::SwarmRank;

/// The collectives whose blocks all have the same length.
pub const COLLECTIVES: [Collective; 11] = [
    Collective::AllReduce,
    Collective::Reduce,
    Collective::Broadcast,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::Gather,
    Collective::Scatter,
    Collective::AllToAll,
    Collective::Scan,
    Collective::Exscan,
    Collective::Barrier,
];

/// The operators. Only the first ones are defined on integers.
const OPERATORS: [ReduceOp; 6] =
    [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max, ReduceOp::PreMulSum(1.0), ReduceOp::Avg];
const ON_INTEGERS: usize = 4;

/// The type of the elements.
#[derive(Debug, Clone, Copy)]
enum Elements {
    U64,
    I32,
    F32,
    Bf16,
}

/// A collective call, the same on all ranks.
#[derive(Debug, Clone, Copy)]
pub(super) struct CollectiveCall {
    collective: Collective,
    op: ReduceOp,
    elements: Elements,
    /// The number of elements of a block.
    len: usize,
    /// A number that determines the root.
    root: usize,
    algorithm: Option<&'static str>,
    is_deterministic: bool,
    in_background: bool,
}

impl CollectiveCall {
    pub(super) fn draw(
        random: &mut Random,
        len_max: usize,
        algorithms: fn(Collective) -> Vec<&'static str>,
    ) -> Self {
        let collective = COLLECTIVES[random.below(COLLECTIVES.len())];
        let elements = [Elements::U64, Elements::I32, Elements::F32, Elements::Bf16][random.below(4)];
        let is_integer = matches!(elements, Elements::U64 | Elements::I32);
        let is_scan = matches!(collective, Collective::Scan | Collective::Exscan);
        let operators = if is_integer || is_scan { ON_INTEGERS } else { OPERATORS.len() };
        let magnitude = random.below(16);
        let names = algorithms(collective);
        let is_forced = random.one_in(2) && !names.is_empty();
        Self {
            collective,
            op: OPERATORS[random.below(operators)],
            elements,
            len: random.below(1 << magnitude).min(len_max),
            root: random.below(1 << 20),
            algorithm: is_forced.then(|| names[random.below(names.len())]),
            is_deterministic: !is_forced && random.one_in(4),
            in_background: random.one_in(4),
        }
    }

    /// Makes the call, and compares its result exactly.
    pub(super) fn make(&self, rank: &SwarmRank<'_>, comm: &Comm, step: usize) -> Result<()> {
        let comm = match self.algorithm {
            Some(name) => comm.with_algorithm(name),
            None if self.is_deterministic => comm.with_reduce_order(ReduceOrder::Deterministic),
            None => comm.clone(),
        };
        match self.elements {
            Elements::U64 => self.make_with::<u64>(rank, &comm, step),
            Elements::I32 => self.make_with::<i32>(rank, &comm, step),
            Elements::F32 => self.make_with::<f32>(rank, &comm, step),
            Elements::Bf16 => self.make_with::<exact::bf16>(rank, &comm, step),
        }
    }

    fn make_with<T: Small + PartialEq>(&self, rank: &SwarmRank<'_>, comm: &Comm, step: usize) -> Result<()> {
        let Self { collective, len, .. } = self;
        let name = format!("step {step}, {collective} of {len} {}", T::DTYPE);
        let data = Data { size: comm.size(), rank: comm.rank(), len: *len, step, op: self.op };
        let result = rank.call(&*name, rank.timeout(), || self.results::<T>(comm, &data))?;
        if result != self.expected::<T>(&data) {
            rank.wrong(format!("the result of {name} differs in rank {} of {}", data.rank, data.size));
        }
        Ok(())
    }

    /// Makes the call and returns its result.
    fn results<T: Small>(&self, comm: &Comm, data: &Data) -> Result<Vec<T>> {
        let (root, op) = (self.root % data.size, exact::of_rank(self.op, data.rank));
        let mut one: Vec<T> = data.contribution(data.rank);
        let all = || data.blocks(|to| (data.rank, to));
        let gathered = || vec![T::zeroed(); data.size * data.len];
        match self.collective {
            Collective::AllReduce if self.in_background => return comm.all_reduce_async(one, op)?.wait(),
            Collective::AllReduce => comm.all_reduce(&mut one, op)?,
            Collective::Reduce => comm.reduce(root, &mut one, op)?,
            Collective::Broadcast => comm.broadcast(root, &mut one)?,
            Collective::AllGather => {
                let mut into = gathered();
                comm.all_gather(&one, &mut into)?;
                return Ok(into);
            }
            Collective::ReduceScatter => {
                let input: Vec<T> = data.contributions();
                comm.reduce_scatter(&input, &mut one, op)?;
            }
            Collective::Gather => {
                let mut into = if data.rank == root { gathered() } else { Vec::new() };
                comm.gather(root, &one, &mut into)?;
                return Ok(into);
            }
            Collective::Scatter => {
                let blocks: Vec<T> = if data.rank == root { all() } else { Vec::new() };
                comm.scatter(root, &blocks, &mut one)?;
            }
            Collective::AllToAll => {
                let mut into = gathered();
                comm.all_to_all(&all(), &mut into)?;
                return Ok(into);
            }
            Collective::Scan => comm.scan(&mut one, op)?,
            Collective::Exscan => comm.exscan(&mut one, op)?,
            _ => comm.barrier()?,
        }
        Ok(one)
    }

    fn expected<T: Small>(&self, data: &Data) -> Vec<T> {
        let root = self.root % data.size;
        let own = || data.contribution(data.rank);
        match self.collective {
            Collective::AllReduce => data.reduction(data.size, 0),
            Collective::Reduce if data.rank == root => data.reduction(data.size, 0),
            Collective::Broadcast => data.contribution(root),
            Collective::AllGather => (0..data.size).flat_map(|from| data.contribution(from)).collect(),
            Collective::ReduceScatter => data.reduction(data.size, data.rank * data.len),
            Collective::Gather if data.rank == root => {
                (0..data.size).flat_map(|from| data.contribution(from)).collect()
            }
            Collective::Gather => Vec::new(),
            Collective::Scatter => data.block(root, data.rank),
            Collective::AllToAll => data.blocks(|from| (from, data.rank)),
            Collective::Scan => data.reduction(data.rank + 1, 0),
            Collective::Exscan if data.rank > 0 => data.reduction(data.rank, 0),
            _ => own(),
        }
    }
}

/// The data of a call, in which positions differ between steps.
struct Data {
    size: usize,
    rank: usize,
    len: usize,
    step: usize,
    op: ReduceOp,
}

impl Data {
    const fn first(&self) -> usize {
        self.step * 7
    }

    fn contribution<T: Small>(&self, rank: usize) -> Vec<T> {
        self.contributed(rank, self.len)
    }

    /// Returns the input of a reduce-scatter.
    fn contributions<T: Small>(&self) -> Vec<T> {
        self.contributed(self.rank, self.size * self.len)
    }

    fn contributed<T: Small>(&self, rank: usize, len: usize) -> Vec<T> {
        let first = self.first();
        exact::elements(first..first + len, |at| exact::contribution(self.op, self.size, rank, at))
    }

    /// Returns the reduction of the contributions of the ranks below `end`, from position `at` on.
    fn reduction<T: Small>(&self, end: usize, at: usize) -> Vec<T> {
        let first = self.first() + at;
        exact::elements(first..first + self.len, |at| exact::reduced_below(self.op, self.size, end, at))
    }

    fn block<T: Small>(&self, from: usize, to: usize) -> Vec<T> {
        let first = self.first();
        exact::elements(first..first + self.len, |at| exact::block_number(from, to, at))
    }

    /// Returns the blocks between these pairs of ranks.
    fn blocks<T: Small>(&self, pair: impl Fn(usize) -> (usize, usize)) -> Vec<T> {
        let pairs = (0..self.size).map(pair);
        pairs.flat_map(|(from, to)| self.block(from, to)).collect()
    }
}
