//! Arenas and counters as `ls`, `info`, `gc` and `doctor` show them, in JSON and in words. Inspecting one does not join
//! it.

use ndarray_shm::arena::ArenaInspection;
use serde::Serialize;

use crate::show::units;

/// An arena, or a file of counters, as `ls --json` and `info --json` print it.
#[derive(Debug, Serialize)]
#[expect(clippy::struct_excessive_bools, reason = "any combination of them may be true")]
pub(crate) struct ArenaReport {
    /// Bytes for arrays; 0 for counters.
    pub(crate) capacity: u64,
    pub(crate) queues: u32,
    /// Most messages in each queue.
    pub(crate) queue_capacity: u32,
    /// Number of member processes.
    pub(crate) members: u32,
    /// Most member processes.
    pub(crate) most_members: u32,
    pub(crate) kept: bool,
    pub(crate) orphaned: bool,
    /// Number of the process that created it.
    pub(crate) creator: u32,
    /// Whether it is a file of counters, not an arena.
    #[serde(skip)]
    pub(crate) is_counters: bool,
    /// Whether a process holds a lease. Not serialized: every item has this field itself.
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

    /// Returns its kind in one word.
    pub(crate) fn kind(&self) -> &'static str {
        if self.is_counters { "counters" } else { "arena" }
    }

    /// Returns its users in a few words: "3 members", "kept", "orphaned".
    pub(crate) fn users(&self) -> String {
        let members = units::count(self.members as usize, "member");
        match (self.orphaned, self.kept) {
            (true, _) => "orphaned".to_owned(),
            (_, true) if self.members == 0 => "kept".to_owned(),
            (_, true) => format!("{members}, kept"),
            _ => members,
        }
    }

    /// Returns its sizes, for a table: "arena of 16.0 MiB, 8 queues".
    pub(crate) fn summary(&self) -> String {
        if self.is_counters {
            return self.kind().to_owned();
        }
        format!("arena of {}, {}", units::size(self.capacity), units::count(self.queues as usize, "queue"))
    }

    /// Returns all facts but its holders, for `info`.
    pub(crate) fn facts(&self) -> Vec<(&'static str, String)> {
        let kept = if self.kept {
            "yes: only `ndshm unlink` removes the name"
        } else {
            "no: the last member removes the name"
        };
        let orphaned =
            if self.orphaned { "yes: no process uses it and none will; `ndshm gc` removes it" } else { "no" };
        let mut facts = vec![("members", format!("{} of {} processes", self.members, self.most_members))];
        if !self.is_counters {
            facts.push(("capacity", format!("{} ({} bytes)", units::size(self.capacity), self.capacity)));
            facts.push(("queues", format!("{}, each for up to {} messages", self.queues, self.queue_capacity)));
        }
        facts.push(("kept", kept.to_owned()));
        facts.push(("orphaned", orphaned.to_owned()));
        facts.push(("created", format!("by process {}", self.creator)));
        facts
    }
}
