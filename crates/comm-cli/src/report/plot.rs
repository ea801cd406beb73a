//! Plots with logarithmic or linear axes, as SVG. Fonts are referenced by name and need not be
//! installed.

use std::error::Error as StdError;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::Color as _;

pub use super::axis::{Axis, Scale};

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type DrawResult = Result<(), Box<dyn StdError>>;

const TITLE_HEIGHT: u32 = 32;
const LEGEND_HEIGHT: u32 = 26;
const LEGEND_WIDTH: u32 = 150;

/// The error for a plot that cannot be drawn.
#[derive(Debug, thiserror::Error)]
#[error("cannot draw: {0}")]
pub struct DrawError(String);

/// A color: red, green and blue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Color(pub u8, pub u8, pub u8);

impl Color {
    /// Colors that color-blind people can distinguish (Okabe and Ito).
    pub const PALETTE: [Self; 8] = [
        Self(0, 114, 178),
        Self(213, 94, 0),
        Self(0, 158, 115),
        Self(204, 121, 167),
        Self(230, 159, 0),
        Self(86, 180, 233),
        Self(0, 0, 0),
        Self(140, 140, 140),
    ];

    const fn rgb(self) -> RGBColor {
        RGBColor(self.0, self.1, self.2)
    }
}

/// The points of one curve.
#[derive(Debug, Clone)]
pub struct Series {
    /// The name in the legend.
    pub name: String,
    /// The color of the line and the dots.
    pub color: Color,
    /// Points without a logarithm are omitted if an axis is logarithmic.
    pub points: Vec<(f64, f64)>,
    /// The style of the points.
    pub style: Style,
}

/// The style of a series.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// Only dots.
    Dots,
    /// Only a line.
    Line,
    /// A line with dots.
    Curve,
}

/// A chart.
#[derive(Debug, Clone)]
pub struct Panel {
    /// The title, or empty.
    pub title: String,
    /// The x axis and the y axis.
    pub axes: [Axis; 2],
    /// The series, from back to front.
    pub series: Vec<Series>,
}

/// The position of the legend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Legend {
    /// In each chart.
    Inside,
    /// Once above all charts.
    Above,
}

/// A grid of charts under a title.
#[derive(Debug, Clone)]
pub struct Figure {
    /// The title, or empty.
    pub title: String,
    /// The size of each chart in pixels.
    pub panel_size: (u32, u32),
    /// The number of columns.
    pub columns: usize,
    /// The charts in row-major order.
    pub panels: Vec<Panel>,
    /// The position of the legend.
    pub legend: Legend,
}

impl Figure {
    /// Returns the plot as SVG.
    ///
    /// # Errors
    ///
    /// If the drawing library fails, for example because the plot has no size.
    pub fn svg(&self) -> Result<String, DrawError> {
        let mut svg = String::new();
        {
            let area = SVGBackend::with_string(&mut svg, self.size()).into_drawing_area();
            self.draw(&area).map_err(|error| DrawError(error.to_string()))?;
        }
        Ok(svg)
    }

    fn columns(&self) -> usize {
        self.columns.clamp(1, self.panels.len().max(1))
    }

    fn rows(&self) -> usize {
        self.panels.len().div_ceil(self.columns()).max(1)
    }

    fn width(&self) -> u32 {
        self.panel_size.0 * self.columns() as u32
    }

    fn size(&self) -> (u32, u32) {
        let height = self.title_height() + self.legend_height() + self.panel_size.1 * self.rows() as u32;
        (self.width(), height)
    }

    fn title_height(&self) -> u32 {
        if self.title.is_empty() { 0 } else { TITLE_HEIGHT }
    }

    fn names_per_row(&self) -> usize {
        (self.width() / LEGEND_WIDTH).max(1) as usize
    }

    fn legend_height(&self) -> u32 {
        match self.legend {
            Legend::Inside => 0,
            Legend::Above => LEGEND_HEIGHT * self.names().len().div_ceil(self.names_per_row()) as u32,
        }
    }

    /// Returns every name with its color, from front to back.
    fn names(&self) -> Vec<(&str, Color)> {
        let mut names: Vec<(&str, Color)> = Vec::new();
        for series in self.panels.iter().flat_map(|panel| panel.series.iter().rev()) {
            if !names.iter().any(|(name, _)| *name == series.name) {
                names.push((&series.name, series.color));
            }
        }
        names
    }

    fn draw(&self, area: &Area<'_>) -> DrawResult {
        area.fill(&WHITE)?;
        let (head, rest) = area.split_vertically(self.title_height());
        if !self.title.is_empty() {
            head.titled(&self.title, ("sans-serif", 20))?;
        }
        let (above, charts) = rest.split_vertically(self.legend_height());
        if self.legend == Legend::Above {
            self.draw_names(&above)?;
        }
        let areas = charts.split_evenly((self.rows(), self.columns()));
        for (panel, area) in self.panels.iter().zip(&areas) {
            chart(area, panel, self.legend == Legend::Inside)?;
        }
        Ok(area.present()?)
    }

    fn draw_names(&self, area: &Area<'_>) -> DrawResult {
        let per_row = self.names_per_row();
        for (index, (name, color)) in self.names().into_iter().enumerate() {
            let x = (index % per_row) as i32 * LEGEND_WIDTH as i32 + 24;
            let y = (index / per_row) as i32 * LEGEND_HEIGHT as i32 + LEGEND_HEIGHT as i32 / 2;
            area.draw(&Circle::new((x, y), 4, color.rgb().filled()))?;
            area.draw(&Text::new(name.to_owned(), (x + 10, y - 7), ("sans-serif", 14)))?;
        }
        Ok(())
    }
}

fn chart(area: &Area<'_>, panel: &Panel, with_legend: bool) -> DrawResult {
    let [x, y] = panel.axes;
    let all: Vec<_> = panel.series.iter().flat_map(|series| drawable(series, panel)).collect();
    let (across, up) =
        (x.scale.coordinates(all.iter().map(|p| p.0)), y.scale.coordinates(all.iter().map(|p| p.1)));
    let mut builder = ChartBuilder::on(area);
    if !panel.title.is_empty() {
        builder.caption(&panel.title, ("sans-serif", 16));
    }
    let mut chart =
        builder.margin(14).x_label_area_size(44).y_label_area_size(66).build_cartesian_2d(across, up)?;
    chart
        .configure_mesh()
        .max_light_lines(0)
        .x_desc(x.name)
        .y_desc(y.name)
        .x_label_formatter(&x.label)
        .y_label_formatter(&y.label)
        .label_style(("sans-serif", 13))
        .draw()?;
    for series in &panel.series {
        let (color, style) = (series.color.rgb(), series.style);
        let line = color.stroke_width(2);
        let curve = if style == Style::Dots { Vec::new() } else { drawable(series, panel) };
        let curve = chart.draw_series(LineSeries::new(curve, line))?;
        if style == Style::Line {
            let symbol = move |(x, y)| PathElement::new([(x, y), (x + 16, y)], line);
            curve.label(&series.name).legend(symbol);
            continue;
        }
        let dots = drawable(series, panel).into_iter().map(|at| Circle::new(at, 3, color.filled()));
        let symbol = move |(x, y)| Circle::new((x + 8, y), 4, color.filled());
        chart.draw_series(dots)?.label(&series.name).legend(symbol);
    }
    if with_legend {
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .label_font(("sans-serif", 13))
            .background_style(WHITE.mix(0.85))
            .border_style(BLACK.mix(0.2))
            .draw()?;
    }
    Ok(())
}

/// Returns the points that can be shown on both axes.
fn drawable(series: &Series, panel: &Panel) -> Vec<(f64, f64)> {
    let [x, y] = panel.axes.map(|axis| axis.scale);
    series.points.iter().copied().filter(|point| x.has(point.0) && y.has(point.1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(name: &str, points: Vec<(f64, f64)>) -> Series {
        Series { name: name.into(), color: Color::PALETTE[0], points, style: Style::Curve }
    }

    fn panel(title: &str, series: Vec<Series>) -> Panel {
        Panel { title: title.into(), axes: [Axis::SIZE, Axis::time("time per call")], series }
    }

    fn drawn(points: Vec<(f64, f64)>) -> String {
        let panels = vec![panel("", vec![series("median", points)])];
        Figure { title: String::new(), panel_size: (400, 300), columns: 1, panels, legend: Legend::Inside }
            .svg()
            .unwrap()
    }

    #[test]
    fn the_plot_is_complete_and_has_its_texts() {
        let svg = drawn(vec![(4.0, 10.0), (1024.0, 12.0), (1e6, 4000.0)]);
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        for text in ["size", "time per call", "median", "<polyline", "<circle"] {
            assert!(svg.contains(text), "{text} is missing");
        }
    }

    #[test]
    fn points_without_logarithms_are_omitted() {
        assert!(!drawn(vec![(0.0, 1.0)]).contains("NaN"));
        assert!(!drawn(Vec::new()).contains("NaN"));
        assert!(drawn(vec![(4.0, 1.0)]).contains("<circle"));
    }

    #[test]
    fn linear_axes_have_zero_and_numbers_below_it() {
        let label = |number: &f64| format!("at {number:.1}");
        let series = vec![series("loss", vec![(0.0, -1.0), (10.0, 3.0), (20.0, f64::NAN)])];
        let axes = [Axis::linear("step", label), Axis::linear("loss", label)];
        let panels = vec![Panel { title: String::new(), axes, series }];
        let svg = Figure {
            title: String::new(),
            panel_size: (400, 300),
            columns: 1,
            panels,
            legend: Legend::Inside,
        }
        .svg()
        .unwrap();
        assert!(svg.contains("at 0.0") && svg.contains("at -1.0") && svg.contains("at 10.0"), "{svg}");
        assert!(!svg.contains("NaN") && !svg.contains("at 20.0"));
        let dots = svg.matches("<circle").count();
        assert_eq!(dots, 3, "two points, and one in the legend");
    }

    #[test]
    fn a_legend_above_the_charts_has_each_name_once() {
        let points = || vec![(4.0, 10.0), (1024.0, 12.0)];
        let of = |title| panel(title, vec![series("first", points()), series("second", points())]);
        let figure = Figure {
            title: "Times".into(),
            panel_size: (400, 300),
            columns: 2,
            panels: vec![of("left"), of("right"), of("below")],
            legend: Legend::Above,
        };
        assert_eq!(figure.size(), (800, 600 + TITLE_HEIGHT + LEGEND_HEIGHT));
        let svg = figure.svg().unwrap();
        for text in ["Times", "left", "right", "below", "first", "second"] {
            assert_eq!(svg.matches(&format!("\n{text}\n")).count(), 1, "{text}");
        }
    }
}
