//! Counted arrays as `ls`, `info`, `unlink` and `gc` show them: facts from the trailer and the kernel, in JSON and in
//! words.

use std::time::{Duration, SystemTime};

use ndarray_shm::counted::{Inspection, SharingStrategy};
use serde::Serialize;

use crate::show::units;

/// A counted array, as `ls --json` and `info --json` print it.
#[derive(Debug, Serialize)]
#[expect(clippy::struct_excessive_bools, reason = "any combination of them may be true")]
pub(crate) struct CountedReport {
    /// The element type as `NumPy` writes it: "<u2".
    pub(crate) dtype: String,
    pub(crate) shape: Vec<usize>,
    /// "C" or "F".
    pub(crate) order: String,
    /// How it is shared: an array with a name is shared by name.
    pub(crate) strategy: &'static str,
    /// Bytes of the elements.
    pub(crate) bytes: u64,
    /// Number of handles, including those of killed processes.
    pub(crate) refcount: u32,
    /// Handles in flight that have not expired.
    pub(crate) in_flight: usize,
    /// How much longer handles in flight keep the array without other handles, rounded up.
    pub(crate) protected_seconds: u64,
    pub(crate) kept: bool,
    pub(crate) frozen: bool,
    pub(crate) orphaned: bool,
    /// Number of the process that created it.
    pub(crate) creator: u32,
    /// When it was created, in seconds since 1970.
    pub(crate) created: u64,
    /// Whether a process holds a lease. Not serialized: every item has this field itself.
    #[serde(skip)]
    pub(crate) attached: bool,
}

impl CountedReport {
    pub(crate) fn new(inspection: &Inspection) -> Self {
        Self {
            dtype: inspection.dtype.to_string(),
            shape: inspection.shape.clone(),
            order: inspection.order.to_string(),
            strategy: SharingStrategy::FileSystem.as_str(),
            bytes: inspection.bytes,
            refcount: inspection.refcount,
            in_flight: inspection.in_flight,
            protected_seconds: units::seconds_left(inspection.protected_for),
            kept: inspection.is_kept,
            frozen: inspection.is_frozen,
            orphaned: inspection.is_orphaned(),
            creator: inspection.creator,
            created: inspection.created.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs(),
            attached: inspection.is_attached,
        }
    }

    /// Returns its users in a few words: "2", "2+1 in flight", "kept", "orphaned".
    pub(crate) fn users(&self) -> String {
        let in_flight = if self.in_flight > 0 { format!("{} in flight", self.in_flight) } else { String::new() };
        // If no process is attached, the reference count only counts killed processes.
        let users = match (self.attached, self.in_flight) {
            (true, 0) => self.refcount.to_string(),
            (true, _) => format!("{}+{in_flight}", self.refcount),
            (false, _) => in_flight,
        };
        match (self.kept, users.is_empty()) {
            (true, true) => "kept".to_owned(),
            (true, false) => format!("{users}, kept"),
            (false, true) => "orphaned".to_owned(),
            (false, false) => users,
        }
    }

    /// Returns its type and shape, for a table: "counted <f4 30x40".
    pub(crate) fn summary(&self) -> String {
        units::array(if self.frozen { "frozen" } else { "counted" }, &self.dtype, &self.shape)
    }

    /// Returns all facts but its holders, for `info`.
    pub(crate) fn facts(&self) -> Vec<(&'static str, String)> {
        let in_flight = match self.in_flight {
            0 => "no handle".to_owned(),
            count => {
                let left = units::left(Duration::from_secs(self.protected_seconds));
                format!("{}, protecting it for {left} more", units::count(count, "handle"))
            }
        };
        let kept = if self.kept {
            "yes: only `ndshm unlink` removes the name"
        } else {
            "no: the last handle removes the name"
        };
        let orphaned =
            if self.orphaned { "yes: no process uses it and none will; `ndshm gc` removes it" } else { "no" };
        let made = Duration::from_secs(self.created);
        let age = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH + made).unwrap_or_default();
        vec![
            ("dtype", self.dtype.clone()),
            ("shape", units::shape_in_order(&self.shape, &self.order)),
            ("strategy", format!("{} (shared by name)", self.strategy)),
            (
                "refcount",
                format!("{}, including those of killed processes", units::count(self.refcount as usize, "handle")),
            ),
            ("in flight", in_flight),
            ("kept", kept.to_owned()),
            ("frozen", if self.frozen { "yes: no process can write to it any more" } else { "no" }.to_owned()),
            ("orphaned", orphaned.to_owned()),
            ("created", format!("{} ago by process {}", units::age(age), self.creator)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(attached: bool, refcount: u32, in_flight: usize, kept: bool) -> CountedReport {
        CountedReport {
            dtype: "<f4".to_owned(),
            shape: vec![2, 3],
            order: "C".to_owned(),
            strategy: "file_system",
            bytes: 24,
            refcount,
            in_flight,
            protected_seconds: 1,
            kept,
            frozen: false,
            orphaned: !attached && !kept && in_flight == 0,
            creator: 1,
            created: 0,
            attached,
        }
    }

    #[test]
    fn users_are_described_in_a_few_words() {
        let users = |attached, refcount, in_flight, kept| counted(attached, refcount, in_flight, kept).users();
        assert_eq!(users(true, 2, 0, false), "2");
        assert_eq!(users(true, 2, 1, false), "2+1 in flight");
        assert_eq!(users(true, 2, 1, true), "2+1 in flight, kept");
        assert_eq!(users(false, 2, 1, false), "1 in flight", "dead processes are not users");
        assert_eq!(users(false, 0, 0, true), "kept");
        assert_eq!(users(false, 1, 0, false), "orphaned");
    }

    #[test]
    fn a_long_shape_becomes_a_number_of_axes() {
        let summary = |shape: &[usize]| CountedReport { shape: shape.to_vec(), ..counted(true, 1, 0, false) }.summary();
        assert_eq!(summary(&[512, 512, 128]), "counted <f4 512x512x128");
        assert_eq!(summary(&[4096, 4096, 4096]), "counted <f4 3 axes");
        assert_eq!(summary(&[]), "counted <f4 one value");
        assert_eq!(CountedReport { frozen: true, ..counted(true, 1, 0, false) }.summary(), "frozen <f4 2x3");
    }
}
