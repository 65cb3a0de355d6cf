//! What a new volume takes over from an array's notes, and where in a volume an array belongs by them.
//!
//! Knows which format keeps what, and no document of any format. Opens and writes nothing.

use ndarray_shm::array::Description;
use ndarray_shm::{DType, Order};

use crate::bbox::Bbox;
use crate::description::{Encoding, NewVolume};
use crate::error::{Error, Result};
use crate::notes::{self, VolumeNotes};
use crate::store::url::{VolumeFormat, VolumeUrl};
use crate::volume::{ChunkSource, VolumeKind, VolumeMeta, is_channels, is_time};

/// Number of spatial axes of a Precomputed volume, and their names.
const SPACE: [&str; 3] = ["x", "y", "z"];

impl NewVolume {
    /// Describes a volume for an array, with all that the array's description says of the volume that it is from: see
    /// [`take_over`](Self::take_over). The second value says what the new volume does not keep.
    ///
    /// Without such notes the chunks have no shape: set [`chunk_shape`](Self::chunk_shape).
    ///
    /// # Examples
    ///
    /// ```
    /// use ndarray_shm::array::Description;
    /// use ndarray_shm::{DType, Order};
    /// use ndarray_shm_volume::{Encoding, NewVolume, VolumeFormat};
    ///
    /// // Downloads write such descriptions; `Downloaded::description` and `Directory::description` return them.
    /// let description = Description::new(DType::U8, &[50, 40, 30, 1], Order::F)?
    ///     .with_note("bbox", "100:150,100:140,10:40,0:1")?
    ///     .with_note("resolution", "4 4 40")?
    ///     .with_note("unit", "nm")?
    ///     .with_note("chunk", "64 64 64 1")?;
    /// let (new, left_out) = NewVolume::like(VolumeFormat::Precomputed, &description);
    /// assert_eq!((&new.origin[..], &new.resolution[..]), (&[100, 100, 10, 0][..], &[4.0, 4.0, 40.0][..]));
    /// assert_eq!((&new.chunk_shape[..], left_out.len()), (&[64, 64, 64][..], 0));
    ///
    /// let (new, left_out) = NewVolume::like(VolumeFormat::Zarr, &description);
    /// assert_eq!(new.origin, [0, 0, 0, 0]);
    /// assert!(left_out[0].contains("begins at 0"));
    /// # Ok::<(), ndarray_shm::Error>(())
    /// ```
    pub fn like(format: VolumeFormat, description: &Description) -> (Self, Vec<String>) {
        let shape: Vec<u64> = description.shape().iter().map(|length| *length as u64).collect();
        let mut new = Self::new(format, &shape, &[], description.dtype());
        let left_out = new.take_over(&VolumeNotes::read(description, description.shape()), description.dtype());
        (new, left_out)
    }

    /// Describes a volume like another one: of its shape and element type, and with the rest as in
    /// [`like`](Self::like).
    ///
    /// # Errors
    ///
    /// [`Array`](Error::Array): the volume has more elements than can be counted.
    pub fn like_volume(format: VolumeFormat, volume: &(impl ChunkSource + ?Sized)) -> Result<(Self, Vec<String>)> {
        let meta = volume.meta();
        let mut new = Self::new(format, &meta.shape, &[], meta.dtype);
        let left_out = new.take_over(&VolumeNotes::of(volume)?, meta.dtype);
        Ok((new, left_out))
    }

    /// Takes over what an array's notes say: the begin of its region, the chunk shape, the encoding, the fill value
    /// (Zarr), resolution and unit, the names of the axes, and whether the elements are labels. `dtype` is the element
    /// type of the array that has the notes.
    ///
    /// Format, version, shape, element type, and the shape of shards if there are to be any, of `self` must be set; the
    /// other fields are replaced where the notes say something. Shards are not taken over.
    /// Lengths are converted to nanometres for Precomputed volumes. Chunks that are JPEG pictures, which would change
    /// the elements once more, and chunks of an encoding that the format or the element type does not support, become
    /// raw in Precomputed volumes and zstd in Zarr. A type of `image` is not taken over for integers of 32 or 64 bits
    /// that the array did not have: they may be labels.
    ///
    /// Returns what the new volume does not keep, a sentence for each.
    pub fn take_over(&mut self, notes: &VolumeNotes, dtype: DType) -> Vec<String> {
        let mut left_out = Vec::new();
        let is_precomputed = self.format == VolumeFormat::Precomputed;
        let last_has_channels = notes.axes.last().is_some_and(|name| name.as_deref().is_some_and(is_channels));
        let axes = self.shape.len();
        // The new volume may lack the array's axis of channels.
        let fits = |found: usize| found == axes || (last_has_channels && found == axes + 1);
        self.take_axes(notes, fits(notes.axes.len()), &mut left_out);
        self.take_origin(notes, &fits, &mut left_out);
        if fits(notes.chunk_shape.len()) {
            self.chunk_shape = notes.chunk_shape[..axes].to_vec();
            if is_precomputed {
                // Every chunk has all channels.
                self.chunk_shape.truncate(SPACE.len());
            } else {
                // Stored chunks are whole, so that a chunk beyond the volume would only take room.
                self.chunk_shape
                    .iter_mut()
                    .zip(&self.shape)
                    .for_each(|(chunk, length)| *chunk = (*length).clamp(1, *chunk));
            }
        }
        if notes.is_bool {
            left_out
                .push(format!("the elements are booleans, stored as 0 and 1 of type {} in the new volume", self.dtype));
        }
        if let Some(element) = &notes.fill {
            if self.format == VolumeFormat::Zarr && self.dtype == dtype {
                self.fill = Some(element.clone());
            } else {
                left_out.push(
                    "missing chunks of the source have other elements than 0: in the new volume missing chunks are 0"
                        .to_owned(),
                );
            }
        }
        self.leave_shards_out(notes, &mut left_out);
        self.take_resolution(notes, last_has_channels, &mut left_out);
        leave_places_and_times_out(notes, is_precomputed, &mut left_out);
        self.take_kind(notes, dtype, &mut left_out);
        self.take_encoding(notes, &mut left_out);
        left_out
    }

    fn take_axes(&mut self, notes: &VolumeNotes, fits: bool, left_out: &mut Vec<String>) {
        if !fits || notes.axes.is_empty() {
            if self.format == VolumeFormat::Precomputed && notes.source.is_some() && self.shape.len() > 1 {
                left_out.push(
                    "the source does not name its axes: they are stored as x, y, z and channel of the Precomputed volume, in this order"
                        .to_owned(),
                );
            }
            return;
        }
        let names: Vec<String> =
            notes.axes[..self.shape.len()].iter().map(|name| name.clone().unwrap_or_default()).collect();
        let words = || notes.axis_words(self.shape.len()).join(", ");
        match (self.format, self.version) {
            (VolumeFormat::Precomputed, _) => {
                let is_same = |(axis, name): (usize, &String)| match SPACE.get(axis) {
                    Some(space) => name.eq_ignore_ascii_case(space),
                    None => is_channels(name),
                };
                let is_moved = names.iter().enumerate().any(|named| !named.1.is_empty() && !is_same(named));
                if is_moved && is_in_other_order(&names, &["x", "y", "z", "channel"].map(str::to_owned)) {
                    self.axes = names; // such a volume is refused
                } else if is_moved {
                    left_out.push(format!(
                        "the axes {} of the array are stored as x, y, z and channel of the Precomputed volume, in this order",
                        words()
                    ));
                }
            }
            (_, version) => {
                if version == 2 {
                    left_out.push(format!(
                        "Zarr version 2 does not record the names of the axes ({}): version 3 does",
                        words()
                    ));
                }
                self.axes = names;
            }
        }
    }

    fn take_origin(&mut self, notes: &VolumeNotes, fits: &dyn Fn(usize) -> bool, left_out: &mut Vec<String>) {
        let Some(bbox) = notes.bbox.as_ref().filter(|bbox| fits(bbox.ranges().len())) else { return };
        let starts: Vec<i64> = bbox.ranges().iter().take(self.shape.len()).map(|range| range.start).collect();
        let kept = if self.format == VolumeFormat::Precomputed { SPACE.len().min(starts.len()) } else { 0 };
        self.origin = starts.iter().enumerate().map(|(axis, start)| if axis < kept { *start } else { 0 }).collect();
        if self.origin == starts {
            return;
        }
        let begins = starts.iter().map(i64::to_string).collect::<Vec<_>>().join(",");
        left_out.push(if kept > 0 {
            format!("the array begins at {begins}, but channels of a Precomputed volume begin at 0")
        } else {
            format!("the array begins at {begins}, but a Zarr volume begins at 0, and so do its coordinates there")
        });
    }

    fn take_resolution(&mut self, notes: &VolumeNotes, last_has_channels: bool, left_out: &mut Vec<String>) {
        let (sizes, axes) = (&notes.resolution, self.shape.len());
        if sizes.is_empty() {
            return;
        }
        let unit = notes.unit.as_deref().unwrap_or("nm");
        let shown = || sizes.iter().map(f64::to_string).collect::<Vec<_>>().join(" x ");
        let wanted = if self.format == VolumeFormat::Precomputed { SPACE.len().min(axes) } else { axes };
        let is_complete = sizes.len() >= wanted || (last_has_channels && sizes.len() + 1 == wanted);
        let factor = if self.format == VolumeFormat::Precomputed { nanometres(unit) } else { Some(1.0) };
        let factor = factor.filter(|_| !unit.contains(',') && is_complete && sizes.iter().all(|size| *size > 0.0));
        let Some(factor) = factor else {
            left_out.push(format!("the resolution of {} {unit} cannot be recorded in the new volume", shown()));
            return;
        };
        if notes.unit.is_none() {
            left_out.push(format!("the unit of the resolution {} is not known: nm is assumed", shown()));
        }
        let is_length = |axis: usize| !matches!(notes.axes.get(axis), Some(Some(name)) if is_time(name));
        let length = |(axis, size): (usize, &f64)| match self.format {
            // A step of time is no length, but Precomputed volumes have a length for each axis.
            VolumeFormat::Precomputed if !is_length(axis) => 1.0,
            _ => rounded(size * factor),
        };
        self.resolution = sizes.iter().take(wanted).enumerate().map(length).collect();
        self.unit = if self.format == VolumeFormat::Precomputed { "nm".to_owned() } else { unit.to_owned() };
    }

    /// Chunks are stored one by one: a program that writes single chunks to the volume could not write them to shards.
    fn leave_shards_out(&self, notes: &VolumeNotes, left_out: &mut Vec<String>) {
        if notes.shard_shape.is_empty() || self.shard_shape.is_some() {
            return;
        }
        let shape = notes.shard_shape.iter().map(u64::to_string).collect::<Vec<_>>().join(" x ");
        let sharded = "each chunk is stored as one object: the source groups them in shards of";
        let is_zarr_3 = self.format == VolumeFormat::Zarr && self.version > 2;
        let remedy = if is_zarr_3 { "give a shard shape to do so" } else { "only Zarr version 3 can be created so" };
        left_out.push(format!("{sharded} {shape} ({remedy})"));
    }

    fn take_kind(&mut self, notes: &VolumeNotes, dtype: DType, left_out: &mut Vec<String>) {
        let Some(kind) = notes.kind else { return };
        if self.format != VolumeFormat::Precomputed {
            if kind == VolumeKind::Segmentation {
                left_out.push(
                    "Zarr does not record that the elements are labels (type segmentation): programs that downsample must be told"
                        .to_owned(),
                );
            }
            return;
        }
        // Labels that are numbered anew are labels. But what is computed from an image may be labels, or probabilities
        // from labels.
        let stays = match kind {
            VolumeKind::Image => self.dtype == dtype || VolumeKind::implied(Encoding::Raw, self.dtype).is_some(),
            VolumeKind::Segmentation => self.dtype == dtype || is_integer(self.dtype),
        };
        if stays && !(kind == VolumeKind::Segmentation && self.dtype == DType::F32) {
            self.kind = Some(kind);
        }
    }

    fn take_encoding(&mut self, notes: &VolumeNotes, left_out: &mut Vec<String>) {
        let Some(encoding) = notes.encoding else { return };
        if encoding == Encoding::Gzip && self.format == VolumeFormat::Precomputed {
            // In a directory, only CloudVolume and this crate find the files, because their names end with .gz.
            left_out.push(
                "chunks are stored raw: not all programs find the gzip chunks of a Precomputed volume".to_owned(),
            );
            return;
        }
        let is_lossy = encoding == Encoding::Jpeg;
        if !is_lossy && self.supports(encoding) {
            self.encoding = encoding;
            return;
        }
        self.encoding = if self.format == VolumeFormat::Precomputed { Encoding::Raw } else { Encoding::Zstd };
        let (old, new) = (encoding.name(), self.encoding.name());
        left_out.push(if is_lossy {
            format!(
                "chunks are stored {new}, without loss: the {old} of the source would change the elements once more"
            )
        } else {
            format!("chunks are stored {new}: the new volume cannot have the {old} of the source")
        });
    }

    /// Whether chunks of this format, element type and kind can have an encoding.
    fn supports(&self, encoding: Encoding) -> bool {
        let is_precomputed = self.format == VolumeFormat::Precomputed;
        let channels = self.shape.get(SPACE.len()).copied().unwrap_or(1);
        match encoding {
            Encoding::Raw | Encoding::Gzip => true,
            Encoding::Zstd | Encoding::Blosc => !is_precomputed,
            Encoding::Jpeg => is_precomputed && self.dtype == DType::U8 && matches!(channels, 1 | 3),
            Encoding::Png => is_precomputed && matches!(self.dtype, DType::U8 | DType::U16) && channels <= 4,
            Encoding::CompressedSegmentation | Encoding::CompressedSegmentationGzip => {
                is_precomputed && matches!(self.dtype, DType::U32 | DType::U64) && self.kind != Some(VolumeKind::Image)
            }
        }
    }
}

fn leave_places_and_times_out(notes: &VolumeNotes, is_precomputed: bool, left_out: &mut Vec<String>) {
    let unit = notes.unit.as_deref().unwrap_or("of an unknown unit");
    if !notes.translation.is_empty() {
        let place = notes.translation.iter().map(f64::to_string).collect::<Vec<_>>().join(", ");
        left_out.push(format!(
            "the first element of the source volume lies at {place} {unit} (its translation), which the new volume does not record"
        ));
    }
    for (name, step) in notes.axes.iter().zip(&notes.resolution) {
        if let Some(name) = name.as_ref().filter(|name| is_time(name) && (step - 1.0).abs() > f64::EPSILON) {
            let instead = if is_precomputed { ": 1 nm is recorded instead" } else { "" };
            left_out.push(format!("the step {step} of the axis {name} is no length, and is not recorded{instead}"));
        }
    }
}

impl VolumeNotes {
    /// Returns the notes that an array of the whole volume would have.
    ///
    /// # Errors
    ///
    /// [`Array`](Error::Array): the volume has more elements than can be counted.
    pub fn of(volume: &(impl ChunkSource + ?Sized)) -> Result<Self> {
        let source: &dyn ChunkSource = &volume;
        let domain = source.meta().domain();
        let plain = Description::new(source.meta().dtype, &domain.shape(), Order::C)?;
        let (description, _) = notes::written(source, &domain, plain);
        Ok(Self::read(&description, &domain.shape()))
    }

    /// Returns the region of this volume that the array holds; `None` if the array is from another volume, or if its
    /// notes do not say where it is from. [Places](VolumeUrl::is_same_place) are compared, not texts.
    ///
    /// The region may lie outside of a volume that was created anew since.
    ///
    /// # Errors
    ///
    /// [`OtherScale`](Error::OtherScale): the array is from another scale of this volume.
    pub fn region_in(&self, volume: &(impl ChunkSource + ?Sized)) -> Result<Option<Bbox>> {
        let text = |wanted: &str| volume.notes().into_iter().find(|(key, _)| *key == wanted).map(|(_, text)| text);
        let (Some(bbox), Some(source), Some(there)) = (&self.bbox, &self.source, text("source")) else {
            return Ok(None);
        };
        let (scale, scale_there) = (self.scale.as_deref(), text("scale"));
        let (scale, scale_there) = (scale.unwrap_or_default(), scale_there.as_deref().unwrap_or_default());
        let (group, group_there) = (group(source, scale), group(&there, scale_there));
        if is_same_place(group, group_there) {
            return if scale == scale_there {
                Ok(Some(bbox.clone()))
            } else {
                Err(Error::OtherScale {
                    volume: group_there.to_owned(),
                    array: scale.to_owned(),
                    scale: scale_there.to_owned(),
                })
            };
        }
        // One of them may have been opened as an array of its own, and the other as a scale of a group.
        Ok(is_same_place(source, &there).then(|| bbox.clone()))
    }
}

impl VolumeNotes {
    /// Fails if the array's axes have the names of the volume's in another order. Names that differ otherwise say
    /// nothing.
    ///
    /// # Errors
    ///
    /// [`OtherAxes`](Error::OtherAxes).
    pub fn check_axes(&self, volume: &(impl ChunkSource + ?Sized)) -> Result<()> {
        let array: Vec<String> = self.axes.iter().map(|name| name.clone().unwrap_or_default()).collect();
        let VolumeMeta { axes, .. } = volume.meta();
        if !is_in_other_order(&array, axes) {
            return Ok(());
        }
        let volume = volume.notes().into_iter().find(|(key, _)| *key == "source").map(|(_, source)| source);
        Err(Error::OtherAxes { volume: volume.unwrap_or_default(), array, axes: axes.clone() })
    }
}

/// Whether an axis of the first list has the name of an axis of the second one that stands elsewhere. Case does not
/// count, and an axis of channels has several names. The first list may lack a last axis of channels; lists of other
/// numbers of axes are not compared.
pub(crate) fn is_in_other_order(names: &[String], others: &[String]) -> bool {
    let plain = |name: &String| if is_channels(name) { "c".to_owned() } else { name.to_lowercase() };
    let others: Vec<String> = others.iter().map(plain).collect();
    let is_without_channels = others.last().is_some_and(|last| is_channels(last)) && names.len() + 1 == others.len();
    if names.len() != others.len() && !is_without_channels {
        return false;
    }
    names.iter().map(plain).enumerate().any(|(axis, name)| {
        let place = others.iter().position(|other| *other == name);
        !name.is_empty() && place.is_some_and(|place| place != axis)
    })
}

/// Returns the place of the volume that has the scales. For an array of a Zarr group, the source is the place of that
/// array.
fn group<'a>(source: &'a str, scale: &str) -> &'a str {
    let parent = source.strip_suffix(scale).and_then(|parent| parent.strip_suffix(['/', '\\']));
    parent.filter(|_| !scale.is_empty() && is_zarr(source)).unwrap_or(source)
}

fn is_zarr(source: &str) -> bool {
    source.starts_with("zarr://")
}

/// Whether two sources, as notes name them, are the same place in the same format.
fn is_same_place(one: &str, other: &str) -> bool {
    let url = |text: &str| text.parse::<VolumeUrl>().ok().filter(|url| !url.is_relative());
    one == other
        || matches!((url(one), url(other)), (Some(one), Some(other))
            if one.expected_format() == other.expected_format() && one.is_same_place(&other))
}

fn is_integer(dtype: DType) -> bool {
    use DType::{I8, I16, I32, I64, U8, U16, U32, U64};
    matches!(dtype, U8 | U16 | U32 | U64 | I8 | I16 | I32 | I64)
}

/// Returns how many nanometres a unit has.
pub(crate) fn nanometres(unit: &str) -> Option<f64> {
    Some(match unit {
        "nm" | "nanometer" | "nanometre" => 1.0,
        "Å" | "angstrom" => 0.1,
        "µm" | "μm" | "um" | "micrometer" | "micrometre" | "micron" | "microns" => 1e3,
        "mm" | "millimeter" | "millimetre" => 1e6,
        "cm" => 1e7,
        "m" | "meter" | "metre" => 1e9,
        _ => return None,
    })
}

/// Removes the error of a conversion, so that 0.0041 µm are 4.1 nm.
pub(crate) fn rounded(length: f64) -> f64 {
    let near = (length * 1e6).round() / 1e6;
    if (length - near).abs() < 1e-9 * length.abs() { near } else { length }
}
