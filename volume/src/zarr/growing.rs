//! Arrays of version 3 that grow along their first axis, a row at a time. Chunks are stored before the shape that
//! includes them, so that a reader, or a process that goes on after a kill, never finds a row that is not complete.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use ndarray_shm::{Element, Order, with_element};
use serde_json::Value;

use super::array::ZarrArray;
use super::create::{check, metadata_v3};
use super::document::{Document, DocumentKind, V3};
use crate::description::NewVolume;
use crate::error::{Error, Result, SourceFailure};
use crate::scratch::{Elements, Scratch};
use crate::store::{LocalStore, Store};
use crate::volume::{ChunkSink as _, ChunkSource, Gather};

/// An array in a directory, which one process makes longer.
#[derive(Debug)]
pub(crate) struct GrowingArray {
    store: Arc<dyn Store>,
    /// The document as it is stored, but for the shape.
    json: Value,
    name: String,
    /// Rows that readers see.
    rows: u64,
    /// Elements of the rows behind the stored whole chunks, those that readers do not see yet included.
    tail: Vec<u8>,
    /// The first row in `tail`, with which a chunk begins.
    tail_begin: u64,
    /// Bytes of a row.
    row: usize,
    rows_per_chunk: u64,
}

impl GrowingArray {
    /// Opens the array in this directory, or creates one without rows. The first length of `new` does not matter, and
    /// each chunk must have whole rows.
    pub(crate) fn open(directory: &Path, new: &NewVolume, attributes: &Value) -> Result<Self> {
        let store: Arc<dyn Store> = Arc::new(LocalStore::durable(directory));
        let name = directory.display().to_string();
        check(new).map_err(|reason| Error::new_volume(&name, reason))?;
        let mut json = metadata_v3(new);
        json["shape"][0] = 0.into();
        // One directory with all chunks: it is what has to be on the disk before the next step.
        json["chunk_key_encoding"]["configuration"]["separator"] = ".".into();
        json["attributes"] = attributes.clone();
        let row = new.shape[1..].iter().try_fold(new.dtype.size(), |size, length| {
            usize::try_from(*length).ok().and_then(|length| size.checked_mul(length))
        });
        let row =
            row.ok_or_else(|| Error::new_volume(&name, "a row has more bytes than there is memory".to_owned()))?;
        let mut array = Self {
            store,
            json,
            name,
            rows: 0,
            tail: Vec::new(),
            tail_begin: 0,
            row,
            rows_per_chunk: new.chunk_shape[0],
        };
        match array.store.get(V3)? {
            None => array.put_document()?,
            Some(found) => {
                let found: Value = serde_json::from_slice(&found.bytes).unwrap_or(Value::Null);
                let rows = found["shape"][0].as_u64();
                array.json["shape"][0] = rows.into();
                if rows.is_none() || found != array.json {
                    let reason = "this is not the array of this recording: choose another place";
                    return Err(Error::volume(SourceFailure::AlreadyExists, array.name, reason));
                }
                array.rows = rows.unwrap_or(0);
            }
        }
        Ok(array)
    }

    /// Returns how many rows readers see.
    pub(crate) fn rows(&self) -> u64 {
        self.rows
    }

    /// Returns the elements of rows, native endian.
    pub(crate) fn read(&self, rows: Range<u64>) -> Result<Vec<u8>> {
        let array = self.array(self.rows)?;
        with_element!(array.meta.dtype, T => {
            Ok(bytemuck::cast_slice(&read_rows::<T>(&array, rows)?).to_vec())
        }, else => unreachable!("all features of elements are enabled"))
    }

    /// Makes ready for rows behind this one. The rows from there on are forgotten when the next ones are stored.
    pub(crate) fn go_on(&mut self, rows: u64) -> Result<()> {
        self.tail_begin = rows - rows % self.rows_per_chunk;
        self.tail = self.read(self.tail_begin..rows)?;
        self.rows = rows;
        Ok(())
    }

    /// Adds a row, which readers do not see yet. `write` appends its elements, native endian.
    pub(crate) fn push(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut self.tail);
        debug_assert_eq!(self.tail.len() % self.row.max(1), 0, "a whole row");
    }

    /// Stores the chunks of all rows, of which there are so many. Readers do not see them before [`show`](Self::show).
    /// After an error it may be called again.
    pub(crate) fn store_rows(&mut self, rows: u64) -> Result<()> {
        let first = self.tail_begin;
        let array = self.array(rows)?;
        let from = Rows { first, row: self.row, bytes: &self.tail };
        let mut whole = first;
        for start in (first..rows).step_by(usize::try_from(self.rows_per_chunk).unwrap_or(usize::MAX)) {
            let end = (start + self.rows_per_chunk).min(rows);
            let region = region(&array.meta.shape, start..end);
            array.store(&region, array.encode(&region, &from)?)?;
            if end == start + self.rows_per_chunk {
                whole = end;
            }
        }
        self.tail.drain(..usize::try_from(whole - first).map_or(0, |whole| whole * self.row));
        self.tail_begin = whole;
        Ok(())
    }

    /// Lets readers see so many rows, which were stored.
    pub(crate) fn show(&mut self, rows: u64) -> Result<()> {
        self.json["shape"][0] = rows.into();
        self.put_document()?;
        self.rows = rows;
        Ok(())
    }

    fn put_document(&self) -> Result<()> {
        let text = serde_json::to_vec_pretty(&self.json).unwrap_or_default();
        self.store.put(V3, text, false)
    }

    /// Returns the array as it is with so many rows.
    fn array(&self, rows: u64) -> Result<ZarrArray> {
        let mut json = self.json.clone();
        json["shape"][0] = rows.into();
        ZarrArray::open(&self.store, &Document::planned(&self.store, DocumentKind::ArrayV3, json))
    }
}

/// Returns the elements of rows of an array, in C order.
///
/// # Errors
///
/// Those of reading a chunk. A chunk that is not there is one too, because rows that are shown were stored.
pub(crate) fn read_rows<T: Element>(array: &dyn ChunkSource, rows: Range<u64>) -> Result<Vec<T>> {
    let (mut elements, mut scratch) = (Vec::new(), Scratch::new());
    let (meta, mut from) = (array.meta(), rows.start);
    while from < rows.end {
        let to = (from - from % meta.chunk_shape[0] + meta.chunk_shape[0]).min(rows.end);
        let region = region(&meta.shape, from..to);
        array.read(&region, &mut scratch)?;
        match scratch.elements::<T>(&region)? {
            Elements::Block(view) => elements.extend(view.iter()),
            Elements::Missing | Elements::Fill(_) => {
                let reason = format!("the chunk of the rows from {from} on is not there");
                return Err(Error::volume(SourceFailure::Damaged, array.identity(), reason));
            }
        }
        from = to;
    }
    Ok(elements)
}

/// Returns the region of rows in an array of this shape.
fn region(shape: &[u64], rows: Range<u64>) -> Vec<Range<i64>> {
    let rest = shape.iter().skip(1).map(|length| 0..length.cast_signed());
    std::iter::once(rows.start.cast_signed()..rows.end.cast_signed()).chain(rest).collect()
}

/// Rows in memory.
struct Rows<'a> {
    first: u64,
    row: usize,
    bytes: &'a [u8],
}

impl Gather for Rows<'_> {
    fn gather(&self, region: &[Range<i64>], _order: Order, bytes: &mut Vec<u8>) -> Result<()> {
        let at = |row: i64| usize::try_from(row.cast_unsigned() - self.first).map_or(usize::MAX, |row| row * self.row);
        bytes.clear();
        bytes.extend_from_slice(&self.bytes[at(region[0].start)..at(region[0].end)]);
        Ok(())
    }
}

/// Creates a group, and returns its attributes; or those of the group that is there.
pub(crate) fn group(directory: &Path, attributes: &Value) -> Result<Value> {
    let store = LocalStore::durable(directory);
    let name = || directory.display().to_string();
    if store.get(V3)?.is_none() && !store.list("")?.is_empty() {
        let reason = "there is something already: choose another place, or remove it first";
        return Err(Error::volume(SourceFailure::AlreadyExists, name(), reason));
    }
    let json = serde_json::json!({"zarr_format": 3, "node_type": "group", "attributes": attributes});
    store.put_new(V3, serde_json::to_vec_pretty(&json).unwrap_or_default())?;
    attributes_of(&store)?.ok_or_else(|| {
        let reason = "there is something else already: choose another place";
        Error::volume(SourceFailure::AlreadyExists, name(), reason)
    })
}

/// Returns the attributes of the group in this directory, if there is one.
pub(crate) fn attributes(directory: &Path) -> Result<Option<Value>> {
    attributes_of(&LocalStore::new(directory))
}

fn attributes_of(store: &LocalStore) -> Result<Option<Value>> {
    let found = store.get(V3)?.map(|found| serde_json::from_slice::<Value>(&found.bytes).unwrap_or(Value::Null));
    Ok(found.filter(|found| found["node_type"] == "group").map(|mut group| group["attributes"].take()))
}
