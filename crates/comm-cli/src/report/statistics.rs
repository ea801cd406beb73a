//! Medians, quantiles and means.

/// Returns the median of numbers in any order, or 0 if there are none.
pub fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_unstable_by(f64::total_cmp);
    quantile(&numbers, 0.5)
}

/// Returns the quantile of sorted numbers for a share from 0 to 1, by linear interpolation, or 0 if
/// there are none.
pub fn quantile(sorted: &[f64], share: f64) -> f64 {
    let at = share * sorted.len().saturating_sub(1) as f64;
    let (below, above) = (sorted.get(at.floor() as usize), sorted.get(at.ceil() as usize));
    let (Some(below), Some(above)) = (below, above) else { return 0.0 };
    below + (above - below) * at.fract()
}

/// Returns the geometric mean of positive numbers, or `None` if there are none.
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
    fn the_geometric_mean_of_a_ratio_and_its_inverse_is_one() {
        let mean = geometric_mean(&[0.5, 2.0, 3.0, 1.0 / 3.0]).unwrap();
        assert!((mean - 1.0).abs() < 1e-12, "{mean}");
        assert!((geometric_mean(&[0.1, 10.0, 8.0]).unwrap() - 2.0).abs() < 1e-12);
        assert_eq!(geometric_mean(&[]), None);
    }
}
