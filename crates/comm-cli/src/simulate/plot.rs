//! Plots predicted times over the size of the data.

use std::iter;
use std::path::Path;

use comm::ring::schedule::Algorithm;
use comm_cli::__private::plot::{Axis, Color, Figure, Legend, Panel, Scale, Series, Style};
use comm_cli::__private::{page, units};

use super::options::Setup;
use super::predict::Simulator;
use crate::error::{CliError, Result};

const BYTES_MIN: usize = 4;
const BYTES_MAX: usize = 1 << 30;

pub(super) fn write(path: &Path, setup: &Setup, rows: &[&'static Algorithm], steps_max: usize) -> Result<()> {
    let series = curves(setup, rows, steps_max)?;
    let bytes = Axis {
        name: "size of the data in bytes",
        label: |bytes| units::show(bytes.round() as usize),
        scale: Scale::Log(8.0),
    };
    let axes = [bytes, Axis::time("predicted time")];
    let panels = vec![Panel { title: String::new(), axes, series }];
    let figure =
        Figure { title: title(setup), panel_size: (960, 600), columns: 1, panels, legend: Legend::Inside };
    page::write_file(path, &figure.svg()?).map_err(CliError::write(path))
}

fn curves(setup: &Setup, rows: &[&'static Algorithm], steps_max: usize) -> Result<Vec<Series>> {
    let sizes: Vec<usize> = iter::successors(Some(BYTES_MIN), |bytes| Some(bytes * 2))
        .take_while(|bytes| *bytes <= BYTES_MAX)
        .collect();
    let simulator = Simulator::new(setup, steps_max);
    let curve = |(row, color): (&&'static Algorithm, &Color)| {
        let (simulated, times) = simulator.curve(row, &sizes)?;
        let name = if simulated { row.name.to_owned() } else { format!("{} (closed form)", row.name) };
        let points = sizes.iter().zip(times).map(|(bytes, time)| (*bytes as f64, time * 1e6));
        Ok(Series { name, color: *color, points: points.collect(), style: Style::Line })
    };
    rows.iter().zip(Color::PALETTE.iter().cycle()).map(curve).collect()
}

fn title(setup: &Setup) -> String {
    let links = &setup.tuning.links;
    let link = links.slowest(setup.shape.ranks);
    format!(
        "{} among {} ranks, {} per host: latency {}, {} Gbit/s",
        setup.shape.collective,
        setup.shape.ranks,
        links.ranks_per_host,
        units::time(link.latency),
        units::digits(8e-9 / link.per_byte),
    )
}
