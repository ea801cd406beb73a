//! Clusters of points that are divided among the ranks: k-means, with one all-reduce per step.
//!
//! ```sh
//! commctl run -n 4 -- target/debug/examples/kmeans
//! ```
#![allow(clippy::print_stdout, reason = "an example prints its result")]

use comm::ReduceOp;

const POINTS: usize = 10_000;
const CLUSTERS: usize = 4;
const STEPS: usize = 20;

type Point = [f64; 2];

/// Returns the points around one center per cluster. Their coordinates are integers, so that sums
/// are exact and do not depend on their order.
fn all_points() -> Vec<Point> {
    let mut random = fastrand::Rng::with_seed(1);
    let centers = [[0.0, 0.0], [300.0, 100.0], [100.0, 400.0], [500.0, 500.0]];
    let mut around = |center: f64| center + f64::from(random.i32(-120..=120));
    (0..POINTS).map(|i| centers[i % CLUSTERS].map(&mut around)).collect()
}

/// Returns the number of the center that is closest to a point.
fn nearest(centers: &[Point], [x, y]: Point) -> usize {
    let distance = |&[a, b]: &Point| (a - x).powi(2) + (b - y).powi(2);
    let closer = |&i: &usize, &j: &usize| distance(&centers[i]).total_cmp(&distance(&centers[j]));
    (0..centers.len()).min_by(closer).unwrap_or(0)
}

/// Moves the centers to the means of their points. `reduce` adds up the sums and the numbers of
/// points of all ranks.
fn fit(
    points: &[Point],
    mut centers: Vec<Point>,
    reduce: impl Fn(&mut [f64], &mut [f64]) -> comm::Result<()>,
) -> comm::Result<Vec<Point>> {
    for _ in 0..STEPS {
        let (mut sums, mut counts) = ([[0.0; 2]; CLUSTERS], [0.0; CLUSTERS]);
        for &point in points {
            let cluster = nearest(&centers, point);
            sums[cluster][0] += point[0];
            sums[cluster][1] += point[1];
            counts[cluster] += 1.0;
        }
        reduce(sums.as_flattened_mut(), &mut counts)?;
        for ((center, sum), count) in centers.iter_mut().zip(sums).zip(counts) {
            // A center without points stays.
            if count > 0.0 {
                *center = sum.map(|sum| sum / count);
            }
        }
    }
    Ok(centers)
}

pub(crate) fn main() -> comm::Result<()> {
    let comm = comm::init()?;
    let points = all_points();
    let start = points[..CLUSTERS].to_vec();

    // Each rank has a part of the points, and all have the same centers after each step.
    let (rank, ranks) = (comm.rank(), comm.size());
    let own = &points[POINTS * rank / ranks..POINTS * (rank + 1) / ranks];
    // Coalesced: one call for both buffers.
    let centers = fit(own, start.clone(), |sums, counts| {
        comm.all_reduce_coalesced(&mut [sums, counts], ReduceOp::Sum)
    })?;

    // With all points on one rank, the centers have the same bits.
    assert_eq!(centers, fit(&points, start, |_, _| Ok(()))?);
    if rank == 0 {
        println!("{ranks} ranks find the centers of one rank: {centers:.1?}");
    }
    comm.finalize()
}
