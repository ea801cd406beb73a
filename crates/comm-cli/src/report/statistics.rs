//! What many samples say together.

/// The median of numbers in any order; 0 of none.
pub fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_unstable_by(f64::total_cmp);
    quantile(&numbers, 0.5)
}

/// The number below which this share, from 0 to 1, of sorted numbers lies, on straight lines
/// between them; 0 of none.
pub fn quantile(sorted: &[f64], share: f64) -> f64 {
    let at = share * sorted.len().saturating_sub(1) as f64;
    let (below, above) = (sorted.get(at.floor() as usize), sorted.get(at.ceil() as usize));
    let (Some(below), Some(above)) = (below, above) else { return 0.0 };
    below + (above - below) * at.fract()
}

/// The geometric mean of positive numbers: what ratios are averaged by. Nothing of none.
pub fn geometric_mean(numbers: &[f64]) -> Option<f64> {
    let sum: f64 = numbers.iter().map(|number| number.ln()).sum();
    (!numbers.is_empty()).then(|| (sum / numbers.len() as f64).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_is_in_the_middle() {
        assert_eq!(median(vec![4.0, 1.0, 2.0, 100.0]), 3.0);
        assert_eq!(median(Vec::new()), 0.0);
    }

    #[test]
    fn twice_as_slow_and_twice_as_fast_are_alike_in_the_middle() {
        let mean = geometric_mean(&[0.5, 2.0, 3.0, 1.0 / 3.0]).unwrap();
        assert!((mean - 1.0).abs() < 1e-12, "{mean}");
        assert!((geometric_mean(&[0.1, 10.0, 8.0]).unwrap() - 2.0).abs() < 1e-12);
        assert_eq!(geometric_mean(&[]), None);
    }
}
