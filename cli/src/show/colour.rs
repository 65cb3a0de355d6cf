//! Colours for errors and for `doctor`, if the output is a terminal and `NO_COLOR` is not set.

use std::io;

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};

/// The meaning of a word, which decides its colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    /// Nothing is wrong.
    Good,
    /// Worth knowing.
    Warning,
    /// A problem.
    Problem,
    /// Advice.
    Advice,
}

impl Tone {
    fn style(self) -> Style {
        match self {
            Self::Good => AnsiColor::Green.on_default(),
            Self::Warning => AnsiColor::Yellow.on_default().bold(),
            Self::Problem => AnsiColor::Red.on_default().bold(),
            Self::Advice => Style::new().bold(),
        }
    }
}

/// Whether an output has colours.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Colours(bool);

impl Colours {
    pub(crate) fn of_stdout() -> Self {
        Self(AutoStream::choice(&io::stdout()) != ColorChoice::Never)
    }

    pub(crate) fn of_stderr() -> Self {
        Self(AutoStream::choice(&io::stderr()) != ColorChoice::Never)
    }

    /// Returns the text in the colour of its meaning, or unchanged if there are no colours.
    pub(crate) fn paint(self, tone: Tone, text: &str) -> String {
        let style = tone.style();
        if self.0 && !text.trim().is_empty() { format!("{style}{text}{style:#}") } else { text.to_owned() }
    }
}
