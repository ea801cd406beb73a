//! Writes a page of predicted and measured times, with a plot.

use std::path::Path;

use comm::ring::Tuning;
use comm_cli::__private::page;
use comm_cli::__private::plot::{Axis, Color, Figure, Legend, Panel, Series, Style};

use super::{Calibration, Errors, Point, Session, median, short, write_file};
use crate::error::{CliError, Result};

/// Ratios above this factor or below its inverse are in bold.
const OUTLIER: f64 = 2.0;

/// Writes the page, and the plot under the same name with the extension `svg`.
pub(super) fn write(path: &Path, calibration: &Calibration, session: &Session) -> Result<()> {
    let picture = path.with_extension("svg");
    write_file(&picture, &figure_of(calibration).svg()?)?;
    let name = picture.file_name().unwrap_or_default().to_string_lossy().into_owned();
    page::update(path, "Predicted and measured times", &measured(calibration, session, &name))
        .map_err(CliError::write(path))
}

fn measured(calibration: &Calibration, session: &Session, picture: &str) -> String {
    let Errors { fitted, held_out, all } = calibration.errors();
    let processors = match calibration.model.processors {
        0 => "a processor for each rank".to_owned(),
        shared => format!("{shared} processors"),
    };
    let (ranks, hosts) = (session.ranks(), session.hosts().len());
    let mut text = format!(
        "\nMeasured by `commctl perf --calibrate` {}: {ranks} ranks on {hosts} host(s) with {processors}, over {}.\n\n\
         ```text\n{}\n```\n\n\
         The median factor between predicted and measured times is **{all:.2}**: {fitted:.2} at the points that the model \
         was fitted to, {held_out:.2} at the points held out. {choices}\n\n\
         ![Predicted over measured times]({picture})\n\n\
         A ratio is the predicted time divided by the measured time; ratios that are off by more than a factor of \
         {OUTLIER} are in bold.\n\n\
         | collective | algorithm | median ratio | worst ratio | at bytes |\n\
         |---|---|--:|--:|--:|\n",
        env!("CARGO_PKG_VERSION"),
        session.transport(),
        calibration.model,
        choices = calibration.describe_worst_choice(),
    );
    for points in calibration.points.chunk_by(same_algorithm) {
        text += &summary(points, &calibration.tuning);
    }
    text += "\n<details><summary>Every point</summary>\n\n\
        | collective | algorithm | bytes | measured | predicted | ratio | |\n\
        |---|---|--:|--:|--:|--:|---|\n";
    for point in &calibration.points {
        text += &row(point, &calibration.tuning);
    }
    text + "\n</details>\n\n"
}

fn same_algorithm(a: &Point, b: &Point) -> bool {
    (a.plan.collective, a.algorithm.name) == (b.plan.collective, b.algorithm.name)
}

fn summary(points: &[Point], tuning: &Tuning) -> String {
    let wrong = |a: &&Point, b: &&Point| a.error(tuning).total_cmp(&b.error(tuning));
    let Some(worst) = points.iter().max_by(wrong) else { return String::new() };
    let middle = median(points.iter().map(|point| point.ratio(tuning)).collect());
    format!(
        "| {} | {} | {} | {} | {} |\n",
        worst.plan.collective,
        worst.algorithm.name,
        bold_if_outlier(middle),
        bold_if_outlier(worst.ratio(tuning)),
        worst.bytes
    )
}

fn row(point: &Point, tuning: &Tuning) -> String {
    let micros = |seconds: f64| format!("{} us", short(seconds * 1e6));
    format!(
        "| {} | {} | {} | {} | {} | {} | {} |\n",
        point.plan.collective,
        point.algorithm.name,
        point.bytes,
        micros(point.seconds),
        micros(point.predict(tuning)),
        bold_if_outlier(point.ratio(tuning)),
        if point.fitted { "fitted" } else { "held out" },
    )
}

/// Formats a ratio, in bold if it is far from 1.
fn bold_if_outlier(ratio: f64) -> String {
    let mark = if ratio.ln().abs() > OUTLIER.ln() { "**" } else { "" };
    format!("{mark}{ratio:.2}{mark}")
}

/// Plots predicted over measured times, with lines at exact predictions and factors of two.
fn figure_of(calibration: &Calibration) -> Figure {
    let at = |point: &Point| (point.seconds * 1e6, point.predict(&calibration.tuning) * 1e6);
    let dots = |name: &str, color, fitted| {
        let points = calibration.points.iter().filter(|point| point.fitted == fitted).map(at);
        Series { name: name.into(), color, points: points.collect(), style: Style::Dots }
    };
    let times = || calibration.points.iter().map(|point| at(point).0);
    let ends = [times().fold(f64::INFINITY, f64::min), times().fold(0.0, f64::max)];
    let line = |name: &str, color, factor: f64| {
        let points = ends.map(|end| (end, end * factor)).to_vec();
        Series { name: name.into(), color, points, style: Style::Line }
    };
    let pale = Color(0xc0, 0xc0, 0xc0);
    let series = vec![
        line("twice too slow", pale, OUTLIER),
        line("twice too fast", pale, 1.0 / OUTLIER),
        line("right", Color(0x60, 0x60, 0x60), 1.0),
        dots("fitted", Color(0x1f, 0x4e, 0xd8), true),
        dots("held out", Color(0xd8, 0x3a, 0x1f), false),
    ];
    let axes = [Axis::time("measured"), Axis::time("predicted")];
    let panels = vec![Panel { title: String::new(), axes, series }];
    Figure { title: String::new(), panel_size: (640, 560), columns: 1, panels, legend: Legend::Inside }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_far_from_one_are_bold() {
        assert_eq!(
            [1.0, 1.99, 2.01, 0.51, 0.49].map(bold_if_outlier),
            ["1.00", "1.99", "**2.01**", "0.51", "**0.49**"]
        );
    }
}
