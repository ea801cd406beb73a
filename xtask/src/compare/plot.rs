//! Plots the times of a collective relative to the fastest peer.

use std::collections::BTreeSet;

use comm_cli::__private::plot::{Axis, Color, Figure, Legend, Panel, Scale, Series, Style};

use super::bounds::{LIMIT, TCP_LIMIT};
use super::collective::Collective;
use super::library::is_ours;
use super::ratio::Comparison;
use super::record::Case;

/// The libraries in a chart with their colors, in the order of the legend; the others are only in
/// the tables. Those of both kinds of transport have the same color in both.
type ChartedLibraries = &'static [(&'static str, Color)];

const OURS: Color = Color::PALETTE[0];
const OURS_ALLOCATED: Color = Color::PALETTE[1];
const OURS_AUTO: Color = Color::PALETTE[2];
const BOUND: Color = Color::PALETTE[3];
const OPEN_MPI: Color = Color::PALETTE[4];
const MPICH: Color = Color::PALETTE[5];
const INTEL_MPI: Color = Color::PALETTE[6];
const GLOO: Color = Color::PALETTE[7];
const SHARED_MEMORY: ChartedLibraries = &[
    ("comm-shm", OURS),
    ("comm-shm-alloc", OURS_ALLOCATED),
    ("comm-auto", OURS_AUTO),
    (LIMIT, BOUND),
    ("openmpi", OPEN_MPI),
    ("mpich", MPICH),
    ("impi", INTEL_MPI),
    ("gloo", GLOO),
];
const SOCKETS: ChartedLibraries =
    &[("comm-tcp", OURS), (TCP_LIMIT, BOUND), ("openmpi-tcp", OPEN_MPI), ("gloo", GLOO)];

/// The smallest size with limits in the picture. There are limits of very small sizes and of large
/// ones, and a line from the ones to the others would show what was not measured.
const LIMITS_MIN: usize = 1 << 10;

/// Points farther from 1 are not drawn, because the others would be hard to tell apart.
const FACTOR_MAX: f64 = 20.0;

const RATIO: Axis = Axis { name: "time / fastest peer's time", label: ratio, scale: Scale::Log(10.0) };

/// Labels every third line of a decade, so that labels do not overlap.
fn ratio(value: &f64) -> String {
    let leading = value / 10_f64.powf(value.log10().floor());
    let has_label = [1.0, 2.0, 5.0].into_iter().any(|digit| (leading - digit).abs() < 1e-6);
    if has_label { format!("{value}") } else { String::new() }
}

/// Plots a collective: a row of charts per kind of transport, and a column per number of ranks.
/// Returns `None` if there is no curve, as for a barrier, which has one size.
pub(super) fn picture(comparison: &Comparison, collective: Collective) -> Option<Figure> {
    let cases: Vec<Case> =
        comparison.cases().into_iter().filter(|case| case.collective == collective).collect();
    let cases: Vec<Case> = cases.into_iter().filter(|case| !case.rotates).collect();
    let charts = [("", SHARED_MEMORY), (", TCP", SOCKETS)].into_iter().flat_map(|(kind, libraries)| {
        cases.iter().filter_map(move |case| panel(comparison, *case, kind, libraries))
    });
    let panels: Vec<Panel> = charts.collect();
    let ranks: BTreeSet<usize> = cases.iter().map(|case| case.ranks).collect();
    (!panels.is_empty()).then(|| Figure {
        title: format!("{collective} relative to the fastest peer"),
        panel_size: (440, 330),
        columns: ranks.len(),
        panels,
        legend: Legend::Above,
    })
}

/// Plots a case, if this library and a peer have curves.
fn panel(comparison: &Comparison, case: Case, kind: &str, libraries: ChartedLibraries) -> Option<Panel> {
    let curves =
        libraries.iter().map(|(library, color)| series(comparison, case, libraries, library, *color));
    let series: Vec<Series> = curves.filter(|series| series.points.len() > 1).collect();
    series.iter().any(|series| is_ours(&series.name)).then(|| Panel {
        title: format!("{} ranks{kind}", case.ranks),
        axes: [Axis::SIZE, RATIO],
        // This library comes first, and is drawn on top.
        series: series.into_iter().rev().collect(),
    })
}

fn series(comparison: &Comparison, case: Case, all: ChartedLibraries, library: &str, color: Color) -> Series {
    let names = all.iter().map(|(name, _)| *name);
    let peers: Vec<&str> = names.filter(|name| !is_ours(name) && !is_limit(name)).collect();
    let points = comparison.cells(case).filter_map(|(bytes, cell)| {
        let ratio = cell.by_fastest(library, &peers)?.median();
        let is_shown = (1.0 / FACTOR_MAX..=FACTOR_MAX).contains(&ratio);
        (is_shown && (bytes >= LIMITS_MIN || !is_limit(library))).then_some((bytes as f64, ratio))
    });
    let style = if is_limit(library) { Style::Line } else { Style::Curve };
    Series { name: library.into(), color, points: points.collect(), style }
}

fn is_limit(library: &str) -> bool {
    [LIMIT, TCP_LIMIT].contains(&library)
}
