//! One part of a work that several machines share: which part it is, whether it is done, and the mark that says so.
//!
//! Nothing runs between the machines: all of them divide the region in the same way, and each knows its own number.

use std::str::FromStr;

use ndarray_shm_volume::markers::{self, Marker};
use ndarray_shm_volume::{Bbox, Shard, VolumeMeta, VolumeUrl, plan};

use crate::cli::PartArgs;
use crate::exit::{Exit, Failure};

/// Which part is meant, before the environment is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    /// What the scheduler says that started this process.
    Auto,
    /// This one.
    This(Shard),
}

impl FromStr for Which {
    type Err = ndarray_shm_volume::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "auto" { Ok(Self::Auto) } else { text.parse().map(Self::This) }
    }
}

/// One part of a region.
#[derive(Debug)]
pub(crate) struct Part<'a> {
    pub(crate) shard: Shard,
    /// Its own region; `None` where there are fewer stored objects than parts.
    pub(crate) region: Option<Bbox>,
    whole: &'a Bbox,
    /// One line that tells this work from others.
    work: String,
    markers: Option<&'a VolumeUrl>,
}

impl<'a> Part<'a> {
    /// Finds out which part is meant; `None` if all is to be done.
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
            return Err(Failure::new(Exit::Usage, message).advice("leave --shards away, or make them agree"));
        }
        let region = plan(meta, whole, shard.count())?.into_iter().nth(shard.index()).flatten();
        Ok(Some(Self { shard, region, whole, work, markers: args.markers.as_ref() }))
    }

    /// Whether an earlier run has marked it as done.
    pub(crate) fn is_marked(&self) -> Result<bool, Failure> {
        let Some(place) = self.markers else { return Ok(false) };
        Ok(markers::is_done(place, self.shard, &self.work, self.whole)?)
    }

    /// Marks it as done, after its data.
    pub(crate) fn mark(&self, chunks: u64, bytes: u64) -> Result<(), Failure> {
        let Some(place) = self.markers else { return Ok(()) };
        let marker = Marker {
            shard: self.shard,
            work: self.work.clone(),
            bbox: self.whole.clone(),
            part: self.region.clone(),
            chunks,
            bytes,
        };
        let marked = markers::write(place, &marker);
        marked.map_err(|error| {
            Failure::from(error).while_doing(format!("part {} is done, but cannot be marked", self.shard))
        })
    }
}
