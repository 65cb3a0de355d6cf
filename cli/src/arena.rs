//! Arenas and counters as `ls`, `info`, `gc` and `doctor` see them, in JSON and in words. Looking joins none of them.

use ndarray_shm::arena::ArenaInspection;
use serde::Serialize;

use crate::units;

/// An arena, or a file of counters, as `ls --json` and `info --json` print it.
#[derive(Debug, Serialize)]
#[expect(clippy::struct_excessive_bools, reason = "any combination of them may be true")]
pub(crate) struct ArenaReport {
    /// Bytes for arrays; 0 for counters.
    pub(crate) capacity: u64,
    pub(crate) queues: u32,
    /// Messages that each queue has room for.
    pub(crate) queue_capacity: u32,
    /// Processes that are members.
    pub(crate) members: u32,
    /// Processes that can be.
    pub(crate) most_members: u32,
    pub(crate) kept: bool,
    pub(crate) orphaned: bool,
    /// Number of the process that made it.
    pub(crate) creator: u32,
    /// Which of the two it is.
    #[serde(skip)]
    pub(crate) is_counters: bool,
    /// The kernel's answer, which every item has anyway.
    #[serde(skip)]
    pub(crate) attached: bool,
}

impl ArenaReport {
    pub(crate) fn new(inspection: &ArenaInspection) -> Self {
        Self {
            capacity: inspection.capacity,
            queues: inspection.queues,
            queue_capacity: inspection.queue_capacity,
            members: inspection.members,
            most_members: inspection.most_members,
            kept: inspection.is_kept,
            orphaned: inspection.is_orphaned(),
            creator: inspection.creator,
            is_counters: inspection.is_counters,
            attached: inspection.is_attached,
        }
    }

    /// What it is, in a word.
    pub(crate) fn kind(&self) -> &'static str {
        if self.is_counters { "counters" } else { "arena" }
    }

    /// The processes that use it, in a few words: "3 members", "kept", "orphaned".
    pub(crate) fn users(&self) -> String {
        let members = units::count(self.members as usize, "member");
        match (self.orphaned, self.kept) {
            (true, _) => "orphaned".to_owned(),
            (_, true) if self.members == 0 => "kept".to_owned(),
            (_, true) => format!("{members}, kept"),
            _ => members,
        }
    }

    /// What it is, in a table: "arena of 16.0 MiB, 8 queues".
    pub(crate) fn summary(&self) -> String {
        if self.is_counters {
            return self.kind().to_owned();
        }
        format!("arena of {}, {}", units::size(self.capacity), units::count(self.queues as usize, "queue"))
    }

    /// Everything but its holders, for `info`.
    pub(crate) fn facts(&self) -> Vec<(&'static str, String)> {
        let kept = if self.kept {
            "yes: only `ndshm unlink` removes the name"
        } else {
            "no: the name goes with the last member"
        };
        let orphaned =
            if self.orphaned { "yes: no process uses it and none will; `ndshm gc` removes it" } else { "no" };
        let mut facts = vec![("members", format!("{} of {} processes", self.members, self.most_members))];
        if !self.is_counters {
            facts.push(("capacity", format!("{} ({} bytes)", units::size(self.capacity), self.capacity)));
            facts.push(("queues", format!("{}, each with room for {} messages", self.queues, self.queue_capacity)));
        }
        facts.push(("kept", kept.to_owned()));
        facts.push(("orphaned", orphaned.to_owned()));
        facts.push(("made", format!("by process {}", self.creator)));
        facts
    }
}
