//! The sharing strategy: whether an array is sent to other processes by descriptor or by name.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::error::{Error, ErrorKind, Result};
use crate::os;

const VARIABLE: &str = "NDSHM_SHARING_STRATEGY";

/// 0: the environment variable decides; else 1 + the position in `ALL`. Relaxed order is enough: no other data depends
/// on it.
static CURRENT: AtomicU8 = AtomicU8::new(0);

/// How a counted array is sent to other processes.
///
/// The terms are those of `torch.multiprocessing`. The strategy is chosen when an array is created, and can be changed
/// later without copying: a nameless array can be [published](crate::RefcountedArray::publish), and an array with a
/// name can be sent by descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum SharingStrategy {
    /// By descriptor. The array has no name, and its descriptor is sent over a Unix socket. Each attached array keeps a
    /// descriptor open. Killed processes leave nothing behind, because the kernel frees the memory. Linux only.
    FileDescriptor,
    /// By name. The array has a random name, which its last handle removes. Its [`Handle`](crate::counted::Handle) is
    /// text and can be sent by any means. Attached arrays keep no descriptors open.
    FileSystem,
}

impl SharingStrategy {
    /// Every strategy.
    pub const ALL: [Self; 2] = [Self::FileDescriptor, Self::FileSystem];

    /// Returns whether this platform supports the strategy.
    pub fn is_supported(self) -> bool {
        self == Self::FileSystem || os::DESCRIPTORS_CAN_BE_SHARED
    }

    /// Returns the strategy that new arrays get by default.
    ///
    /// It is the one passed to [`set_current`](Self::set_current), else that of the environment variable
    /// `NDSHM_SHARING_STRATEGY`, else `file_descriptor` where it is supported and `file_system` elsewhere.
    ///
    /// # Errors
    ///
    /// - [`InvalidSetting`](ErrorKind::InvalidSetting): the environment variable has another value than
    ///   `file_descriptor` or `file_system`.
    /// - [`Unsupported`](ErrorKind::Unsupported): this platform does not support the strategy in the environment
    ///   variable.
    pub fn current() -> Result<Self> {
        match CURRENT.load(Ordering::Relaxed) {
            0 => Self::of_variable(std::env::var_os(VARIABLE).map(|value| value.to_string_lossy().into_owned())),
            position => Ok(Self::ALL[usize::from(position) - 1]),
        }
    }

    fn of_variable(value: Option<String>) -> Result<Self> {
        let Some(value) = value else {
            return Ok(if os::DESCRIPTORS_CAN_BE_SHARED { Self::FileDescriptor } else { Self::FileSystem });
        };
        let strategy = Self::from_str(&value)
            .map_err(|_| Error::setting(VARIABLE, value, "file_descriptor or file_system, or unset"))?;
        strategy.check(VARIABLE)?;
        Ok(strategy)
    }

    /// Sets the strategy that new arrays of this process get by default. Existing arrays keep theirs.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](ErrorKind::Unsupported): this platform does not support it.
    pub fn set_current(self) -> Result<()> {
        self.check("the sharing strategy")?;
        CURRENT.store(1 + self as u8, Ordering::Relaxed);
        Ok(())
    }

    /// Fails with `Unsupported` if the platform does not support the strategy.
    pub(super) fn check(self, location: &str) -> Result<()> {
        if self.is_supported() {
            return Ok(());
        }
        let what = "this platform cannot send arrays by descriptor; use file_system";
        Err(ErrorKind::Unsupported { what: what.into() }.at(location))
    }

    /// Returns the name of the strategy, as torch writes it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::FileDescriptor => "file_descriptor",
            Self::FileSystem => "file_system",
        }
    }
}

impl fmt::Display for SharingStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for SharingStrategy {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|strategy| strategy.as_str() == text)
            .ok_or_else(|| Error::setting("the sharing strategy", text, "file_descriptor or file_system"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strategies_have_the_names_of_torch() {
        for strategy in SharingStrategy::ALL {
            assert_eq!(strategy.to_string().parse::<SharingStrategy>().expect("its own word"), strategy);
        }
        assert_eq!("file_system".parse::<SharingStrategy>().expect("a word"), SharingStrategy::FileSystem);
        match SharingStrategy::of_variable(Some("fd".to_owned())) {
            Err(Error { kind: ErrorKind::InvalidSetting { setting, .. }, .. }) => assert_eq!(setting, VARIABLE),
            other => panic!("{other:?}"),
        }
    }
}
