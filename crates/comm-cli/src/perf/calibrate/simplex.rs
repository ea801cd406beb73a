//! Minimization without derivatives.
//!
//! Nelder and Mead, "A simplex method for function minimization", The Computer Journal 7 (1965).

const ROUNDS: usize = 600;

/// A point and its value.
type Vertex<const N: usize> = ([f64; N], f64);

/// Returns a local minimum of `f` near `start`, searched with an initial simplex of size `step`.
pub(super) fn minimise<const N: usize>(
    f: &impl Fn(&[f64; N]) -> f64,
    start: [f64; N],
    step: f64,
) -> [f64; N] {
    let vertex = |point: [f64; N]| (point, f(&point));
    let around = (0..N).map(|axis| {
        let mut point = start;
        point[axis] += step;
        point
    });
    let mut simplex: Vec<Vertex<N>> = std::iter::once(start).chain(around).map(vertex).collect();
    for _ in 0..ROUNDS {
        simplex.sort_by(|a, b| a.1.total_cmp(&b.1));
        improve(&mut simplex, &vertex);
    }
    simplex.into_iter().min_by(|a, b| a.1.total_cmp(&b.1)).map_or(start, |(point, _)| point)
}

/// Replaces the worst of the sorted vertices, or contracts all vertices towards the best one.
fn improve<const N: usize>(simplex: &mut [Vertex<N>], vertex: &impl Fn([f64; N]) -> Vertex<N>) {
    let [best, between @ .., worst] = simplex else { return };
    let mut centre = best.0;
    for (point, _) in between.iter() {
        centre = combine(centre, 1.0, *point, 1.0);
    }
    centre = centre.map(|sum| sum / N as f64);
    let towards = |distance: f64| vertex(combine(centre, 1.0 - distance, worst.0, distance));
    let second_worst = between.last().map_or(best.1, |last| last.1);
    let reflected = towards(-1.0);
    let found = if reflected.1 < best.1 {
        let expanded = towards(-2.0);
        if expanded.1 < reflected.1 { expanded } else { reflected }
    } else if reflected.1 < second_worst {
        reflected
    } else if reflected.1 < worst.1 {
        towards(-0.5)
    } else {
        towards(0.5)
    };
    if found.1 < worst.1 {
        *worst = found;
        return;
    }
    let best = best.0;
    for other in simplex.iter_mut().skip(1) {
        *other = vertex(combine(best, 0.5, other.0, 0.5));
    }
}

fn combine<const N: usize>(a: [f64; N], times: f64, b: [f64; N], by: f64) -> [f64; N] {
    let mut sum = a;
    for (sum, b) in sum.iter_mut().zip(b) {
        *sum = *sum * times + b * by;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_minimum_of_the_rosenbrock_function_is_found() {
        let rosenbrock = |[x, y]: &[f64; 2]| (1.0 - x).powi(2) + 100.0 * (y - x * x).powi(2);
        let [x, y] = minimise(&rosenbrock, [-1.2, 1.0], 0.5);
        assert!((x - 1.0).abs() < 1e-4 && (y - 1.0).abs() < 1e-4, "{x} {y}");
    }

    #[test]
    fn functions_with_kinks_are_minimised() {
        let kinked = |p: &[f64; 4]| p.iter().enumerate().map(|(at, x)| (x - at as f64).abs()).sum::<f64>();
        let mut found = [5.0; 4];
        for step in [1.5, 0.7, 0.3, 0.1] {
            found = minimise(&kinked, found, step);
        }
        assert!(kinked(&found) < 1e-2, "{found:?}");
    }
}
