//! What is in the default directory: its arrays, its unfinished renderbuffers, and its orphans, which are removed.

use std::collections::BTreeMap;

use ndarray_shm::backend::EntryKind;
use ndarray_shm::counted::Reclaim;
use ndarray_shm::render::{self, Ledger};
use ndarray_shm::{Error, ErrorKind, Location, Result, default_directory};
use ndarray_shm_volume::Found;
use pyo3::prelude::*;

use crate::errors::exception;
use crate::memory::{self, ElementType};

/// Returns name, bytes, dtype, shape and order of the plain arrays in the default directory. Without a description, the
/// last three are None.
#[pyfunction]
#[allow(clippy::type_complexity)] // a row of Python's `ls`
pub(crate) fn listing(
    py: Python<'_>,
) -> PyResult<Vec<(String, u64, Option<&'static str>, Option<Vec<usize>>, Option<&'static str>)>> {
    let rows = || {
        let directory = default_directory()?;
        let mut rows = Vec::new();
        for entry in directory.list()? {
            let found = Found::at(&directory, &entry);
            if found.other_use(&entry).is_some() {
                continue;
            }
            rows.push(match found {
                Found::Plain(Some(found)) => (
                    entry.name,
                    entry.len,
                    Some(ElementType::described(&found).as_str()),
                    Some(found.shape().to_vec()),
                    Some(memory::name_of_order(found.order())),
                ),
                Found::Plain(None) | Found::Unknown(Error { kind: ErrorKind::PermissionDenied { .. }, .. }) => {
                    (entry.name, entry.len, None, None, None)
                }
                _ => continue,
            });
        }
        rows.sort();
        Ok(rows)
    };
    py.detach(rows).map_err(|error| exception(py, &error))
}

/// Returns name, bytes, dtype, shape, order, fingerprint, numbers of finished and of all chunks, and whether a process
/// is attached, of the unfinished renderbuffers in the default directory. What cannot be read is None: a killed process
/// has left one file of two, or the ledger is damaged.
#[pyfunction]
pub(crate) fn partial_listing(py: Python<'_>) -> PyResult<Vec<PartialRow>> {
    let rows = || {
        let directory = default_directory()?;
        let mut sizes = BTreeMap::new();
        for entry in directory.list()? {
            if let (EntryKind::Partial | EntryKind::Ledger, Some(location)) = (entry.kind, entry.location()) {
                let bytes = if entry.kind == EntryKind::Partial { entry.len } else { 0 };
                *sizes.entry(location.to_string()).or_insert(0) += bytes;
            }
        }
        let row = |(name, bytes): (String, u64)| {
            let location = Location::new(&name)?;
            let ledger = render::ledger(&directory, &location).ok().map(|found| {
                let Ledger { dtype, order, shape, fingerprint, done, total, .. } = found;
                (dtype.as_str(), shape, memory::name_of_order(order), fingerprint, (done, total))
            });
            let is_attached = render::attached(&directory, &location).unwrap_or(false);
            Ok((name, bytes, ledger, is_attached))
        };
        sizes.into_iter().map(row).collect::<Result<Vec<_>>>()
    };
    py.detach(rows).map_err(|error| exception(py, &error))
}

/// A row of `partial_listing`: name, bytes, what the ledger says, and whether a process is attached.
type PartialRow = (String, u64, Option<LedgerRow>, bool);

/// What a ledger says: dtype, shape, order, fingerprint, and the numbers of finished and of all chunks.
type LedgerRow = (&'static str, Vec<usize>, &'static str, String, (usize, usize));

/// Removes the names of orphans in the default directory, and returns them.
#[pyfunction]
pub(crate) fn reclaim(py: Python<'_>, dry_run: bool, in_flight: bool, caches: bool) -> PyResult<Vec<String>> {
    let run = || {
        let options = Reclaim::new().dry_run(dry_run).in_flight(in_flight).caches(caches);
        let found = ndarray_shm_volume::reclaim(options, &default_directory()?)?;
        let removed = found.reclaimed.removed.into_iter().map(|removed| removed.name);
        Ok(removed.chain(found.leftovers.into_iter().map(|leftover| leftover.name)).collect())
    };
    py.detach(run).map_err(|error: Error| exception(py, &error))
}
