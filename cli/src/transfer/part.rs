//! One part of a transfer that several machines divide among them, and the marker that says that it is finished.
//!
//! The machines do not communicate: each divides the region in the same way, and knows its own number.

use std::io::Write;

use ndarray_shm_volume::markers::{self, Marker};
use ndarray_shm_volume::{Bbox, Shard, VolumeMeta, VolumeUrl, plan};
use serde::Serialize;

use crate::args::PartArgs;
use crate::args::words::Which;
use crate::exit::{Exit, Failure};
use crate::show::report;

/// Lets a part wait for servers from its first request on: many machines start at once, and no user waits for an error.
pub(crate) fn wait_for_servers(args: &PartArgs) {
    if args.shard.is_some() {
        ndarray_shm_volume::wait_for_servers();
    }
}

/// One part of a region.
#[derive(Debug)]
pub(crate) struct Part<'a> {
    pub(crate) shard: Shard,
    /// Its region; `None` if there are more parts than stored objects and none is left for it.
    pub(crate) region: Option<Bbox>,
    whole: &'a Bbox,
    /// One line that identifies the transfer.
    work: String,
    markers: Option<&'a VolumeUrl>,
}

impl<'a> Part<'a> {
    /// Returns the part that the command line selects; `None` without `--shard`.
    pub(crate) fn choose(
        args: &'a PartArgs,
        meta: &VolumeMeta,
        whole: &'a Bbox,
        work: String,
    ) -> Result<Option<Self>, Failure> {
        let shard = match args.shard {
            None => return Ok(None),
            Some(Which::Auto) => Shard::from_environment(args.shards)?,
            Some(Which::This(shard)) => shard,
        };
        if let Some(count) = args.shards.filter(|count| *count != shard.count()) {
            let message = format!("--shard {shard} is one of {} parts, but --shards says {count}", shard.count());
            return Err(Failure::new(Exit::Usage, message).advice("omit --shards, or make both agree"));
        }
        let region = plan(meta, whole, shard.count())?.into_iter().nth(shard.index()).flatten();
        Ok(Some(Self { shard, region, whole, work, markers: args.markers.as_ref() }))
    }

    /// Whether an earlier run has written its marker. With `made`, only if the marker has this identity of the array.
    pub(crate) fn is_marked(&self, made: Option<&str>) -> Result<bool, Failure> {
        let Some(place) = self.markers else { return Ok(false) };
        Ok(markers::is_done(place, self.shard, &self.work(made), self.whole)?)
    }

    fn work(&self, made: Option<&str>) -> String {
        made.map_or_else(|| self.work.clone(), |made| format!("{} which is {made}", self.work))
    }

    /// Writes the marker, after the data. `made` is the identity of the array, so that the marker does not count for a
    /// later one.
    pub(crate) fn mark(&self, made: Option<&str>, chunks: u64, bytes: u64) -> Result<(), Failure> {
        let Some(place) = self.markers else { return Ok(()) };
        let marker = Marker {
            shard: self.shard,
            work: self.work(made),
            bbox: self.whole.clone(),
            part: self.region.clone(),
            chunks,
            bytes,
        };
        let written = markers::write(place, &marker);
        written.map_err(|error| {
            Failure::from(error)
                .while_doing(format!("part {} is finished, but its marker cannot be written", self.shard))
        })
    }
}

/// A part with nothing to do, as `download --json` and `upload --json` print it.
#[derive(Debug, Serialize)]
pub(crate) struct IdlePart {
    shard: String,
    /// The part's region; `null` if there are more parts than stored objects and none was left for it.
    bbox: Option<String>,
    /// "already done" or "nothing".
    state: &'static str,
    /// Path of the array; `null` if there is none.
    path: Option<String>,
}

impl IdlePart {
    pub(crate) fn write(
        part: &Part<'_>,
        path: Option<String>,
        state: &'static str,
        json: bool,
        out: &mut dyn Write,
    ) -> Result<Exit, Failure> {
        let idle =
            Self { shard: part.shard.to_string(), bbox: part.region.as_ref().map(ToString::to_string), state, path };
        if json {
            report::json(out, &idle)?;
        } else {
            let what = if idle.bbox.is_some() { "already done" } else { "it has no chunks" };
            writeln!(out, "part {}: {what}", idle.shard)?;
        }
        Ok(Exit::Done)
    }
}
