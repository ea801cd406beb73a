//! Two-level all-reduce: a reduce-scatter inside each host, an all-reduce of each part among the
//! hosts, and an all-gather inside each host.
//!
//! The 2D-torus all-reduce of Mikami et al., "Massively distributed SGD: ImageNet/ResNet-50
//! training in a flash", arXiv:1811.05233 (2018), for hosts instead of rows. With C ranks per host
//! and H hosts, a rank sends 2(C-1)/C of the data inside its host, and only 2(H-1)/H of 1/C of the
//! data to other hosts.
//!
//! The data is divided into C *columns*, one for each rank of a host, and a column into a chunk for
//! each host. The last host may have fewer ranks. Each of them then owns several adjacent columns,
//! and sends and receives more. All exchanges are direct: the owner of a part receives it from all
//! others and sends the result to all. That works for any number of hosts without folding, sends as
//! little as a ring, and pays latency twice per level, whereas a ring pays it 2(C-1) and 2(H-1)
//! times. Each chunk is combined on one rank, first inside the host and then host by host, so the
//! result has the same bits on all ranks, but not those of the tree.

use std::ops::Range;

use comm_core::{Blocks, Place, Step};

use super::{Cost, Pacing, Params, Steps};

pub(super) const fn slots(_: &Params) -> usize {
    0
}

/// The hosts, and the columns that their ranks own.
#[derive(Debug, Clone, Copy)]
struct Hosts {
    ranks: usize,
    /// The number of columns of the data, which is the number of ranks of a full host.
    columns: usize,
    count: usize,
}

impl Hosts {
    fn new(p: &Params) -> Self {
        let columns = p.ranks_per_host.clamp(1, p.ranks);
        Self { ranks: p.ranks, columns, count: p.ranks.div_ceil(columns) }
    }

    /// Returns the number of ranks of a host.
    fn size(&self, host: usize) -> usize {
        self.columns.min(self.ranks - host * self.columns)
    }

    /// Returns the chunks of columns. A column has a chunk for every host, or for every host but
    /// the last: over all columns, the last host has as many chunks as ranks.
    fn chunks(&self, columns: Range<usize>) -> Blocks {
        let start = |column: usize| column * self.ranks / self.columns;
        Blocks { first: start(columns.start), count: start(columns.end) - start(columns.start) }
    }

    /// Returns the chunk of a column that a host owns.
    fn chunk(&self, column: usize, host: usize) -> Option<Blocks> {
        let all = self.chunks(column..column + 1);
        (host < all.count).then(|| Blocks::one(all.first + host))
    }

    /// Returns the columns that a rank of a host owns.
    fn columns(&self, host: usize, local: usize) -> Range<usize> {
        let start = |local: usize| (local * self.columns).div_ceil(self.size(host));
        start(local)..start(local + 1)
    }

    /// Returns the rank that owns a column on a host.
    fn owner(&self, host: usize, column: usize) -> usize {
        host * self.columns + column * self.size(host) / self.columns
    }

    /// Returns the most columns that a rank owns.
    fn columns_max(&self) -> usize {
        self.columns.div_ceil(self.size(self.count - 1))
    }
}

pub(super) fn cost(p: &Params) -> Cost {
    let hosts = Hosts::new(p);
    let (full, last, others) = (hosts.columns, hosts.size(hosts.count - 1), hosts.count - 1);
    // A rank of the last host owns a chunk in its first column only.
    let further = (hosts.columns_max() - 1) * others;
    let sent = (full * hosts.count).max(last * hosts.count + (last - 1) * further);
    Cost {
        rounds: full - 1 + usize::from(full > 1) + if others > 0 { others + 1 } else { 0 },
        messages: 2 * others + (2 * (full - 1)).max(2 * (last - 1) + further),
        // All blocks but a rank's own are sent once in either phase inside the host; its own are
        // sent among the hosts.
        blocks: p.ranks + sent - 2,
    }
}

pub(super) fn time(p: &Params, pacing: &Pacing) -> f64 {
    let hosts = Hosts::new(p);
    let (full, last, others) = (hosts.columns, hosts.size(hosts.count - 1), hosts.count - 1);
    let columns = hosts.columns_max();
    // All wait for the slower of a full host and the last one, whose ranks own more.
    let within = |reduces| {
        let host = |ranks: usize, blocks| pacing.within.of(blocks).pipeline(1, ranks - 1, reduces);
        host(full, hosts.count).max(host(last, hosts.count + (columns - 1) * others))
    };
    let between = |reduces| pacing.between.pipeline(1, columns * others, reduces);
    within(true) + between(true) + between(false) + within(false)
}

pub(super) fn steps(params: &Params) -> Steps {
    let hosts = Hosts::new(params);
    let (host, local) = (params.rank / hosts.columns, params.rank % hosts.columns);
    let (first, size) = (host * hosts.columns, hosts.size(host));
    let owned = move |local| hosts.chunks(hosts.columns(host, local));
    let columns = hosts.columns(host, local);

    let reduce_within = exchanges_among(local, size).flat_map(move |(to, from)| {
        [
            Step::send(first + to, Place::Output, owned(to)),
            Step::recv_reduce(first + from, Place::Output, Place::Output, owned(local)),
        ]
    });
    let reduce_between = columns.clone().flat_map(move |column| {
        let chunk = move |host| hosts.chunk(column, host);
        let exchanges = exchanges_among(host, hosts.count).flat_map(move |(to, from)| {
            let (to_rank, from_rank) = (hosts.owner(to, column), hosts.owner(from, column));
            let give = chunk(to).map(|theirs| Step::send(to_rank, Place::Output, theirs));
            let take = chunk(host).map(|own| Step::recv_reduce(from_rank, Place::Output, Place::Output, own));
            give.into_iter().chain(take)
        });
        exchanges.chain(chunk(host).map(|own| Step::finish(Place::Output, own)))
    });
    let gather_between = columns.flat_map(move |column| {
        let chunk = move |host| hosts.chunk(column, host);
        exchanges_among(host, hosts.count).flat_map(move |(to, from)| {
            let (to_rank, from_rank) = (hosts.owner(to, column), hosts.owner(from, column));
            let give = chunk(host).map(|own| Step::send(to_rank, Place::Output, own));
            let take = chunk(from).map(|theirs| Step::recv(from_rank, Place::Output, theirs));
            give.into_iter().chain(take)
        })
    });
    let gather_within = exchanges_among(local, size).flat_map(move |(to, from)| {
        [
            Step::send(first + to, Place::Output, owned(local)),
            Step::recv(first + from, Place::Output, owned(from)),
        ]
    });
    Box::new(reduce_within.chain(reduce_between).chain(gather_between).chain(gather_within))
}

/// Returns, in order, the partners to which one of `count` members sends and from which it
/// receives. No member receives from two at the same time.
fn exchanges_among(member: usize, count: usize) -> impl Iterator<Item = (usize, usize)> {
    (1..count).map(move |distance| ((member + distance) % count, (member + count - distance) % count))
}
