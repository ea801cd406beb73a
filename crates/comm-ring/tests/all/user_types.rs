//! User-defined structs and operators: moved whole, combined by every algorithm, and compared
//! between ranks.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crate::common::{lengths, small_segments};
use bytemuck::{Pod, Zeroable};
use comm_core::{Collective, Comm, Element, Error, Operator, Plain, ReduceOp, ReduceOrder, Shape};
use comm_ring::RingConfig;
use comm_ring::schedule::Algorithm;
use comm_sim::in_process::{InProcessConfig, Release};

const WORLDS: [usize; 5] = [1, 2, 3, 5, 8];

/// Three bytes, a size that divides neither segments nor turns nor rings.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
struct Pixel {
    sum: u8,
    highest: u8,
    parity: u8,
}

impl Plain for Pixel {}

/// Larger than the bytes that are received at once, and than the pieces in which contributions are
/// copied.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
struct Page([[Pixel; 32]; 128]);

impl Plain for Page {}

#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
struct Complex {
    re: f64,
    im: f64,
}

impl Plain for Complex {}

/// Combines each field of a pixel in a different way, so that swapped fields are detected.
struct Blend;

impl Operator for Blend {
    type Element = Pixel;
    const NAME: &'static str = "blend";

    fn combine(left: Pixel, right: Pixel) -> Pixel {
        Pixel {
            sum: left.sum.wrapping_add(right.sum),
            highest: left.highest.max(right.highest),
            parity: left.parity ^ right.parity,
        }
    }
}

/// An operator with the name of another one, on the same type.
struct Darken;

impl Operator for Darken {
    type Element = Pixel;
    const NAME: &'static str = "blend";

    fn combine(left: Pixel, right: Pixel) -> Pixel {
        Pixel {
            sum: left.sum.min(right.sum),
            highest: left.highest.min(right.highest),
            parity: left.parity.min(right.parity),
        }
    }
}

struct Pages;

impl Operator for Pages {
    type Element = Page;
    const NAME: &'static str = "pages";

    fn combine(mut left: Page, right: Page) -> Page {
        for (left, right) in left.0.as_flattened_mut().iter_mut().zip(right.0.as_flattened()) {
            *left = Blend::combine(*left, *right);
        }
        left
    }
}

struct Product;

impl Operator for Product {
    type Element = Complex;
    const NAME: &'static str = "complex_product";

    fn combine(a: Complex, b: Complex) -> Complex {
        Complex { re: a.re * b.re - a.im * b.im, im: a.re * b.im + a.im * b.re }
    }
}

/// An operator on a built-in type.
struct FarthestFromZero;

impl Operator for FarthestFromZero {
    type Element = i32;
    const NAME: &'static str = "farthest_from_zero";

    fn combine(a: i32, b: i32) -> i32 {
        if (a.unsigned_abs(), a) > (b.unsigned_abs(), b) { a } else { b }
    }
}

fn pixel(rank: usize, at: usize) -> Pixel {
    let mixed =
        (rank as u64 * 0x9e37 + at as u64 * 0x79b9 + 1).wrapping_mul(0xd1b5_4a32_d192_ed03).to_le_bytes();
    Pixel { sum: mixed[4], highest: mixed[5], parity: mixed[6] }
}

fn pixels(rank: usize, len: usize) -> Vec<Pixel> {
    (0..len).map(|at| pixel(rank, at)).collect()
}

/// The reduction of the pixels of the first `ranks` ranks.
fn blended<O: Operator<Element = Pixel>>(ranks: usize, len: usize) -> Vec<Pixel> {
    let all = |at| (0..ranks).map(move |rank| pixel(rank, at)).reduce(O::combine);
    (0..len).map(|at| all(at).unwrap()).collect()
}

/// Returns a network that moves a few bytes at a time, so that elements arrive in parts.
fn dribbling() -> InProcessConfig {
    InProcessConfig::default().capacity(50).release(Release::OnConsume).dribble(7)
}

fn world<R: Send>(ranks: usize, network: &InProcessConfig, rank: impl Fn(Comm) -> R + Sync) -> Vec<R> {
    crate::common::world(ranks, network, &small_segments(), |comm| {
        rank(comm.with_timeout(Duration::from_secs(60)))
    })
}

fn in_all_worlds(rank: impl Fn(Comm) + Sync) {
    for (ranks, network) in
        WORLDS.iter().flat_map(|ranks| [(*ranks, dribbling()), (*ranks, InProcessConfig::default())])
    {
        world(ranks, &network, &rank);
    }
}

/// Checks every algorithm of a collective on every length, with a description for failure messages.
fn cases(comm: &Comm, collective: Collective, check: impl Fn(&Comm, usize, &str)) {
    for row in Algorithm::for_collective(collective) {
        let named = comm.with_algorithm(row.name);
        for len in lengths(comm.size()) {
            check(&named, len, &format!("{} of {len} on {} ranks", row.name, comm.size()));
        }
    }
}

const BLEND: ReduceOp = ReduceOp::of::<Blend>();
const NOTHING: Pixel = Pixel { sum: 9, highest: 9, parity: 9 };

#[test]
fn every_algorithm_combines_structs_by_the_operator_of_the_program() {
    in_all_worlds(|comm| {
        let (rank, ranks) = (comm.rank(), comm.size());
        cases(&comm, Collective::AllReduce, |comm, len, what| {
            let (own, mut recv) = (pixels(rank, len), vec![NOTHING; len]);
            let mut in_place = own.clone();
            comm.all_reduce(&mut in_place, BLEND).unwrap();
            comm.all_reduce_into(&own, &mut recv, BLEND).unwrap();
            let expected = blended::<Blend>(ranks, len);
            assert!(in_place == expected && recv == expected, "all_reduce {what}");
        });
        cases(&comm, Collective::Reduce, |comm, len, what| {
            let (root, own) = (ranks / 2, pixels(rank, len));
            let (mut in_place, mut recv) = (own.clone(), vec![NOTHING; len]);
            comm.reduce(root, &mut in_place, BLEND).unwrap();
            comm.reduce_into(root, &own, &mut recv, BLEND).unwrap();
            let expected = blended::<Blend>(ranks, len);
            let wanted = if rank == root { (expected.clone(), expected) } else { (own, vec![NOTHING; len]) };
            assert!((in_place, recv) == wanted, "reduce {what}");
        });
        cases(&comm, Collective::ReduceScatter, |comm, len, what| {
            let (own, mut recv) = (pixels(rank, len * ranks), vec![NOTHING; len]);
            let mut in_place = own.clone();
            comm.reduce_scatter(&own, &mut recv, BLEND).unwrap();
            comm.reduce_scatter_in_place(&mut in_place, BLEND).unwrap();
            let expected = &blended::<Blend>(ranks, len * ranks)[rank * len..][..len];
            assert!(in_place[rank * len..][..len] == *expected && recv == expected, "reduce_scatter {what}");
        });
        cases(&comm, Collective::Scan, |comm, len, what| {
            let mut buffer = pixels(rank, len);
            comm.scan(&mut buffer, BLEND).unwrap();
            assert!(buffer == blended::<Blend>(rank + 1, len), "scan {what}");
        });
        cases(&comm, Collective::Exscan, |comm, len, what| {
            let mut buffer = pixels(rank, len);
            comm.exscan(&mut buffer, BLEND).unwrap();
            let expected = if rank == 0 { pixels(0, len) } else { blended::<Blend>(rank, len) };
            assert!(buffer == expected, "exscan {what}");
        });
    });
}

#[test]
fn shares_of_structs_may_differ_and_many_buffers_may_travel_together() {
    in_all_worlds(|comm| {
        let (rank, ranks) = (comm.rank(), comm.size());
        let counts: Vec<usize> = (0..ranks).map(|rank| (rank * 2 + 3) % 5).collect();
        let (total, start) = (counts.iter().sum(), counts[..rank].iter().sum::<usize>());
        let mut recv = vec![NOTHING; counts[rank]];
        comm.reduce_scatter_v(&pixels(rank, total), &mut recv, &counts, BLEND).unwrap();
        assert_eq!(recv, blended::<Blend>(ranks, total)[start..][..counts[rank]]);
        let (mut few, mut many) = (pixels(rank, 3), pixels(rank, 40));
        comm.all_reduce_coalesced(&mut [&mut few[..], &mut many], BLEND).unwrap();
        assert_eq!((few, many), (blended::<Blend>(ranks, 3), blended::<Blend>(ranks, 40)));
        let background = comm.all_reduce_async(pixels(rank, 17), BLEND).unwrap();
        assert_eq!(background.wait().unwrap(), blended::<Blend>(ranks, 17));
    });
}

#[test]
fn large_structs_and_large_messages_of_structs_arrive_in_parts() {
    for ranks in [2, 3] {
        crate::common::world(ranks, &InProcessConfig::default(), &RingConfig::default(), |comm| {
            let page = |rank: usize| {
                let mut page = Page::zeroed();
                let all = page.0.as_flattened_mut().iter_mut().enumerate();
                all.for_each(|(at, place)| *place = pixel(rank, at));
                page
            };
            for row in Algorithm::for_collective(Collective::AllReduce) {
                let mut pages = vec![page(comm.rank()); 3];
                comm.with_algorithm(row.name).all_reduce(&mut pages, ReduceOp::of::<Pages>()).unwrap();
                let expected = (1..comm.size()).fold(page(0), |sum, rank| Pages::combine(sum, page(rank)));
                assert!(pages.iter().all(|page| *page == expected), "{}", row.name);
                let mut many = pixels(comm.rank(), 300_000);
                comm.with_algorithm(row.name).all_reduce(&mut many, BLEND).unwrap();
                assert!(many == blended::<Blend>(ranks, 300_000), "{}", row.name);
            }
        });
    }
}

#[test]
fn structs_are_moved_whole_with_counts_in_elements() {
    in_all_worlds(|comm| {
        let (rank, ranks) = (comm.rank(), comm.size());
        let mut buffer = if rank == 0 { pixels(7, 50) } else { vec![NOTHING; 50] };
        comm.broadcast(0, &mut buffer).unwrap();
        assert_eq!(buffer, pixels(7, 50));
        let counts: Vec<usize> = (0..ranks).map(|rank| rank % 3).collect();
        let all: Vec<Pixel> = (0..ranks).flat_map(|rank| pixels(rank, counts[rank])).collect();
        let mut recv = vec![NOTHING; all.len()];
        comm.all_gather_v(&pixels(rank, counts[rank]), &mut recv, &counts).unwrap();
        assert_eq!(recv, all);
        let mut own = vec![NOTHING; counts[rank]];
        comm.scatter_v(0, &all, &mut own, &counts).unwrap();
        assert_eq!(own, pixels(rank, counts[rank]));
        let mut column = vec![NOTHING; ranks];
        comm.all_to_all(&pixels(rank, ranks), &mut column).unwrap();
        assert_eq!(column, (0..ranks).map(|from| pixel(from, rank)).collect::<Vec<_>>());
        for len in [0, 1, 1000, 50_000] {
            let (next, previous) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
            let sent = comm.send_async(next, 3, pixels(rank, len)).unwrap();
            let mut message = vec![NOTHING; len + 2];
            let received = comm.recv(previous, 3, &mut message).unwrap();
            assert_eq!((received.len, received.dtype), (len, Pixel::DTYPE));
            assert!(message[..len] == pixels(previous, len) && message[len..] == [NOTHING; 2]);
            sent.wait().unwrap();
        }
    });
}

#[test]
fn complex_numbers_are_multiplied_and_added_with_the_same_bits_on_every_rank() {
    for ranks in WORLDS {
        let results = world(ranks, &InProcessConfig::default(), |comm| {
            let number = |at: usize| (comm.rank() * 1000 + at) as f64;
            let own: Vec<Complex> =
                (0..67).map(|at| Complex { re: number(at).sin(), im: number(at).cos() }).collect();
            let ordered = comm.with_reduce_order(ReduceOrder::Deterministic);
            let (mut product, mut cut, mut sum) = (own.clone(), own.clone(), own);
            ordered.all_reduce(&mut product, ReduceOp::of::<Product>()).unwrap();
            cut.chunks_mut(9).for_each(|piece| ordered.all_reduce(piece, ReduceOp::of::<Product>()).unwrap());
            assert_eq!(cut, product, "in pieces");
            // The factors have an absolute value of 1.
            assert!(product.iter().all(|z| (z.re.hypot(z.im) - 1.0).abs() < 1e-12), "{product:?}");
            comm.all_reduce(bytemuck::cast_slice_mut::<Complex, f64>(&mut sum), ReduceOp::Sum).unwrap();
            (product, sum)
        });
        assert!(results.iter().all(|result| *result == results[0]));
    }
}

#[test]
fn a_rank_tells_operators_of_the_same_name_apart() {
    in_all_worlds(|comm| {
        for _ in 0..3 {
            let (mut blend, mut darken) = (pixels(comm.rank(), 5), pixels(comm.rank(), 5));
            comm.all_reduce(&mut blend, BLEND).unwrap();
            comm.all_reduce(&mut darken, ReduceOp::of::<Darken>()).unwrap();
            assert_eq!(blend, blended::<Blend>(comm.size(), 5));
            assert_eq!(darken, blended::<Darken>(comm.size(), 5));
        }
    });
}

#[test]
fn operators_of_the_program_take_built_in_types_too() {
    in_all_worlds(|comm| {
        let mut buffer = [comm.rank() as i32 - 2, -100 * (comm.rank() as i32), 7];
        comm.all_reduce(&mut buffer, ReduceOp::of::<FarthestFromZero>()).unwrap();
        let all =
            |of: fn(i32) -> i32| (0..comm.size() as i32).map(of).reduce(FarthestFromZero::combine).unwrap();
        assert_eq!(buffer, [all(|rank| rank - 2), all(|rank| -100 * rank), 7]);
        let (mut unsigned, mut signed) = ([comm.rank(), usize::MAX], [comm.rank() as isize - 1; 2]);
        comm.all_reduce(&mut unsigned, ReduceOp::Max).unwrap();
        comm.all_reduce(&mut signed, ReduceOp::Min).unwrap();
        assert_eq!((unsigned, signed), ([comm.size() - 1, usize::MAX], [-1; 2]));
    });
}

#[test]
fn an_operator_is_refused_on_other_types_than_its_own() {
    world(2, &InProcessConfig::default(), |comm| {
        let mut pixels = pixels(comm.rank(), 4);
        let calls = [
            (comm.all_reduce(&mut pixels, ReduceOp::Sum), "sum is not defined on struct of 3 bytes"),
            (comm.all_reduce(&mut pixels, ReduceOp::BitOr), "bor is not defined on struct of 3 bytes"),
            (comm.all_reduce(&mut [1.0_f32; 3], BLEND), "blend is not defined on f32"),
            (
                comm.reduce(0, &mut pixels, ReduceOp::of::<Product>()),
                "complex_product is not defined on struct",
            ),
        ];
        for (refused, words) in calls {
            let error = refused.unwrap_err();
            assert!(matches!(error, Error::Invalid(_)) && error.to_string().contains(words), "{error}");
        }
        comm.all_reduce(&mut pixels, BLEND).unwrap();
    });
}

fn assert_mismatch(
    one: impl Fn(&Comm) -> comm_core::Result<()> + Sync,
    other: impl Fn(&Comm) -> comm_core::Result<()> + Sync,
    names: [&str; 2],
) {
    for ranks in [2, 3, 5] {
        let errors = world(ranks, &InProcessConfig::default(), |comm| {
            if comm.rank() == 1 { other(&comm).unwrap_err() } else { one(&comm).unwrap_err() }
        });
        for error in errors {
            let words = error.to_string();
            assert!(
                matches!(error, Error::Desync(_)) && names.iter().all(|name| words.contains(name)),
                "{words}"
            );
        }
    }
}

#[test]
fn unlike_operators_and_unlike_structs_are_a_desync_that_names_both() {
    struct Sharpen;
    impl Operator for Sharpen {
        type Element = Pixel;
        const NAME: &'static str = "sharpen";

        fn combine(left: Pixel, _: Pixel) -> Pixel {
            left
        }
    }
    assert_mismatch(
        |comm| comm.all_reduce(&mut [NOTHING; 4], BLEND),
        |comm| comm.all_reduce(&mut [NOTHING; 4], ReduceOp::of::<Sharpen>()),
        ["all_reduce(blend, 4 x struct of 3 bytes", "all_reduce(sharpen, 4 x struct of 3 bytes"],
    );
    assert_mismatch(
        |comm| comm.all_gather(&[NOTHING; 4], &mut vec![NOTHING; 4 * comm.size()]),
        |comm| {
            let numbers = [Complex { re: 0.0, im: 0.0 }; 4];
            comm.all_gather(&numbers, &mut vec![numbers[0]; 4 * comm.size()])
        },
        ["all_gather(4 x struct of 3 bytes", "all_gather(4 x struct of 16 bytes"],
    );
}

#[test]
fn a_panic_in_an_operator_ends_the_call_on_every_rank() {
    struct Faulty;
    impl Operator for Faulty {
        type Element = Pixel;
        const NAME: &'static str = "faulty";

        fn combine(left: Pixel, right: Pixel) -> Pixel {
            assert!(left.highest < 200 && right.highest < 200, "this operator panics");
            left
        }
    }
    for ranks in [2, 3, 5] {
        world(ranks, &InProcessConfig::default(), |comm| {
            let bad = Pixel { highest: 255, ..NOTHING };
            let mut buffer = [if comm.rank() == 0 { bad } else { NOTHING }; 4];
            let call =
                catch_unwind(AssertUnwindSafe(|| comm.all_reduce(&mut buffer, ReduceOp::of::<Faulty>())));
            assert!(!matches!(call, Ok(Ok(()))), "rank {}", comm.rank());
            assert!(comm.barrier().is_err(), "the communicator has ended");
        });
    }
}

#[test]
fn a_view_of_structs_has_their_number() {
    let pixels = pixels(0, 4);
    assert_eq!(comm_core::HostView::new(&pixels).len(), 4);
}
