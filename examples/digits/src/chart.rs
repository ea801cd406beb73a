//! Plots the loss.

use std::path::Path;

use comm_cli::__private::page;
use comm_cli::__private::plot::{Axis, Color, Figure, Legend, Panel, Series, Style};

use crate::error::{Error, Result};
use crate::train::EpochReport;

/// Plots the loss over epochs into an SVG file, and creates its folder if necessary.
///
/// # Errors
/// [`Error::Write`] if the file cannot be written.
pub fn write(path: &Path, title: &str, reports: &[EpochReport]) -> Result<()> {
    let failed = |reason: String| Error::Write { path: path.to_owned(), reason };
    let svg = figure(title, reports).svg().map_err(|error| failed(error.to_string()))?;
    page::write_file(path, &svg).map_err(|error| failed(error.to_string()))
}

fn figure(title: &str, reports: &[EpochReport]) -> Figure {
    let points = reports.iter().map(|report| (report.epoch as f64, report.loss)).collect();
    let loss = Series { name: "training loss".into(), color: Color::PALETTE[0], points, style: Style::Line };
    let axes = [
        Axis::linear("epoch", |epoch| format!("{epoch:.0}")),
        Axis::linear("training loss", |loss| format!("{loss:.1}")),
    ];
    let panels = vec![Panel { title: String::new(), axes, series: vec![loss] }];
    Figure { title: title.into(), panel_size: (800, 480), columns: 1, panels, legend: Legend::Above }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn report(epoch: usize, loss: f64) -> EpochReport {
        let (elapsed, communicating, waiting) = (Duration::from_secs(1), Duration::ZERO, Duration::ZERO);
        EpochReport { epoch, loss, accuracy: 0.9, images_per_second: 1e3, elapsed, communicating, waiting }
    }

    #[test]
    fn the_picture_has_its_texts_and_a_curve() {
        let svg = figure("4 ranks", &[report(1, 2.0), report(2, 0.5), report(3, 0.25)]).svg().unwrap();
        for text in ["4 ranks", "epoch", "training loss", "<polyline"] {
            assert!(svg.contains(text), "{text} is missing");
        }
    }

    #[test]
    fn short_runs_can_be_drawn() {
        assert!(figure("", &[]).svg().is_ok());
        assert!(figure("", &[report(1, 0.0)]).svg().is_ok());
    }
}
