//! The view in a terminal.

use std::io;
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Paragraph, Row, Table, TableState};

use super::Watcher;
use super::table::{HEADER, cells, is_text, title};
use super::view::{RankState, RankView, View};
use crate::error::{CliError, Result};

/// Shows all jobs until the user quits or the last one ends.
pub(super) fn show(watcher: &mut Watcher, interval: Duration) -> Result<()> {
    let mut terminal = ratatui::init();
    let outcome = update(&mut terminal, watcher, interval);
    ratatui::restore();
    outcome
}

fn update(terminal: &mut DefaultTerminal, watcher: &mut Watcher, interval: Duration) -> Result<()> {
    let on_terminal = |source: io::Error| CliError::System { what: "use the terminal", source };
    let mut rows = TableState::default();
    loop {
        let views = watcher.look()?;
        if views.is_empty() {
            return Ok(());
        }
        let next = Instant::now() + interval;
        loop {
            terminal.draw(|frame| draw(frame, &views, &mut rows)).map_err(on_terminal)?;
            let left = next.saturating_duration_since(Instant::now());
            if !event::poll(left).map_err(on_terminal)? {
                break;
            }
            if quits(&event::read().map_err(on_terminal)?, &mut rows) {
                return Ok(());
            }
        }
    }
}

/// Applies a key. Returns whether it quits.
fn quits(event: &Event, rows: &mut TableState) -> bool {
    let Event::Key(key) = event else { return false };
    if key.kind != KeyEventKind::Press {
        return false;
    }
    match key.code {
        KeyCode::Char('q') | KeyCode::Esc => return true,
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return true,
        KeyCode::Down => rows.scroll_down_by(1),
        KeyCode::Up => rows.scroll_up_by(1),
        KeyCode::PageDown => rows.scroll_down_by(20),
        KeyCode::PageUp => rows.scroll_up_by(20),
        KeyCode::Home => rows.select_first(),
        _ => {}
    }
    false
}

fn draw(frame: &mut Frame<'_>, views: &[View], rows: &mut TableState) {
    let lines =
        views.iter().flat_map(|view| [Line::from(view.summary.clone()).bold(), Line::from(title(view))]);
    let lines: Vec<Line<'_>> = lines.collect();
    let heights = [Constraint::Length(lines.len() as u16), Constraint::Min(1)];
    let [head, body] = Layout::vertical(heights).areas(frame.area());
    frame.render_widget(Paragraph::new(lines), head);
    let ranks = || views.iter().flat_map(|view| &view.ranks);
    let texts: Vec<[String; 10]> = ranks().map(cells).collect();
    let widths = (0..HEADER.len()).map(|column| {
        let longest = texts.iter().map(|row| row[column].len()).chain([HEADER[column].len()]).max();
        Constraint::Length(longest.unwrap_or(0) as u16)
    });
    let aligned = |(column, text): (usize, String)| {
        let line = Line::from(text);
        Cell::from(if is_text(column) { line } else { line.right_aligned() })
    };
    let row = |(text, rank): ([String; 10], &RankView)| {
        Row::new(text.into_iter().enumerate().map(aligned)).style(style(rank))
    };
    let header = HEADER.into_iter().map(str::to_owned).enumerate().map(aligned);
    let table = Table::new(texts.clone().into_iter().zip(ranks()).map(row), widths)
        .header(Row::new(header).style(Style::new().reversed()))
        .row_highlight_style(Style::new().underlined());
    frame.render_stateful_widget(table, body, rows);
}

fn style(rank: &RankView) -> Style {
    match rank.state {
        RankState::Stopped | RankState::NoAnswer | RankState::Failed => Style::new().fg(Color::Red),
        _ if rank.waited_for_by > 0 => Style::new().fg(Color::Yellow),
        _ => Style::new(),
    }
}
