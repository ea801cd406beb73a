//! Parses the output of the programs `ddp` and `ddp.py`.

use comm_cli::__private::statistics::median;
use serde::Deserialize;

use super::model::TrainingModel;
use super::rounds::FirstStep;

/// The times of one model with one variant, in microseconds per step.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct StepRow {
    pub(super) model: TrainingModel,
    pub(super) variant: String,
    pub(super) first: FirstStep,
    pub(super) with_us: f64,
    pub(super) without_us: f64,
    /// The median over all pairs of the difference of the two.
    pub(super) overhead_us: f64,
    pub(super) exposed_us: Option<f64>,
}

#[derive(Deserialize)]
struct TrainingLine {
    model: TrainingModel,
    variant: String,
    parameters: usize,
    loss: f64,
    norm: f64,
    pairs_us: Vec<[f64; 2]>,
    exposed_us: Option<f64>,
}

/// Parses a line. Returns `None` for other output, such as a warning.
pub(super) fn parse(line: &str) -> Option<StepRow> {
    let TrainingLine { model, variant, parameters, loss, norm, pairs_us, exposed_us } =
        serde_json::from_str(line).ok()?;
    if pairs_us.is_empty() {
        return None;
    }
    let median_of = |time: fn(&[f64; 2]) -> f64| median(pairs_us.iter().map(time).collect());
    Some(StepRow {
        model,
        variant,
        first: FirstStep { parameters, loss, norm },
        with_us: median_of(|[with, _]| *with),
        without_us: median_of(|[_, without]| *without),
        overhead_us: median_of(|[with, without]| with - without),
        exposed_us,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_overhead_is_the_median_of_paired_differences() {
        let line = r#"{"model":"mlp-25m","variant":"plain","ranks":2,"parameters":25175040,"loss":7.2,"norm":6.9,"steps":3,
            "pairs_us":[[110.0,100.0],[320.0,300.0],[250.0,100.0]],"exposed_us":5.5}"#;
        let row = parse(line).unwrap();
        assert_eq!((row.with_us, row.without_us, row.overhead_us), (250.0, 100.0, 20.0));
        assert_eq!((row.model, row.exposed_us), (TrainingModel::LargePerceptron, Some(5.5)));
        let peer = line.replace(r#","exposed_us":5.5"#, "");
        assert_eq!(parse(&peer), Some(StepRow { exposed_us: None, ..row }));
    }

    #[test]
    fn other_output_is_ignored() {
        for line in ["", "warning: slow", "{}", r#"{"model":"mlp-25m","variant":"plain"}"#] {
            assert_eq!(parse(line), None, "{line}");
        }
        let empty = r#"{"model":"mlp-25m","variant":"x","parameters":1,"loss":1,"norm":1,"pairs_us":[]}"#;
        assert_eq!(parse(empty), None);
    }
}
