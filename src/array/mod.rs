//! Floor 3: typed arrays over segments, and every safe way to look at them.
//!
//! A view is made in one file, `view.rs`; every other file says why it may have one.

pub(crate) mod access;
mod draft;
mod element;
mod frozen;
mod guard;
mod held;
pub(crate) mod layout;
mod options;
mod shared;
pub(crate) mod view;

pub use self::draft::Draft;
pub(crate) use self::draft::NAMELESS;
pub use self::element::{DType, Element};
pub use self::frozen::{FrozenArray, SealableDraft};
pub use self::guard::{CellGuard, ReadGuard, WriteGuard};
pub use self::held::{ArrayReader, ArrayWriter};
pub use self::layout::Order;
pub use self::options::{AttachOptions, CreateOptions, CreationMode};
pub(crate) use self::options::{Attachable, Creatable};
pub use self::shared::SharedArray;
