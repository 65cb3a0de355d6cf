//! Streams of frames as `ls`, `info`, `unlink` and `gc` show them, in JSON and in words. Inspecting one does not delay
//! its writer.

use ndarray_shm::stream::{Backpressure, CursorInspection, StreamInspection};
use serde::Serialize;

use super::description::DescriptionReport;
use crate::show::units;

/// A stream, as `ls --json` and `info --json` print it.
#[derive(Debug, Serialize)]
pub(crate) struct StreamReport {
    /// What its frames are.
    #[serde(flatten)]
    pub(crate) frame: DescriptionReport,
    pub(crate) slots: usize,
    /// Whether readers copy frames instead of holding them.
    pub(crate) copied: bool,
    /// Number of the newest frame; 0 before the first.
    pub(crate) head: u64,
    /// How many frames are there.
    pub(crate) frames: usize,
    /// Frames per second of those that are there; `null` if they are fewer than two.
    pub(crate) rate: Option<f64>,
    /// Number of writers so far.
    pub(crate) epoch: u64,
    /// "alive", "ended" or "dead"; "unknown" if the kernel does not tell.
    pub(crate) writer: &'static str,
    /// Slots that readers hold, or that the writer is writing to.
    pub(crate) held: usize,
    /// Numbers of the processes that hold frames, as far as they are known.
    pub(crate) held_by: Vec<u32>,
    /// `null` if this user may not look at them.
    pub(crate) cursors: Option<Vec<CursorReport>>,
    /// The values that each frame has beside its elements.
    pub(crate) meta: Vec<MetaReport>,
    /// Whether its writer lives. Not serialized: every item has this field itself, as `attached`.
    #[serde(skip)]
    pub(crate) has_writer: Option<bool>,
}

/// A cursor of a stream.
#[derive(Debug, Serialize)]
pub(crate) struct CursorReport {
    pub(crate) name: String,
    /// The last number that it has acknowledged.
    pub(crate) acknowledged: u64,
    /// How many frames the newest one is ahead of that.
    pub(crate) behind: u64,
    /// What the writer does for it: "overwrite", "wait-while-alive" or "wait".
    pub(crate) policy: &'static str,
    /// Whether a process reads with it.
    pub(crate) has_reader: bool,
}

/// Values that each frame has under a name.
#[derive(Debug, Serialize)]
pub(crate) struct MetaReport {
    pub(crate) name: String,
    pub(crate) dtype: String,
    pub(crate) count: usize,
}

impl StreamReport {
    pub(crate) fn new(found: StreamInspection) -> Self {
        let writer = match (found.has_writer, found.has_ended) {
            (Some(true), _) => "alive",
            (_, true) => "ended",
            (Some(false), false) => "dead",
            (None, false) => "unknown",
        };
        let cursor = |cursor: CursorInspection| CursorReport::new(cursor, found.head);
        let meta = found.meta.into_iter().map(|field| MetaReport {
            name: field.name,
            dtype: field.dtype.to_string(),
            count: field.count,
        });
        Self {
            frame: DescriptionReport::from(&found.description),
            slots: found.slots,
            copied: found.copied,
            head: found.head,
            frames: found.frames,
            rate: found.rate,
            epoch: found.epoch,
            writer,
            held: found.held,
            held_by: found.holders,
            cursors: found.cursors.map(|cursors| cursors.into_iter().map(cursor).collect()),
            meta: meta.collect(),
            has_writer: found.has_writer,
        }
    }

    /// Returns what its writer does in a few words, and how many cursors have readers: "writer, 1 cursor".
    pub(crate) fn users(&self) -> String {
        let writer = match self.writer {
            "alive" => "writer",
            "ended" => "ended",
            "dead" => "dead writer",
            _ => "unknown",
        };
        let reading = self.cursors.iter().flatten().filter(|cursor| cursor.has_reader).count();
        if reading == 0 { writer.to_owned() } else { format!("{writer}, {}", units::count(reading, "cursor")) }
    }

    /// Returns type and shape of its frames, for a table: "stream <u2 480x640, 8 slots".
    pub(crate) fn summary(&self) -> String {
        format!(
            "{}, {}",
            units::array("stream", &self.frame.dtype, &self.frame.shape),
            units::count(self.slots, "slot")
        )
    }

    /// Returns all facts but the processes that have it open, for `info`.
    pub(crate) fn facts(&self, name: &str) -> Vec<(String, String)> {
        let writer = match self.writer {
            "alive" => "lives".to_owned(),
            "ended" => format!("has ended the stream, which is kept: `ndshm unlink --stream {name}` removes it"),
            "dead" => format!("has died: a writer can resume the stream; `ndshm unlink --stream {name}` removes it"),
            _ => "unknown: a process has locked what tells of its life".to_owned(),
        };
        let newest = match self.head {
            0 => "none yet".to_owned(),
            head => format!("number {head}"),
        };
        let rate = self.rate.map_or_else(|| "unknown".to_owned(), |rate| format!("{rate:.1} frames per second"));
        let held = match (self.held, self.held_by.as_slice()) {
            _ if self.copied => "none: readers copy frames".to_owned(),
            (0, _) => "none".to_owned(),
            (held, []) => format!("{held} of {}", self.slots),
            (held, by) => {
                let noun = if by.len() == 1 { "process" } else { "processes" };
                let by = by.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
                format!("{held} of {}, by the {noun} {by}", self.slots)
            }
        };
        let own = [
            ("slots", format!("{}, with {}", self.slots, units::count(self.frames, "frame"))),
            ("newest", newest),
            ("rate", rate),
            ("writer", writer),
            ("epoch", format!("{} so far", units::count(usize::try_from(self.epoch).unwrap_or(usize::MAX), "writer"))),
            ("held slots", held),
        ];
        let mut facts = self.frame.facts();
        facts.extend(own.map(|(label, fact)| (label.to_owned(), fact)));
        match &self.cursors {
            None => facts.push(("cursors".to_owned(), "only the stream's owner may look at them".to_owned())),
            Some(cursors) if cursors.is_empty() => facts.push(("cursors".to_owned(), "none".to_owned())),
            Some(cursors) => facts.extend(cursors.iter().map(|cursor| ("cursor".to_owned(), cursor.describe()))),
        }
        facts.extend(self.meta.iter().map(|field| ("value".to_owned(), field.describe())));
        facts
    }
}

impl CursorReport {
    fn new(found: CursorInspection, head: u64) -> Self {
        Self {
            behind: head.saturating_sub(found.acknowledged),
            policy: policy(found.policy),
            name: found.name,
            acknowledged: found.acknowledged,
            has_reader: found.has_reader,
        }
    }

    /// Returns all facts about it in one line.
    fn describe(&self) -> String {
        let reader = if self.has_reader { "has a reader" } else { "no reader" };
        format!(
            "{}: acknowledged {}, {} behind, {reader}, policy {}",
            units::printable(&self.name),
            self.acknowledged,
            self.behind,
            self.policy
        )
    }
}

impl MetaReport {
    fn describe(&self) -> String {
        let count = if self.count == 1 { String::new() } else { format!(" x {}", self.count) };
        format!("{}: {}{count}", units::printable(&self.name), self.dtype)
    }
}

/// Returns what the writer does for a cursor in one word.
fn policy(policy: Backpressure) -> &'static str {
    match policy {
        Backpressure::Overwrite => "overwrite",
        Backpressure::WaitWhileAlive => "wait-while-alive",
        Backpressure::Wait => "wait",
        _ => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use ndarray_shm::array::Description;
    use ndarray_shm::{DType, Order};

    use super::*;

    fn stream(writer: &'static str) -> StreamReport {
        let cursor = |name: &str, has_reader| CursorReport {
            name: name.to_owned(),
            acknowledged: 5,
            behind: 2,
            policy: "wait",
            has_reader,
        };
        let description = Description::new(DType::U16, &[4, 6], Order::C).expect("small");
        let description = description.with_note("axes", "y x").expect("a note");
        StreamReport {
            frame: DescriptionReport::from(&description),
            slots: 8,
            copied: false,
            head: 7,
            frames: 7,
            rate: Some(29.97),
            epoch: 1,
            writer,
            held: 2,
            held_by: vec![12, 34],
            cursors: Some(vec![cursor("disk\u{1b}", true), cursor("gpu", false)]),
            meta: vec![MetaReport { name: "stage".to_owned(), dtype: "<f8".to_owned(), count: 3 }],
            has_writer: Some(writer == "alive"),
        }
    }

    #[test]
    fn users_are_its_writer_and_its_cursors() {
        assert_eq!(stream("alive").users(), "writer, 1 cursor");
        assert_eq!(StreamReport { cursors: None, ..stream("dead") }.users(), "dead writer");
        assert_eq!(stream("ended").summary(), "stream <u2 4x6, 8 slots");
    }

    #[test]
    fn facts_name_holders_cursors_and_values() {
        let facts = stream("dead").facts("camera");
        let fact = |label: &str| {
            let of_label = facts.iter().filter(|(name, _)| name == label);
            of_label.map(|(_, fact)| fact.as_str()).collect::<Vec<_>>()
        };
        assert!(fact("writer")[0].contains("ndshm unlink --stream camera"), "{facts:?}");
        assert_eq!(fact("held slots"), ["2 of 8, by the processes 12, 34"]);
        assert_eq!(fact("rate"), ["30.0 frames per second"]);
        assert_eq!(
            fact("cursor"),
            [
                "disk\\u{1b}: acknowledged 5, 2 behind, has a reader, policy wait",
                "gpu: acknowledged 5, 2 behind, no reader, policy wait"
            ]
        );
        assert_eq!(fact("value"), ["stage: <f8 x 3"]);
        assert_eq!((fact("shape"), fact("axes")), (vec!["4 x 6 (y, x), C order"], vec!["y x"]));
    }
}
