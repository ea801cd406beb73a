//! Plots the overhead of training over the number of parameters.

use std::collections::BTreeSet;

use comm_cli::__private::plot::{Axis, Color, Figure, Legend, Panel, Scale, Series, Style};

use super::overhead::Overheads;
use crate::compare::library::is_ours;

const PARAMETERS: Axis = Axis { name: "parameters", label: millions, scale: Scale::Log(10.0) };

/// Labels every third line of a decade, so that labels do not overlap.
fn millions(count: &f64) -> String {
    let leading = count / 10_f64.powf(count.log10().floor());
    let has_label = [1.0, 2.0, 5.0].into_iter().any(|digit| (leading - digit).abs() < 1e-6);
    if has_label { format!("{} M", count / 1e6) } else { String::new() }
}

/// Plots a chart with computation and one with a fixed time, for every number of ranks.
pub(super) fn picture(overheads: &Overheads) -> Figure {
    let kinds: BTreeSet<(usize, bool)> =
        overheads.cases().map(|case| (case.ranks, case.model.is_fixed())).collect();
    let mut libraries = overheads.libraries();
    libraries.sort_by_key(|library| !is_ours(library));
    let panels = kinds.into_iter().map(|kind| panel(overheads, kind, &libraries)).collect();
    Figure {
        title: "Overhead of data parallel training per step".into(),
        panel_size: (480, 360),
        columns: 2,
        panels,
        legend: Legend::Above,
    }
}

fn panel(overheads: &Overheads, (ranks, is_fixed): (usize, bool), libraries: &[String]) -> Panel {
    let series = |(at, library): (usize, &String)| {
        let cases = overheads.cases().filter(|case| (case.ranks, case.model.is_fixed()) == (ranks, is_fixed));
        let points = cases.filter_map(|case| {
            let overhead = overheads.median(case, library, |time| Some(time.overhead_us))?;
            Some((case.model.parameters() as f64, overhead))
        });
        let color = Color::PALETTE[at % Color::PALETTE.len()];
        Series { name: library.clone(), color, points: points.collect(), style: Style::Curve }
    };
    let what = if is_fixed { "fixed computation" } else { "perceptron" };
    Panel {
        title: format!("{what}, {ranks} ranks"),
        axes: [PARAMETERS, Axis::time("overhead per step")],
        // This library comes first, and is drawn on top.
        series: libraries.iter().enumerate().map(series).rev().collect(),
    }
}
