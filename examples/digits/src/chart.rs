//! Plots the loss.

use std::error::Error as StdError;
use std::fs;
use std::path::Path;

use plotters::prelude::*;

use crate::error::{Error, Result};
use crate::train::EpochReport;

const SIZE: (u32, u32) = (800, 480);

/// Plots loss by epoch into an SVG file, and creates its folder if necessary.
///
/// # Errors
/// [`Error::Write`] if the file cannot be written.
pub fn write(path: &Path, title: &str, reports: &[EpochReport]) -> Result<()> {
    let failed = |reason: String| Error::Write { path: path.to_owned(), reason };
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(|error| failed(error.to_string()))?;
    }
    let picture = draw(title, reports).map_err(|error| failed(error.to_string()))?;
    fs::write(path, picture).map_err(|error| failed(error.to_string()))
}

/// Returns the plot as SVG. Fonts are referenced by name and need not be installed.
fn draw(title: &str, reports: &[EpochReport]) -> Result<String, Box<dyn StdError>> {
    let mut picture = String::new();
    let area = SVGBackend::with_string(&mut picture, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let epochs = reports.len().max(2) as f64;
    let highest = reports.iter().map(|report| report.loss).fold(0.1, f64::max);
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(56)
        .build_cartesian_2d(1.0..epochs, 0.0..highest * 1.05)?;
    chart
        .configure_mesh()
        .max_light_lines(1)
        .x_desc("epoch")
        .y_desc("training loss")
        .x_label_formatter(&|epoch| format!("{epoch:.0}"))
        .label_style(("sans-serif", 13))
        .draw()?;
    let points = reports.iter().map(|report| (report.epoch as f64, report.loss));
    chart.draw_series(LineSeries::new(points, BLUE.stroke_width(2)))?;
    area.present()?;
    // They borrow the text, and dropping the backend writes its end.
    drop((chart, area));
    Ok(picture)
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
    fn the_picture_is_complete_and_has_its_text() {
        let picture = draw("4 ranks", &[report(1, 2.0), report(2, 0.5), report(3, 0.25)]).unwrap();
        assert!(picture.starts_with("<svg") && picture.trim_end().ends_with("</svg>"));
        for text in ["4 ranks", "epoch", "training loss"] {
            assert!(picture.contains(text), "{text} is missing");
        }
        assert!(picture.contains("<polyline"));
    }

    #[test]
    fn short_runs_can_be_drawn() {
        assert!(draw("", &[]).is_ok());
        assert!(draw("", &[report(1, 0.0)]).is_ok());
    }
}
