//! Plots times over size, with a chart for every case.

use std::collections::BTreeSet;

use comm_cli::__private::plot::{Axis, Color, Figure, Legend, Panel, Series, Style};

use super::library::BEST_MPI;
use super::ratio::Comparison;
use super::record::Case;

/// Plots a row of charts per collective, and a column per number of ranks.
pub(super) fn picture(comparison: &Comparison) -> Figure {
    // Its points lie on the curves of the implementations.
    let libraries: Vec<String> =
        comparison.libraries().into_iter().filter(|library| library != BEST_MPI).collect();
    let cases: Vec<Case> = comparison.cases().into_iter().filter(|case| !case.rotates).collect();
    let ranks: BTreeSet<usize> = cases.iter().map(|case| case.ranks).collect();
    // A barrier has one size, and so no curve.
    let has_curve = |case: &&Case| comparison.cells(**case).filter(|(bytes, _)| *bytes > 0).count() > 1;
    let panels = cases.iter().filter(has_curve).map(|case| panel(comparison, *case, &libraries)).collect();
    Figure {
        title: "Time per call".into(),
        panel_size: (440, 330),
        columns: ranks.len(),
        panels,
        legend: Legend::Above,
    }
}

fn panel(comparison: &Comparison, case: Case, libraries: &[String]) -> Panel {
    let series = |(at, library): (usize, &String)| {
        let points =
            comparison.cells(case).filter_map(|(bytes, cell)| Some((bytes as f64, cell.time(library)?)));
        Series { name: library.clone(), color: color(at), points: points.collect(), style: Style::Curve }
    };
    Panel {
        title: case.to_string(),
        axes: [Axis::SIZE, Axis::time("time per call")],
        // This library comes first, and is drawn on top.
        series: libraries.iter().enumerate().map(series).rev().collect(),
    }
}

/// Returns a different color for each library, and pale colors after the end of the palette.
fn color(at: usize) -> Color {
    let Color(red, green, blue) = Color::PALETTE[at % Color::PALETTE.len()];
    let pale = |part: u8| if at < Color::PALETTE.len() { part } else { part / 2 + 110 };
    Color(pale(red), pale(green), pale(blue))
}
