//! Blocks: finding a free block, its contents, and freeing spans.

mod allocate;
mod block;
mod spans;

pub(super) use self::block::{Block, BlockContents};
