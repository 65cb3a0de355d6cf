//! `ndshm info SOURCE`: the table of a volume's scales.

use std::io::Write;

use ndarray_shm_volume::{ScaleInfo, StopFlag, VolumeKind, VolumeOptions, VolumeUrl};
use serde::Serialize;

use crate::exit::{Exit, Failure};
use crate::interrupt;
use crate::show::report::{self, Column, Table};
use crate::show::units;

/// A volume, as `info --json` prints it.
#[derive(Debug, Serialize)]
struct VolumeReport {
    volume: String,
    /// Whether the elements of a Precomputed volume are an "image" or a "segmentation"; `null` if the volume does not
    /// specify it.
    #[serde(rename = "type")]
    kind: Option<&'static str>,
    scales: Vec<ScaleReport>,
}

/// One scale of a volume.
#[derive(Debug, Serialize)]
struct ScaleReport {
    /// Value for `--mip`.
    mip: usize,
    key: String,
    /// The element type as `NumPy` writes it: "<u2".
    dtype: String,
    /// A word for each axis, its name or its number; empty if the volume names none.
    axes: Vec<String>,
    /// Coordinates of the first element.
    origin: Vec<i64>,
    shape: Vec<u64>,
    chunk_shape: Vec<u64>,
    /// Shape of one stored object: a chunk, or a shard of many.
    stored_shape: Vec<u64>,
    /// Size of an element along each axis; empty if the volume does not specify it.
    resolution: Vec<f64>,
    unit: String,
    /// The format, and how chunks are encoded.
    encoding: String,
    /// Bytes of all elements.
    bytes: u64,
}

impl From<(usize, ScaleInfo)> for ScaleReport {
    fn from((mip, scale): (usize, ScaleInfo)) -> Self {
        let meta = scale.meta;
        let size = meta.dtype.size() as u64;
        Self {
            mip,
            key: scale.key,
            dtype: meta.dtype.to_string(),
            axes: if meta.axes.is_empty() { Vec::new() } else { meta.axis_words() },
            origin: meta.origin,
            bytes: meta.shape.iter().fold(size, |product, length| product.saturating_mul(*length)),
            shape: meta.shape,
            chunk_shape: meta.chunk_shape,
            stored_shape: meta.stored_shape,
            resolution: scale.resolution,
            unit: scale.unit,
            encoding: meta.description,
        }
    }
}

/// Prints the scales of a volume.
pub(crate) fn run(url: &VolumeUrl, json: bool, out: &mut dyn Write) -> Result<Exit, Failure> {
    let scales = interrupt::opening(&StopFlag::new(), url, || VolumeOptions::new().scales(url))?;
    let volume = VolumeReport {
        volume: url.to_string(),
        kind: scales.first().and_then(|scale| scale.meta.kind).map(VolumeKind::name),
        scales: scales.into_iter().enumerate().map(ScaleReport::from).collect(),
    };
    if json {
        report::json(out, &volume)?;
        return Ok(Exit::Done);
    }
    let kind = volume.kind.map_or_else(String::new, |kind| format!(" of type {kind}"));
    writeln!(out, "{}: {}{kind}\n", units::printable(&volume.volume), units::count(volume.scales.len(), "scale"))?;
    let mut table = Table::new(&[
        Column::Right("MIP"),
        Column::Left("KEY"),
        Column::Left("SHAPE"),
        Column::Left("ORIGIN"),
        Column::Left("CHUNKS OF"),
        Column::Left("DTYPE"),
        Column::Left("RESOLUTION"),
        Column::Right("SIZE"),
        Column::Left("FORMAT"),
    ]);
    for scale in &volume.scales {
        let chunks = joined(&scale.chunk_shape, " x ");
        table.row([
            scale.mip.to_string(),
            units::printable(&scale.key),
            format!("{}{}", joined(&scale.shape, " x "), units::axis_names(&scale.axes)),
            joined(&scale.origin, ","),
            if scale.stored_shape == scale.chunk_shape {
                chunks
            } else {
                format!("{chunks} in shards of {}", joined(&scale.stored_shape, " x "))
            },
            scale.dtype.clone(),
            if scale.resolution.is_empty() {
                "-".to_owned()
            } else {
                units::resolution(&scale.resolution, &scale.axes, &scale.unit)
            },
            units::size(scale.bytes),
            scale.encoding.clone(),
        ]);
    }
    table.write(out)?;
    Ok(Exit::Done)
}

fn joined(numbers: &[impl ToString], with: &str) -> String {
    if numbers.is_empty() {
        return "-".to_owned();
    }
    numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(with)
}
