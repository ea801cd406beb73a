//! Plots time and bandwidth over size.

use std::path::Path;

use comm_cli::__private::page;
use comm_cli::__private::plot::{Axis, Color, Figure, Legend, Panel, Scale, Series, Style};

use super::row::{BenchmarkInfo, Row};
use crate::error::{CliError, Result};

pub(crate) fn write_rows(path: &Path, info: &BenchmarkInfo, rows: &[Row]) -> Result<()> {
    let dtype = info.dtype.map_or("bytes", |dtype| dtype.name());
    let title = format!("{}, {} ranks, {dtype}", info.name, info.ranks);
    let of = |name: &str, color, y: &dyn Fn(&Row) -> f64| {
        let points = rows.iter().map(|row| (row.bytes as f64, y(row)));
        Series { name: name.into(), color, points: points.collect(), style: Style::Curve }
    };
    let time = vec![
        of("90th percentile", Color(0xb0, 0xc4, 0xde), &|row| row.time.p90),
        of("median", Color(0, 0, 255), &|row| row.time.p50),
    ];
    let bandwidth = vec![
        of("algbw", Color(0x80, 0x80, 0x80), &Row::algbw),
        of("busbw", Color(255, 0, 0), &|row| row.busbw(info)),
    ];
    let speed = Axis { name: "GB/s", label: |speed| format!("{speed}"), scale: Scale::Log(10.0) };
    let panel = |axis, series| Panel { title: String::new(), axes: [Axis::SIZE, axis], series };
    let picture = Figure {
        title,
        panel_size: (550, 430),
        columns: 2,
        panels: vec![panel(Axis::time("time per call"), time), panel(speed, bandwidth)],
        legend: Legend::Inside,
    };
    write_file(path, &picture.svg()?)
}

/// Writes a file, creating its folder if necessary.
pub(crate) fn write_file(path: &Path, text: &str) -> Result<()> {
    page::write_file(path, text).map_err(CliError::write(path))
}
