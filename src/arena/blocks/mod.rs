//! Blocks: how one is found, what it holds, and how spans become free again.

mod allocate;
mod block;
mod spans;

pub(super) use self::block::{Block, BlockContents};
