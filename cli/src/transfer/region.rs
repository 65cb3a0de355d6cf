//! The region of a volume that `--bbox` and `--channels` select.

use ndarray_shm_volume::{Bbox, VolumeMeta};

use crate::exit::{Exit, Failure};

/// Parses the region. `bbox` may omit the channels, or `channels` selects them.
pub(crate) fn parse(meta: &VolumeMeta, bbox: Option<&str>, channels: Option<&str>) -> Result<Bbox, Failure> {
    let domain = meta.domain();
    let parsed = match (bbox, channels) {
        (None, None) => return Ok(domain),
        (Some(text), None) => meta.parse_bbox(text),
        (bbox, Some(channels)) => {
            let axes = meta.shape.len();
            if !meta.axes.last().is_some_and(|name| matches!(name.as_str(), "c" | "channel" | "channels")) || axes < 2 {
                let message = "the last axis of this volume is not its channels: --channels cannot be used";
                return Err(Failure::new(Exit::Usage, message)
                    .advice("select the region with --bbox alone, one range for each axis"));
            }
            let others = bbox.map_or_else(|| vec![":"; axes - 1].join(","), str::to_owned);
            Bbox::parse(&format!("{others},{channels}"), &domain)
        }
    };
    parsed.map_err(|error| {
        Failure::from(error).advice(format!(
            "the volume is {domain}: give --bbox one START:STOP within it for each axis, or omit --bbox \
             for the whole volume"
        ))
    })
}
