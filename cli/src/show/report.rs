//! Output on standard output: aligned tables, lists of facts, JSON.
//!
//! Every function takes a writer and returns its error, so a closed output (`ndshm ls | head -1`) ends the program
//! quietly instead of with a panic. There are no colours: the words carry the meaning.

use std::io::{self, Write};
use std::mem::ManuallyDrop;
use std::sync::{Mutex, PoisonError};

use serde::Serialize;

/// Rows under a heading, every column as wide as its widest cell.
#[derive(Debug)]
pub(crate) struct Table {
    columns: &'static [Column],
    rows: Vec<Vec<String>>,
}

/// Heading of a column, and the alignment of its cells.
#[derive(Debug)]
pub(crate) enum Column {
    Left(&'static str),
    Right(&'static str),
}

impl Column {
    fn heading(&self) -> &'static str {
        match self {
            Self::Left(heading) | Self::Right(heading) => heading,
        }
    }
}

impl Table {
    pub(crate) fn new(columns: &'static [Column]) -> Self {
        Self { columns, rows: Vec::new() }
    }

    /// Adds a row; cells beyond the last column are dropped.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().take(self.columns.len()).collect());
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Writes the heading and all rows, without blanks at the ends of lines.
    pub(crate) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let headings: Vec<String> = self.columns.iter().map(|c| c.heading().to_owned()).collect();
        let lines = || std::iter::once(&headings).chain(&self.rows);
        let widths: Vec<usize> = (0..self.columns.len())
            .map(|at| lines().filter_map(|l| l.get(at)).map(|c| c.chars().count()).max().unwrap_or(0))
            .collect();
        for line in lines() {
            let cells: Vec<String> = line
                .iter()
                .zip(self.columns)
                .zip(&widths)
                .map(|((cell, column), &width)| match column {
                    Column::Left(_) => format!("{cell:<width$}"),
                    Column::Right(_) => format!("{cell:>width$}"),
                })
                .collect();
            writeln!(out, "{}", cells.join("  ").trim_end())?;
        }
        Ok(())
    }
}

/// Writes `label  value` lines, indented and aligned.
pub(crate) fn facts<L: AsRef<str>>(out: &mut dyn Write, facts: &[(L, String)]) -> io::Result<()> {
    let width = facts.iter().map(|(label, _)| label.as_ref().chars().count()).max().unwrap_or(0);
    for (label, value) in facts {
        writeln!(out, "  {:<width$}  {value}", label.as_ref())?;
    }
    Ok(())
}

/// Writes Python lines that open the array, under a heading.
pub(crate) fn python(out: &mut dyn Write, lines: &[String]) -> io::Result<()> {
    writeln!(out, "\nopen it from Python:")?;
    lines.iter().try_for_each(|line| writeln!(out, "    {line}"))
}

/// Breaks a text at spaces into lines of at most `width` characters. A longer word gets its own line.
pub(crate) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in text.split(' ') {
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > width {
            lines.push(std::mem::take(&mut line));
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines.push(line);
    lines
}

/// Whether `--json` was given and no document has been begun. Locked while a document is written.
static OWES_JSON: Mutex<bool> = Mutex::new(false);

/// Makes the program print exactly one JSON document, also if it fails.
pub(crate) fn owe_json() {
    *OWES_JSON.lock().unwrap_or_else(PoisonError::into_inner) = true;
}

/// Writes a value as indented JSON and a line end, if no document has been begun. When a signal ends the program, a
/// second thread may write a document: the lock lets only one of them write.
pub(crate) fn json(out: &mut dyn Write, value: &impl Serialize) -> io::Result<()> {
    write_owed(&mut OWES_JSON.lock().unwrap_or_else(PoisonError::into_inner), out, value)
}

/// The same for a program that ends now. Never unlocks, so another thread with a document waits until the program has
/// ended.
pub(crate) fn last_json(out: &mut dyn Write, value: &impl Serialize) -> io::Result<()> {
    write_owed(&mut ManuallyDrop::new(OWES_JSON.lock().unwrap_or_else(PoisonError::into_inner)), out, value)
}

fn write_owed(owes: &mut bool, out: &mut dyn Write, value: &impl Serialize) -> io::Result<()> {
    if !std::mem::take(owes) {
        return Ok(());
    }
    serde_json::to_writer_pretty(&mut *out, value)?;
    writeln!(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_broken_at_blanks_only() {
        assert_eq!(wrapped("a bc def unbreakable x", 6), ["a bc", "def", "unbreakable", "x"]);
        assert_eq!(wrapped("", 6), [""]);
    }

    #[test]
    fn columns_line_up_and_lines_have_no_trailing_blanks() {
        let mut table = Table::new(&[Column::Left("NAME"), Column::Right("SIZE"), Column::Left("X")]);
        table.row(["long-name".into(), "1 B".into(), "y".into()]);
        table.row(["é".into(), "1024 B".into(), String::new()]);
        let mut out = Vec::new();
        table.write(&mut out).expect("a Vec takes everything");
        let text = String::from_utf8(out).expect("text");
        assert_eq!(text, "NAME         SIZE  X\nlong-name     1 B  y\né          1024 B\n");
    }
}
