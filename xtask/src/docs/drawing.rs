//! Draws the messages of an algorithm: ranks as columns, rounds as rows.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::rounds::Message;

/// A drawing of one algorithm.
#[derive(Debug)]
pub(super) struct Drawing<'a> {
    pub(super) title: String,
    pub(super) ranks: usize,
    /// The number of consecutive ranks with a common background; 1 for none.
    pub(super) ranks_per_host: usize,
    /// The number of blocks of the data.
    pub(super) blocks: usize,
    pub(super) messages: &'a [Message],
}

const COLUMN: usize = 64;
const ROW: usize = 48;
const LEFT: usize = 72;
const RIGHT: usize = 40;
const TOP: usize = 96;
const BOTTOM: usize = 24;
/// Darker for larger messages, so that they differ without color.
const COLOURS: [&str; 6] = ["#4292c6", "#08519c", "#e6550d", "#a63603", "#54278f", "#000000"];

impl Drawing<'_> {
    pub(super) fn svg(&self) -> Result<String, std::fmt::Error> {
        let mut svg = String::new();
        self.write(&mut svg)?;
        Ok(svg)
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        let sizes: Vec<usize> = self
            .messages
            .iter()
            .map(|message| message.blocks.count)
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect();
        let (width, height) = (self.width(sizes.len()), TOP + self.rounds() * ROW + BOTTOM);
        writeln!(
            out,
            r#"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13">"#
        )?;
        writeln!(out, r##"<rect width="{width}" height="{height}" fill="#ffffff"/>"##)?;
        writeln!(out, r#"<text x="16" y="24" font-size="15" font-weight="bold">{}</text>"#, self.title)?;
        self.legend(out, &sizes)?;
        self.hosts(out)?;
        self.grid(out)?;
        for message in self.messages {
            let size = sizes.iter().position(|size| *size == message.blocks.count).unwrap_or(0);
            self.arrow(out, message, colour(size, sizes.len()))?;
        }
        writeln!(out, "</svg>")
    }

    fn width(&self, legend_entries: usize) -> usize {
        let columns = LEFT + (self.ranks - 1) * COLUMN + RIGHT;
        columns.max(32 + 9 * self.title.len()).max(16 + 130 * legend_entries)
    }

    fn rounds(&self) -> usize {
        self.messages.iter().map(|message| message.round + 1).max().unwrap_or(0)
    }

    fn legend(&self, out: &mut String, sizes: &[usize]) -> std::fmt::Result {
        for (index, size) in sizes.iter().enumerate() {
            let x = 16 + 130 * index;
            let text = match self.blocks {
                1 => "all data".to_owned(),
                blocks => format!("{size} of {blocks} blocks"),
            };
            let colour = colour(index, sizes.len());
            writeln!(
                out,
                r#"<line x1="{x}" y1="44" x2="{}" y2="44" stroke="{colour}" stroke-width="3"/>"#,
                x + 22
            )?;
            writeln!(out, r#"<text x="{}" y="48">{text}</text>"#, x + 28)?;
        }
        Ok(())
    }

    /// Draws a background for the ranks of each host.
    fn hosts(&self, out: &mut String) -> std::fmt::Result {
        if self.ranks_per_host == 1 {
            return Ok(());
        }
        for first in (0..self.ranks).step_by(self.ranks_per_host) {
            let last = (first + self.ranks_per_host).min(self.ranks) - 1;
            let (x, width) = (column(first) - 24, (last - first) * COLUMN + 48);
            let height = self.rounds() * ROW + 32;
            writeln!(
                out,
                r##"<rect x="{x}" y="{}" width="{width}" height="{height}" rx="8" fill="#f0f0f0"/>"##,
                TOP - 30
            )?;
        }
        Ok(())
    }

    fn grid(&self, out: &mut String) -> std::fmt::Result {
        let end = TOP + self.rounds() * ROW;
        for rank in 0..self.ranks {
            let x = column(rank);
            writeln!(out, r#"<text x="{x}" y="{}" text-anchor="middle">{rank}</text>"#, TOP - 12)?;
            writeln!(out, r##"<line x1="{x}" y1="{TOP}" x2="{x}" y2="{end}" stroke="#999999"/>"##)?;
        }
        writeln!(out, r##"<text x="16" y="{}" fill="#666666">rank</text>"##, TOP - 12)?;
        for round in 0..self.rounds() {
            let y = TOP + round * ROW;
            writeln!(
                out,
                r##"<line x1="16" y1="{y}" x2="{}" y2="{y}" stroke="#cccccc" stroke-dasharray="2 4"/>"##,
                column(self.ranks - 1) + 24
            )?;
            writeln!(out, r##"<text x="16" y="{}" fill="#666666">{}</text>"##, y + ROW / 2 + 5, round + 1)?;
        }
        Ok(())
    }

    /// Draws an arrow from the sender at the start of the round to the receiver at its end.
    fn arrow(&self, out: &mut String, message: &Message, colour: &str) -> std::fmt::Result {
        let Message { round, from, to, blocks } = *message;
        let start = (column(from) as f64, (TOP + round * ROW + 4) as f64);
        let end = (column(to) as f64, (TOP + (round + 1) * ROW - 4) as f64);
        let (dx, dy) = (end.0 - start.0, end.1 - start.1);
        let length = dx.hypot(dy);
        let (ux, uy) = (dx / length, dy / length);
        let neck = (end.0 - 9.0 * ux, end.1 - 9.0 * uy);
        let what = match blocks.count {
            1 => format!("block {}", blocks.first),
            _ => format!("blocks {} to {}", blocks.first, blocks.end() - 1),
        };
        writeln!(out, r#"<g stroke="{colour}" fill="{colour}"><title>{from} to {to}: {what}</title>"#)?;
        writeln!(
            out,
            r#"<line x1="{:.1}" y1="{:.1}" x2="{:.1}" y2="{:.1}" stroke-width="2"/>"#,
            start.0, start.1, neck.0, neck.1
        )?;
        writeln!(
            out,
            r#"<path d="M{:.1} {:.1} L{:.1} {:.1} L{:.1} {:.1} Z" stroke="none"/></g>"#,
            end.0,
            end.1,
            neck.0 - 4.0 * uy,
            neck.1 + 4.0 * ux,
            neck.0 + 4.0 * uy,
            neck.1 - 4.0 * ux
        )
    }
}

const fn column(rank: usize) -> usize {
    LEFT + rank * COLUMN
}

/// Returns a color, spread over the whole range.
fn colour(index: usize, sizes: usize) -> &'static str {
    let last = COLOURS.len() - 1;
    COLOURS[if sizes <= COLOURS.len() { index.min(last) } else { index * last / (sizes - 1) }]
}

#[cfg(test)]
mod tests {
    use super::*;
    use comm_core::Blocks;

    #[test]
    fn every_message_is_an_arrow_with_its_blocks() {
        let message =
            |round, from, to, count| Message { round, from, to, blocks: Blocks { first: 1, count } };
        let messages = [message(0, 0, 2, 1), message(1, 2, 1, 3)];
        let drawing =
            Drawing { title: "two".into(), ranks: 3, ranks_per_host: 2, blocks: 4, messages: &messages };
        let svg = drawing.svg().unwrap();
        assert_eq!(svg.matches("<path").count(), 2);
        for part in ["0 to 2: block 1<", "2 to 1: blocks 1 to 3<", "1 of 4 blocks", "3 of 4 blocks", ">two<"]
        {
            assert!(svg.contains(part), "{part}");
        }
        assert_eq!(svg.matches("rx=\"8\"").count(), 2, "a background for each host");
        assert!(svg.ends_with("</svg>\n"));
    }
}
