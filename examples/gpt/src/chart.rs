//! Plots the losses of a run.

use std::path::Path;

use comm_cli::__private::page;
use comm_cli::__private::plot::{Axis, Color, Figure, Legend, Panel, Series, Style};

use crate::history::History;
use crate::{Error, Result};

/// Losses above this are left out: a model that has learned nothing has 8 bits per byte, and the
/// chart would show little else.
const HIGHEST: f32 = 4.0;

/// Plots the losses and the baseline into an SVG file, and creates its folder if necessary.
///
/// # Errors
/// [`Error::Write`] if the file cannot be written.
pub fn write(path: &Path, title: &str, history: &History, trigram: f64) -> Result<()> {
    let failed = |reason: String| Error::Write { path: path.to_owned(), reason };
    let svg = figure(title, history, trigram).svg().map_err(|error| failed(error.to_string()))?;
    page::write_file(path, &svg).map_err(|error| failed(error.to_string()))
}

fn figure(title: &str, history: &History, trigram: f64) -> Figure {
    let steps = history.training.len() as u64;
    let training = points(1..=steps, &history.training);
    let validation = points(history.validated.iter().copied(), &history.validation);
    let baseline = vec![(1.0, trigram), (steps.max(2) as f64, trigram)];
    let series = |name: &str, color, points, style| Series { name: name.into(), color, points, style };
    let [blue, orange, ..] = Color::PALETTE;
    let series = vec![
        series("training", Color(170, 205, 230), training, Style::Line),
        series("trigram", orange, baseline, Style::Line),
        series("validation", blue, validation, Style::Curve),
    ];
    let axes = [
        Axis::linear("step", |step| format!("{step:.0}")),
        Axis::linear("bits per byte", |bits| format!("{bits:.1}")),
    ];
    let panels = vec![Panel { title: String::new(), axes, series }];
    Figure { title: title.into(), panel_size: (800, 440), columns: 1, panels, legend: Legend::Above }
}

/// Returns the points of losses that the chart shows.
fn points(steps: impl IntoIterator<Item = u64>, losses: &[f32]) -> Vec<(f64, f64)> {
    let points = steps.into_iter().zip(losses);
    points.filter(|(_, loss)| **loss <= HIGHEST).map(|(step, loss)| (step as f64, f64::from(*loss))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_picture_has_three_curves_and_no_loss_of_the_beginning() {
        let history =
            History { training: vec![8.0, 5.0, 3.5, 2.5], validated: vec![2, 4], validation: vec![3.0, 2.6] };
        let svg = figure("4 ranks", &history, 2.7).svg().unwrap();
        for text in ["4 ranks", "step", "bits per byte", "training", "validation", "trigram"] {
            assert!(svg.contains(text), "{text} is missing");
        }
        for color in ["#AACDE6", "#D55E00", "#0072B2"] {
            assert!(
                svg.contains(&format!("<polyline fill=\"none\" opacity=\"1\" stroke=\"{color}\"")),
                "{svg}"
            );
        }
        assert_eq!(points(1..=4, &history.training), [(3.0, 3.5), (4.0, 2.5)]);
    }

    #[test]
    fn a_run_without_losses_can_be_drawn() {
        assert!(figure("", &History::default(), 2.7).svg().is_ok());
    }
}
