//! Predicted times over the size of the data, as a picture.

use std::error::Error;
use std::path::Path;
use std::{fs, iter};

use comm::ring::schedule::Algorithm;
use plotters::prelude::*;

use super::Failure;
use super::options::Setup;
use super::predict::Simulator;
use super::size;

const PICTURE: (u32, u32) = (960, 600);
const BYTES_MIN: usize = 4;
const BYTES_MAX: usize = 1 << 30;
/// Told apart also by people who do not see all colours (Okabe and Ito).
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
    RGBColor(140, 140, 140),
];

/// The curve of an algorithm: its name, and sizes with times.
struct Curve {
    name: String,
    points: Vec<(f64, f64)>,
}

/// Draws the times of these rows into a file.
pub(super) fn write(
    path: &Path,
    setup: &Setup,
    rows: &[&'static Algorithm],
    steps_max: usize,
) -> Result<(), Failure> {
    let failed = |reason: String| Failure::Plot { path: path.to_owned(), reason };
    let curves = curves(setup, rows, steps_max)?;
    let picture = draw(&title(setup), &curves).map_err(|error| failed(error.to_string()))?;
    fs::write(path, picture).map_err(|error| failed(error.to_string()))
}

fn curves(setup: &Setup, rows: &[&'static Algorithm], steps_max: usize) -> Result<Vec<Curve>, Failure> {
    let sizes: Vec<usize> = iter::successors(Some(BYTES_MIN), |bytes| Some(bytes * 2))
        .take_while(|bytes| *bytes <= BYTES_MAX)
        .collect();
    let simulator = Simulator::new(setup, steps_max);
    let curve = |row: &&'static Algorithm| {
        let (simulated, times) = simulator.curve(row, &sizes)?;
        let name = if simulated { row.name.to_owned() } else { format!("{} (closed form)", row.name) };
        let points = sizes.iter().zip(times).map(|(bytes, time)| (*bytes as f64, time));
        Ok(Curve { name, points: points.collect() })
    };
    rows.iter().map(curve).collect()
}

fn title(setup: &Setup) -> String {
    let links = &setup.tuning.links;
    let link = links.slowest(setup.question.ranks);
    format!(
        "{} among {} ranks, {} per host: latency {}, {} Gbit/s",
        setup.question.collective,
        setup.question.ranks,
        links.ranks_per_host,
        size::time(link.latency),
        size::digits(8e-9 / link.per_byte),
    )
}

/// The picture as text. Fonts are named in it and not looked up, so none needs to be installed.
fn draw(title: &str, curves: &[Curve]) -> Result<String, Box<dyn Error>> {
    let mut picture = String::new();
    let area = SVGBackend::with_string(&mut picture, PICTURE).into_drawing_area();
    area.fill(&WHITE)?;
    let times =
        || curves.iter().flat_map(|curve| &curve.points).map(|point| point.1).filter(|time| *time > 0.0);
    let (least, most) = (times().fold(f64::INFINITY, f64::min), times().fold(0.0, f64::max));
    // A group of one takes no time, and an axis needs some.
    let range = if most > 0.0 { least / 1.5..most * 1.5 } else { 1e-6..1.0 };
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 18))
        .margin(14)
        .x_label_area_size(44)
        .y_label_area_size(70)
        .build_cartesian_2d((BYTES_MIN as f64..BYTES_MAX as f64).log_scale().base(2.0), range.log_scale())?;
    chart
        .configure_mesh()
        .max_light_lines(1)
        .x_desc("size of the data in bytes")
        .y_desc("predicted time")
        .x_labels(16)
        .x_label_formatter(&|bytes| size::show(bytes.round() as usize))
        .y_label_formatter(&|seconds| size::time(*seconds))
        .label_style(("sans-serif", 13))
        .draw()?;
    for (curve, colour) in curves.iter().zip(COLOURS.iter().cycle()) {
        let points = curve.points.iter().copied().filter(|point| point.1 > 0.0);
        chart
            .draw_series(LineSeries::new(points, colour.stroke_width(2)))?
            .label(&curve.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.9))
        .border_style(RGBColor(200, 200, 200))
        .label_font(("sans-serif", 13))
        .draw()?;
    area.present()?;
    // They borrow the text, and the backend writes the end of it when dropped.
    drop((chart, area));
    Ok(picture)
}
