//! Streams on the disk: a Zarr group with an array of frames, and beside it their numbers, times and values. The arrays
//! grow along their first axis.
//!
//! Every write is on the disk before the next one begins: first the new chunks, then the lengths of the arrays beside
//! the frames, then that of the frames. So a row of `frames` that readers see has its row in all others, and frames up
//! to the last one of `frames` can be acknowledged: a kill or a power failure loses none of them.

use std::collections::BTreeMap;
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use ndarray::IxDyn;
use ndarray_shm::stream::{Frame, MetaField, StreamCursor};
use ndarray_shm::{DType, Element, Order, with_element};
use serde_json::{Value, json};

use crate::description::{Encoding, NewVolume};
use crate::error::{Error, Result, SourceFailure};
use crate::notes::VolumeNotes;
use crate::store::url::VolumeFormat;
use crate::store::{LocalStore, Store};
use crate::volume::ChunkSource;
use crate::zarr::{self, GrowingArray};

/// Bytes of the frames in a chunk, unless the frames are larger or the stream has few slots.
const CHUNK: usize = 16 << 20;

/// Rows in a chunk of numbers, times and values.
const SMALL: u64 = 1024;

/// How a recording stores frames.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct RecordingOptions {
    /// Frames in a chunk, at most half of the stream's slots: so many are not acknowledged until they are stored.
    /// `None`: as many as 16 MiB have, or half of the slots; in a recording that goes on as many as before.
    pub frames_per_chunk: Option<usize>,
    /// Encoding of the frames: raw, gzip, zstd or blosc. `None`: raw; in a recording that goes on as before.
    pub encoding: Option<Encoding>,
}

/// The frames of a stream in a directory.
///
/// It has the arrays `frames`, `number`, `time` (when each frame was committed, in nanoseconds since 1970) and
/// `uptime` (the same since the machine was started, -1 if unknown), and one for each named value, `meta_NAME`.
///
/// ```
/// use std::time::Duration;
///
/// use ndarray_shm::ndarray::IxDyn;
/// use ndarray_shm::stream::{Backpressure, StreamCursor, StreamWriter};
/// use ndarray_shm_volume::{Recorded, Recording, RecordingOptions};
///
/// let name = format!("recording-example-{}", std::process::id());
/// let mut writer = StreamWriter::<u16, _>::create(&*name, (4, 6), 8)?;
/// let mut cursor = StreamCursor::<u16, IxDyn>::open(&*name, "disk", Backpressure::Wait)?;
///
/// let mut frame = writer.frame()?;
/// frame.view_mut().fill(7);
/// frame.commit()?;
///
/// let place = std::env::temp_dir().join(&name);
/// let mut recording = Recording::open(&place, &cursor, &RecordingOptions::default())?;
/// recording.push(&cursor.next_wait(Duration::from_secs(1))?);
/// cursor.acknowledge(recording.store()?)?; // the writer may overwrite it now
///
/// let recorded = Recorded::open(&place)?;
/// assert_eq!(recorded.read::<u16>(0..1)?, [7; 24]);
/// # std::fs::remove_dir_all(&place)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Recording {
    place: PathBuf,
    frames: GrowingArray,
    number: GrowingArray,
    time: GrowingArray,
    uptime: GrowingArray,
    /// With the place and the length in bytes of the values in a frame's.
    values: Vec<(Range<usize>, GrowingArray)>,
    frames_per_chunk: u64,
    pending: u64,
    /// Number of the last frame that was added.
    newest: u64,
    /// Number of the last frame that was stored.
    last: u64,
}

impl Recording {
    /// Begins a recording of a cursor's stream, or goes on with one that the same cursor of the same stream has begun.
    ///
    /// # Errors
    ///
    /// - [`Source`](Error::Source): something else is at this place, or the recording of another stream or cursor;
    /// - [`NewVolume`](Error::NewVolume): Zarr cannot store such frames, or the options do not fit the stream or what
    ///   was recorded before;
    /// - [`Store`](Error::Store): the place cannot be written.
    pub fn open<T: Element>(
        place: impl AsRef<Path>,
        cursor: &StreamCursor<T, IxDyn>,
        options: &RecordingOptions,
    ) -> Result<Self> {
        let place = place.as_ref();
        let reader = cursor.reader();
        let shape: Vec<u64> = reader.layout().shape().iter().map(|length| *length as u64).collect();
        let most = reader.slots() / 2;
        let bytes = reader.layout().shape().iter().product::<usize>().saturating_mul(size_of::<T>());
        let refused = |reason: String| Error::new_volume(place.display(), reason);
        let count = options.frames_per_chunk.unwrap_or_else(|| (CHUNK / bytes.max(1)).clamp(1, most.max(1)));
        if count == 0 || count > most.max(1) {
            return Err(refused(format!(
                "{count} frames in a chunk, but the stream has {} slots: choose 1 to {}, or create it with more slots",
                reader.slots(),
                most.max(1)
            )));
        }
        let encoding = options.encoding.unwrap_or(Encoding::Raw);
        let wanted = json!({
            "stream": reader.location().as_str(),
            "id": format!("{:032x}", reader.id()),
            "cursor": cursor.name(),
            "order": reader.layout().order().to_string(),
            "frames_per_chunk": count,
            "encoding": encoding.name(),
            "notes": reader.description().notes().collect::<BTreeMap<_, _>>(),
        });
        if let Some(field) = reader.meta_fields().iter().find(|field| !is_file_name(&field.name)) {
            return Err(refused(format!("the value {:?} cannot be the name of a directory: rename it", field.name)));
        }
        let notes = VolumeNotes::read(reader.description(), reader.layout().shape());
        let planned = new_array("frames", T::DTYPE, &shape, count as u64, encoding, &notes);
        zarr::check(&planned).map_err(refused)?;
        let found = zarr::group(place, &json!({"ndshm": wanted}))?["ndshm"].take();
        for key in ["id", "cursor"] {
            if found[key] != wanted[key] {
                let reason = match found["stream"].as_str() {
                    Some(stream) => format!(
                        "this is a recording of the stream `{stream}` with the cursor `{}`, and not of this stream with this cursor: \
                         choose another place",
                        found["cursor"].as_str().unwrap_or_default()
                    ),
                    None => "there is something else already: choose another place".to_owned(),
                };
                return Err(Error::volume(SourceFailure::AlreadyExists, place.display(), reason));
            }
        }
        let is_other = |key: &str, is_given: bool| is_given && found[key] != wanted[key];
        if is_other("frames_per_chunk", options.frames_per_chunk.is_some())
            || is_other("encoding", options.encoding.is_some())
        {
            return Err(refused(format!(
                "the recording was begun with {} frames in a chunk and the encoding {}, which cannot be changed: leave them out",
                found["frames_per_chunk"], found["encoding"]
            )));
        }
        let frames_per_chunk = found["frames_per_chunk"].as_u64().unwrap_or(1).max(1);
        let encoding = found["encoding"].as_str().and_then(Encoding::named).unwrap_or(Encoding::Raw);
        Self::with_arrays::<T>(place, &shape, &notes, reader.meta_fields(), frames_per_chunk, encoding)
    }

    fn with_arrays<T: Element>(
        place: &Path,
        shape: &[u64],
        notes: &VolumeNotes,
        fields: &[MetaField],
        frames_per_chunk: u64,
        encoding: Encoding,
    ) -> Result<Self> {
        let array = |name: &str, dtype, rest: &[u64], rows, encoding, attributes: Value| {
            let new = new_array(name, dtype, rest, rows, encoding, notes);
            GrowingArray::open(&place.join(name), &new, &attributes)
        };
        let small = |name: &str, dtype, attributes| array(name, dtype, &[], SMALL, Encoding::Raw, attributes);
        let of_frames = match &notes.resolution[..] {
            [] => json!({}),
            resolution => {
                let unit = notes.unit.as_deref().unwrap_or_default();
                let words = notes.axis_words(shape.len());
                let units = zarr::dimension_units(resolution, unit, &words, shape.len());
                json!({"dimension_units": std::iter::once(Value::Null).chain(units).collect::<Value>()})
            }
        };
        let since_1970 = json!({"units": "nanoseconds since 1970-01-01", "calendar": "proleptic_gregorian"});
        let mut values = Vec::new();
        for field in fields {
            let (name, count) = (format!("meta_{}", field.name), field.count as u64);
            let rest = if count == 1 { &[][..] } else { &[count] };
            let bytes = field.offset..field.offset + field.count * field.dtype.size();
            values.push((bytes, array(&name, field.dtype, rest, SMALL, Encoding::Raw, json!({}))?));
        }
        let mut recording = Self {
            place: place.to_owned(),
            frames: array("frames", T::DTYPE, shape, frames_per_chunk, encoding, of_frames)?,
            number: small("number", DType::U64, json!({}))?,
            time: small("time", DType::I64, since_1970)?,
            uptime: small("uptime", DType::I64, json!({"unit": "ns"}))?,
            values,
            frames_per_chunk,
            pending: 0,
            newest: 0,
            last: 0,
        };
        let rows = recording.frames.rows();
        for array in recording.arrays() {
            if array.rows() < rows {
                let reason = "an array beside the frames is shorter than they are: restore it, or choose another place";
                return Err(Error::volume(SourceFailure::Damaged, place.display(), reason));
            }
            array.go_on(rows)?;
        }
        if rows > 0 {
            recording.last = recording.numbers(rows - 1..rows)?.first().copied().unwrap_or(0);
        }
        Ok(recording)
    }

    /// Returns the arrays, the frames last.
    fn arrays(&mut self) -> impl Iterator<Item = &mut GrowingArray> {
        let beside = [&mut self.number, &mut self.time, &mut self.uptime].into_iter();
        beside.chain(self.values.iter_mut().map(|(_, array)| array)).chain(std::iter::once(&mut self.frames))
    }

    fn numbers(&self, rows: Range<u64>) -> Result<Vec<u64>> {
        let bytes = self.number.read(rows)?;
        Ok(bytes.chunks_exact(8).map(bytemuck::pod_read_unaligned).collect())
    }

    /// Returns the directory.
    pub fn place(&self) -> &Path {
        &self.place
    }

    /// Returns how many frames readers see.
    pub fn frames(&self) -> u64 {
        self.frames.rows()
    }

    /// Returns how many frames were added and not stored.
    pub fn pending(&self) -> u64 {
        self.pending
    }

    /// Returns the number of the last frame that was stored; 0 before the first.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Adds a copy of a frame, and returns whether a chunk is full, so that it is time to [store](Self::store).
    pub fn push<T: Element>(&mut self, frame: &Frame<T, IxDyn>) -> bool {
        let since_1970 = frame.wall_time().duration_since(SystemTime::UNIX_EPOCH).map_or(0, nanoseconds);
        let meta = frame.meta_bytes();
        self.frames.push(|bytes| {
            let view = frame.view();
            match view.as_slice() {
                Some(elements) => bytes.extend_from_slice(bytemuck::cast_slice(elements)),
                None => view.iter().for_each(|element| bytes.extend_from_slice(bytemuck::bytes_of(element))),
            }
        });
        self.number.push(|bytes| bytes.extend_from_slice(&frame.number().to_ne_bytes()));
        self.time.push(|bytes| bytes.extend_from_slice(&since_1970.to_ne_bytes()));
        self.uptime.push(|bytes| bytes.extend_from_slice(&frame.time().map_or(-1, nanoseconds).to_ne_bytes()));
        for (range, array) in &mut self.values {
            array.push(|bytes| bytes.extend_from_slice(&meta[range.clone()]));
        }
        self.newest = frame.number();
        self.pending += 1;
        (self.frames() + self.pending).is_multiple_of(self.frames_per_chunk)
    }

    /// Stores all frames that were added, so that they survive a power failure, and returns the number of the last one,
    /// up to which frames can be acknowledged.
    ///
    /// # Errors
    ///
    /// [`Store`](Error::Store): the disk is full, for example. The recording goes on with the last frame that was
    /// stored before when it is opened again, or with all of them if this is called again and succeeds.
    pub fn store(&mut self) -> Result<u64> {
        if self.pending == 0 {
            return Ok(self.last);
        }
        let rows = self.frames.rows() + self.pending;
        self.arrays().try_for_each(|array| array.store_rows(rows))?;
        self.arrays().try_for_each(|array| array.show(rows))?;
        self.pending = 0;
        self.last = self.newest;
        Ok(self.last)
    }

    /// Returns the numbers that are missing between the first frame and the last one.
    ///
    /// # Errors
    ///
    /// [`Store`](Error::Store) or [`Chunk`](Error::Chunk): the numbers cannot be read.
    pub fn missing(&self) -> Result<Vec<RangeInclusive<u64>>> {
        let (mut missing, mut before) = (Vec::new(), None);
        for number in self.numbers(0..self.frames())? {
            if let Some(before) = before.filter(|before| number > before + 1) {
                missing.push(before + 1..=number - 1);
            }
            before = Some(number);
        }
        Ok(missing)
    }
}

/// A recording, for reading.
#[derive(Debug)]
pub struct Recorded {
    stream: String,
    order: Order,
    notes: BTreeMap<String, String>,
    frames: Box<dyn ChunkSource>,
    time: Vec<i64>,
    values: Vec<(String, Box<dyn ChunkSource>)>,
}

impl Recorded {
    /// Opens the recording in this directory, with the frames that it has now.
    ///
    /// # Errors
    ///
    /// [`Source`](Error::Source): there is no recording. [`Store`](Error::Store) or [`Chunk`](Error::Chunk): it cannot
    /// be read.
    pub fn open(place: impl AsRef<Path>) -> Result<Self> {
        let place = place.as_ref();
        let attributes = zarr::attributes(place)?.map(|mut attributes| attributes["ndshm"].take());
        let found = attributes.filter(|found| found["stream"].is_string()).ok_or_else(|| {
            Error::volume(SourceFailure::Absent, place.display(), "this is no recording: `ndshm record` makes one")
        })?;
        let open = |name: &str| {
            let store: Arc<dyn Store> = Arc::new(LocalStore::new(&place.join(name)));
            zarr::open(&store, 0)
        };
        // The frames first: the other arrays have at least their rows.
        let frames = open("frames")?;
        let time = zarr::read_rows(&*open("time")?, 0..frames.meta().shape[0])?;
        let mut values = Vec::new();
        for name in LocalStore::new(place).list("")? {
            if let Some(value) = name.strip_prefix("meta_").and_then(|name| name.strip_suffix('/')) {
                values.push((value.to_owned(), open(name.trim_end_matches('/'))?));
            }
        }
        let order = if found["order"] == "F" { Order::F } else { Order::C };
        let text = |(key, text): (&String, &Value)| Some((key.clone(), text.as_str()?.to_owned()));
        let notes = found["notes"].as_object().into_iter().flatten().filter_map(text).collect();
        let stream = found["stream"].as_str().unwrap_or_default().to_owned();
        Ok(Self { stream, order, notes, frames, time, values })
    }

    /// Returns the name of the stream.
    pub fn stream(&self) -> &str {
        &self.stream
    }

    /// Returns the element type of the frames.
    pub fn dtype(&self) -> DType {
        self.frames.meta().dtype
    }

    /// Returns the shape of a frame.
    pub fn shape(&self) -> Vec<usize> {
        self.frames.meta().shape[1..].iter().map(|length| usize::try_from(*length).unwrap_or(usize::MAX)).collect()
    }

    /// Returns the order of a frame's elements in the stream.
    pub fn order(&self) -> Order {
        self.order
    }

    /// Returns the notes of the stream, as pairs of key and text: names of the axes, a resolution.
    pub fn notes(&self) -> impl Iterator<Item = (&str, &str)> {
        self.notes.iter().map(|(key, text)| (key.as_str(), text.as_str()))
    }

    /// Returns the named values of a frame: name, type and number.
    pub fn values(&self) -> Vec<(&str, DType, usize)> {
        let count = |source: &dyn ChunkSource| {
            source.meta().shape.get(1).map_or(1, |count| usize::try_from(*count).unwrap_or(usize::MAX))
        };
        self.values.iter().map(|(name, source)| (name.as_str(), source.meta().dtype, count(&**source))).collect()
    }

    /// Returns when each frame was committed, in nanoseconds since 1970.
    pub fn times(&self) -> &[i64] {
        &self.time
    }

    /// Returns how many frames a chunk has: so many are best read at once.
    pub fn frames_per_chunk(&self) -> usize {
        usize::try_from(self.frames.meta().chunk_shape[0]).unwrap_or(usize::MAX)
    }

    /// Returns the elements of frames, one frame after the other, each in C order.
    ///
    /// # Errors
    ///
    /// [`Chunk`](Error::Chunk) or [`Store`](Error::Store): a chunk cannot be read.
    pub fn read<T: Element>(&self, frames: Range<usize>) -> Result<Vec<T>> {
        zarr::read_rows(&*self.frames, frames.start as u64..frames.end as u64)
    }

    /// Returns the bytes of a named value in frames, native endian, one frame after the other. `number` is its place in
    /// [`values`](Self::values).
    ///
    /// # Errors
    ///
    /// Those of [`read`](Self::read).
    ///
    /// # Panics
    ///
    /// There are fewer values.
    pub fn read_value(&self, number: usize, frames: Range<usize>) -> Result<Vec<u8>> {
        let (source, rows) = (&*self.values[number].1, frames.start as u64..frames.end as u64);
        with_element!(source.meta().dtype, T => {
            Ok(bytemuck::cast_slice(&zarr::read_rows::<T>(source, rows)?).to_vec())
        }, else => unreachable!("all features of elements are enabled"))
    }
}

/// Returns the description of an array without rows. Every axis has a name, which makes the group a data set of xarray:
/// those of a frame have the stream's, if it says them.
fn new_array(
    name: &str,
    dtype: DType,
    rest: &[u64],
    rows_per_chunk: u64,
    encoding: Encoding,
    notes: &VolumeNotes,
) -> NewVolume {
    let lengths = |first| std::iter::once(first).chain(rest.iter().copied()).collect::<Vec<u64>>();
    let mut new = NewVolume::new(VolumeFormat::Zarr, &lengths(0), &lengths(rows_per_chunk), dtype);
    new.encoding = encoding;
    let is_taken = notes.axes.iter().flatten().any(|axis| axis == "frame");
    let of_stream = |axis: usize| notes.axes.get(axis - 1).cloned().flatten().filter(|_| name == "frames");
    let axis = |axis: usize| match axis {
        0 => if is_taken { "recorded_frame" } else { "frame" }.to_owned(),
        _ => of_stream(axis).unwrap_or_else(|| format!("{name}_dim_{axis}")),
    };
    new.axes = (0..new.shape.len()).map(axis).collect();
    new
}

fn is_file_name(name: &str) -> bool {
    !name.contains(|letter: char| matches!(letter, '/' | '\\' | ':') || letter.is_control())
}

fn nanoseconds(time: std::time::Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use ndarray_shm::stream::{Backpressure, StreamOptions, StreamWriter};

    use super::*;

    #[test]
    fn failed_store_loses_no_frame_and_may_be_repeated() {
        let directory = tempfile::tempdir().expect("a directory");
        let (shared, place) = (directory.path().join("shared"), directory.path().join("out.zarr"));
        fs::create_dir(&shared).expect("a directory");
        let options = StreamOptions::new().directory(ndarray_shm::Directory::new("emulated", &shared));
        let mut writer: StreamWriter<u16, IxDyn> = options.create("camera", IxDyn(&[4]), 8).expect("a stream");
        let mut cursor = options.open_cursor::<u16, IxDyn>("camera", "disk", Backpressure::Wait).expect("a cursor");
        let mut recording = Recording::open(&place, &cursor, &RecordingOptions::default()).expect("a new one");
        // A directory in the place of a document: writing it fails.
        let in_the_way = ["number/zarr.json", "frames/zarr.json", "frames/c.0.0", "number/c.0", ""];
        let mut stored = 0;
        for (turn, name) in in_the_way.iter().cycle().take(20).enumerate() {
            for _ in 0..=turn % 3 {
                let mut frame = writer.frame().expect("a slot");
                let number = frame.number();
                frame.view_mut().fill(u16::try_from(number).expect("small"));
                frame.commit().expect("committed");
                recording.push(&cursor.next().expect("it was committed").expect("a frame"));
                stored = number;
            }
            let (path, aside) = (place.join(name), place.join("aside"));
            if !name.is_empty() && path.is_file() {
                fs::rename(&path, &aside).expect("moved");
                fs::create_dir_all(path.join("not empty")).expect("made");
                // Later chunks have other names.
                let failed = recording.store().map_err(|error| error.to_string());
                assert!(failed.is_err() || name.contains("/c.0"), "{name}: {failed:?}");
                fs::remove_dir_all(&path).expect("removed");
                fs::rename(&aside, &path).expect("moved back");
            }
            cursor.acknowledge(recording.store().expect("stored")).expect("it was returned");
            assert_eq!((recording.last(), recording.frames(), recording.pending()), (stored, stored, 0));
            let found = Recorded::open(&place).expect("a recording");
            let rows = usize::try_from(stored).expect("small");
            let expected = (1..=stored).flat_map(|number| [u16::try_from(number).expect("small"); 4]);
            assert_eq!(found.read::<u16>(0..rows).expect("read"), expected.collect::<Vec<u16>>());
            assert_eq!(recording.missing().expect("read"), []);
        }
    }
}
