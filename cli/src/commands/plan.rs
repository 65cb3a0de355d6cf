//! `ndshm plan`: shows the parts of a region, to distribute them to machines.

use std::io::Write;

use ndarray_shm_volume::{StopFlag, VolumeOptions, plan};
use serde::Serialize;

use crate::args::PlanArgs;
use crate::exit::{Exit, Failure};
use crate::interrupt;
use crate::show::report::{self, Column, Table};
use crate::show::units;
use crate::transfer::region;

/// The parts of a region, as `plan --json` prints them.
#[derive(Debug, Serialize)]
struct Plan {
    /// The volume and its state.
    volume: String,
    /// The region that is divided.
    bbox: String,
    dtype: String,
    shards: usize,
    parts: Vec<Planned>,
}

/// One part. If there are more parts than stored objects, some have no region, and 0 in every count.
#[derive(Debug, Serialize)]
struct Planned {
    /// Value for `--shard`.
    shard: String,
    index: usize,
    bbox: Option<String>,
    shape: Option<Vec<usize>>,
    chunks: u64,
    /// Number of stored objects: chunks, or shards of many chunks.
    objects: u64,
    /// Bytes of its elements.
    bytes: u64,
}

/// Runs `ndshm plan`.
pub(crate) fn run(args: &PlanArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let open = || VolumeOptions::new().mip(args.mip).open(&args.source);
    let source = interrupt::opening(&StopFlag::new(), &args.source, open)?;
    let meta = source.meta();
    let bbox = region::parse(meta, args.bbox.as_deref(), None)?;
    let parts = plan(meta, &bbox, args.shards)?;
    let planned = parts.iter().enumerate().map(|(index, part)| {
        let elements =
            |shape: &[usize]| shape.iter().fold(1, |product: u64, length| product.saturating_mul(*length as u64));
        let shape = part.as_ref().map(ndarray_shm_volume::Bbox::shape);
        Planned {
            shard: format!("{index}/{}", args.shards),
            index,
            bbox: part.as_ref().map(ToString::to_string),
            chunks: part.as_ref().map_or(0, |part| meta.chunks(part).total()),
            objects: part.as_ref().map_or(0, |part| meta.stored(part).total()),
            bytes: shape.as_deref().map_or(0, elements).saturating_mul(meta.dtype.size() as u64),
            shape,
        }
    });
    let plan = Plan {
        volume: source.identity(),
        bbox: bbox.to_string(),
        dtype: meta.dtype.to_string(),
        shards: args.shards,
        parts: planned.collect(),
    };
    if args.output.json {
        report::json(out, &plan)?;
        return Ok(Exit::Done);
    }
    writeln!(out, "{} of {}, in {}:\n", plan.bbox, args.source, units::count(plan.shards, "part"))?;
    let mut table = Table::new(&[
        Column::Left("SHARD"),
        Column::Left("REGION"),
        Column::Right("CHUNKS"),
        Column::Right("OBJECTS"),
        Column::Right("SIZE"),
    ]);
    for part in &plan.parts {
        table.row([
            part.shard.clone(),
            part.bbox.clone().unwrap_or_else(|| "nothing".to_owned()),
            part.chunks.to_string(),
            part.objects.to_string(),
            units::size(part.bytes),
        ]);
    }
    table.write(out)?;
    Ok(Exit::Done)
}
