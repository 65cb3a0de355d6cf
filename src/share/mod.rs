//! Floor 4: arrays that are counted, and go with the last of their holders.

pub(crate) mod reclaim;
