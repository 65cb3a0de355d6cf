//! Blocks: finding a free one, its contents, and freeing of spans.

mod allocate;
mod block;
mod spans;

pub(super) use self::block::{Block, BlockContents};
