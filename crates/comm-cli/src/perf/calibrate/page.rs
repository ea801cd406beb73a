//! Predicted and measured times as a page with a picture.

use std::fmt::Write;
use std::fs;
use std::io;
use std::path::Path;
use std::thread;

use plotters::style::RGBColor;

use super::{Calibration, Errors, Point, Session, short, write_file};
use crate::perf::error::{PerfError, Result};
use crate::perf::plot::{self, Axis, Series, Style};

/// Between these lines a page is written anew; what people wrote around them stays.
const BEGIN: &str = "<!-- measured -->";
const END: &str = "<!-- /measured -->";

/// Predictions that are off by more are set in bold.
const OUTLIER: f64 = 2.0;

/// Writes the page, and the picture under the same name with the extension `svg`.
pub(super) fn write(path: &Path, calibration: &Calibration, session: &Session) -> Result<()> {
    let picture = path.with_extension("svg");
    draw(&picture, calibration)?;
    let name = picture.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let old = match fs::read_to_string(path) {
        Ok(old) => Some(old),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(source) => return Err(PerfError::Write { path: path.to_owned(), source }),
    };
    write_file(path, &page(old.as_deref(), &measured(calibration, session, &name)))
}

/// The page with what was measured in its place.
fn page(old: Option<&str>, measured: &str) -> String {
    let measured = format!("{BEGIN}\n{measured}{END}");
    let parts = old.and_then(|old| {
        let (before, rest) = old.split_once(BEGIN)?;
        Some((before, rest.split_once(END)?.1))
    });
    match parts {
        Some((before, after)) => format!("{before}{measured}{after}"),
        None => format!("# Predicted and measured times\n\n{measured}\n"),
    }
}

fn measured(calibration: &Calibration, session: &Session, picture: &str) -> String {
    let Errors { fitted, held_out, all } = calibration.errors();
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let (ranks, hosts) = (session.ranks(), session.hosts().len());
    let mut text = format!(
        "\nMeasured by `commctl perf --calibrate` {}: {ranks} ranks on {hosts} host(s) with {cores} cores, over {}.\n\n\
         ```text\n{}\n```\n\n\
         In the middle, predictions are wrong by a factor of **{all:.2}**: {fitted:.2} at the points that the model was \
         fitted to, {held_out:.2} at those that it was not. {choices}\n\n\
         ![Predicted over measured times]({picture})\n\n\
         Bold ratios are off by more than a factor of {OUTLIER}.\n\n\
         | collective | algorithm | size in bytes | measured | predicted | ratio | |\n\
         |---|---|--:|--:|--:|--:|---|\n",
        env!("CARGO_PKG_VERSION"),
        session.transport.name(),
        calibration.model,
        choices = calibration.on_choices(),
    );
    for point in &calibration.points {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{}", row(point, calibration));
    }
    text + "\n"
}

fn row(point: &Point, calibration: &Calibration) -> String {
    let ratio = point.ratio(&calibration.tuning);
    let mark = if point.error(&calibration.tuning) > OUTLIER.ln() { "**" } else { "" };
    let micros = |seconds: f64| format!("{} us", short(seconds * 1e6));
    format!(
        "| {} | {} | {} | {} | {} | {mark}{ratio:.2}{mark} | {} |",
        point.plan.operation.name(),
        point.algorithm.name,
        point.bytes,
        micros(point.seconds),
        micros(point.predict(&calibration.tuning)),
        if point.fitted { "fitted" } else { "held out" },
    )
}

/// Predicted over measured times: right on the line, and within a factor of two between the pale ones.
fn draw(path: &Path, calibration: &Calibration) -> Result<()> {
    let at = |point: &Point| (point.seconds * 1e6, point.predict(&calibration.tuning) * 1e6);
    let dots = |name, color, fitted| {
        let points = calibration.points.iter().filter(|point| point.fitted == fitted).map(at);
        Series { name, color, points: points.collect(), style: Style::Dots }
    };
    let times = || calibration.points.iter().map(|point| at(point).0);
    let ends = [times().fold(f64::INFINITY, f64::min), times().fold(0.0, f64::max)];
    let line = |name, color, factor: f64| {
        let points = ends.map(|end| (end, end * factor)).to_vec();
        Series { name, color, points, style: Style::Line }
    };
    let pale = RGBColor(0xc0, 0xc0, 0xc0);
    let series = [
        line("twice too slow", pale, OUTLIER),
        line("twice too fast", pale, 1.0 / OUTLIER),
        line("right", RGBColor(0x60, 0x60, 0x60), 1.0),
        dots("fitted", RGBColor(0x1f, 0x4e, 0xd8), true),
        dots("held out", RGBColor(0xd8, 0x3a, 0x1f), false),
    ];
    let axes = [Axis::time("measured"), Axis::time("predicted")];
    plot::write(path, (640, 560), |area| plot::chart(area, axes, &series))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_wrote_stays() {
        let old = format!("# Title\n\nWhy.\n\n{BEGIN}\nold\n{END}\n\n## Outliers\n");
        let page = page(Some(&old), "fresh\n");
        assert_eq!(page, format!("# Title\n\nWhy.\n\n{BEGIN}\nfresh\n{END}\n\n## Outliers\n"));
    }

    #[test]
    fn a_page_without_a_place_is_written_whole() {
        for old in [None, Some("something else"), Some(BEGIN)] {
            assert_eq!(page(old, "x\n"), format!("# Predicted and measured times\n\n{BEGIN}\nx\n{END}\n"));
        }
    }
}
