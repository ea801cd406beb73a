//! Pictures on logarithmic axes.

use std::error::Error as StdError;
use std::fs;
use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;

use super::error::{PerfError, Result};
use super::plan::Plan;
use super::row::Row;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn StdError>>;

/// Points that belong together.
#[derive(Debug)]
pub(crate) struct Series {
    pub(crate) name: &'static str,
    pub(crate) color: RGBColor,
    pub(crate) points: Vec<(f64, f64)>,
    pub(crate) style: Style,
}

/// How points are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    Dots,
    Line,
    Curve,
}

/// What stands at an axis.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Axis {
    pub(crate) name: &'static str,
    pub(crate) label: fn(&f64) -> String,
    /// Labels stand at powers of this.
    pub(crate) base: f64,
}

impl Axis {
    pub(crate) const SIZE: Self = Self { name: "size", label: |bytes| size(*bytes), base: 16.0 };

    /// Microseconds.
    pub(crate) const fn time(name: &'static str) -> Self {
        Self { name, label: |micros| duration(*micros), base: 10.0 }
    }
}

/// Draws time and bandwidth over size.
pub(crate) fn write_rows(path: &Path, plan: &Plan, rows: &[Row]) -> Result<()> {
    let title = format!("{}, {} ranks, {}", plan.operation.name(), plan.ranks, plan.dtype);
    let of = |name, color, y: &dyn Fn(&Row) -> f64| {
        let points = rows.iter().map(|row| (row.bytes as f64, y(row)));
        Series { name, color, points: points.collect(), style: Style::Curve }
    };
    let time = [
        of("90th percentile", RGBColor(0xb0, 0xc4, 0xde), &|row| row.time.p90),
        of("median", BLUE, &|row| row.time.p50),
    ];
    let bandwidth =
        [of("algbw", RGBColor(0x80, 0x80, 0x80), &Row::algbw), of("busbw", RED, &|row| row.busbw(plan))];
    let speed = Axis { name: "GB/s", label: |speed| format!("{speed}"), base: 10.0 };
    write(path, (1100, 460), |area| {
        let area = area.titled(&title, ("sans-serif", 20))?;
        let (left, right) = area.split_horizontally(550);
        chart(&left, [Axis::SIZE, Axis::time("time per call")], &time)?;
        chart(&right, [Axis::SIZE, speed], &bandwidth)
    })
}

/// Writes a picture of this size, and makes its folder if there is none. Fonts are named in it and not looked up.
pub(crate) fn write(path: &Path, size: (u32, u32), draw: impl FnOnce(&Area<'_>) -> Drawn) -> Result<()> {
    let mut picture = String::new();
    {
        let area = SVGBackend::with_string(&mut picture, size).into_drawing_area();
        let drawn = area.fill(&WHITE).map_err(Into::into).and_then(|()| draw(&area));
        drawn
            .and_then(|()| Ok(area.present()?))
            .map_err(|error: Box<dyn StdError>| PerfError::Draw(error.to_string()))?;
    }
    write_file(path, &picture)
}

/// Writes a file, and makes its folder if there is none.
pub(crate) fn write_file(path: &Path, text: &str) -> Result<()> {
    let folder = path.parent().map_or(Ok(()), fs::create_dir_all);
    folder
        .and_then(|()| fs::write(path, text))
        .map_err(|source| PerfError::Write { path: path.to_owned(), source })
}

/// One chart with both axes logarithmic. Points that no logarithm has are left out.
pub(crate) fn chart(area: &Area<'_>, [x, y]: [Axis; 2], series: &[Series]) -> Drawn {
    let drawable = |series: &Series| -> Vec<(f64, f64)> {
        series.points.iter().copied().filter(|(x, y)| *x > 0.0 && *y > 0.0).collect()
    };
    let all: Vec<_> = series.iter().flat_map(drawable).collect();
    let (across, up) = (limits(all.iter().map(|p| p.0)), limits(all.iter().map(|p| p.1)));
    let mut chart =
        ChartBuilder::on(area).margin(14).x_label_area_size(44).y_label_area_size(66).build_cartesian_2d(
            (across.0..across.1).log_scale().base(x.base),
            (up.0..up.1).log_scale().base(y.base),
        )?;
    chart
        .configure_mesh()
        .max_light_lines(0)
        .x_desc(x.name)
        .y_desc(y.name)
        .x_label_formatter(&x.label)
        .y_label_formatter(&y.label)
        .label_style(("sans-serif", 13))
        .draw()?;
    for series in series {
        let Series { name, color, style, .. } = series;
        let (line, color, style) = (color.stroke_width(2), *color, *style);
        let curve = if style == Style::Dots { Vec::new() } else { drawable(series) };
        let curve = chart.draw_series(LineSeries::new(curve, line))?;
        if style == Style::Line {
            curve.label(*name).legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], line));
            continue;
        }
        let dots = drawable(series).into_iter().map(|at| Circle::new(at, 3, color.filled()));
        let key = move |(x, y)| Circle::new((x + 8, y), 4, color.filled());
        chart.draw_series(dots)?.label(*name).legend(key);
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .label_font(("sans-serif", 13))
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.2))
        .draw()?;
    Ok(())
}

/// The range of numbers with some room at both ends.
fn limits(numbers: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let lowest = numbers.clone().fold(f64::INFINITY, f64::min);
    let highest = numbers.fold(0.0, f64::max);
    if lowest > highest { (0.5, 2.0) } else { (lowest / 1.5, highest * 1.5) }
}

/// As in 64 KiB.
fn size(bytes: f64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = units.into_iter().find(|(shift, _)| bytes >= f64::from(1_u32 << shift));
    let (scaled, unit) = unit.map_or((bytes, "B"), |(shift, unit)| (bytes / f64::from(1_u32 << shift), unit));
    format!("{} {unit}", (scaled * 10.0).round() / 10.0)
}

/// As in 12 ms, from microseconds.
fn duration(micros: f64) -> String {
    match micros {
        us if us >= 1e6 => format!("{} s", us / 1e6),
        us if us >= 1e3 => format!("{} ms", us / 1e3),
        us => format!("{us} us"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(points: Vec<(f64, f64)>) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("inner/picture.svg");
        let series = [Series { name: "median", color: BLUE, points, style: Style::Curve }];
        write(&path, (400, 300), |area| chart(area, [Axis::SIZE, Axis::time("time per call")], &series))
            .unwrap();
        fs::read_to_string(path).unwrap()
    }

    #[test]
    fn the_picture_is_complete_and_has_its_text() {
        let picture = drawn(vec![(4.0, 10.0), (1024.0, 12.0), (1e6, 4000.0)]);
        assert!(picture.starts_with("<svg") && picture.trim_end().ends_with("</svg>"));
        for text in ["size", "time per call", "median", "<polyline", "<circle"] {
            assert!(picture.contains(text), "{text} is missing");
        }
    }

    #[test]
    fn what_has_no_logarithm_is_left_out() {
        assert!(!drawn(vec![(0.0, 1.0)]).contains("NaN"));
        assert!(!drawn(Vec::new()).contains("NaN"));
        assert!(drawn(vec![(4.0, 1.0)]).contains("<circle"));
    }

    #[test]
    fn labels_have_units() {
        assert_eq!([4.0, 1024.0, 1536.0, 3145728.0].map(size), ["4 B", "1 KiB", "1.5 KiB", "3 MiB"]);
        assert_eq!([5.0, 1e3, 2e6].map(duration), ["5 us", "1 ms", "2 s"]);
    }
}
