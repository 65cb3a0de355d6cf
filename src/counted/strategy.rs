//! How arrays are handed to other processes: by descriptor, or by name.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::error::{Error, Result};
use crate::os;

const VARIABLE: &str = "NDSHM_SHARING_STRATEGY";

/// 0: the environment decides; else the position in `ALL`, from 1.
static CURRENT: AtomicU8 = AtomicU8::new(0);

/// How arrays that are made to be shared are handed to other processes.
///
/// The words are those of `torch.multiprocessing`. A strategy is chosen when an array is made and can be changed later
/// without copying: a nameless array can be [published](crate::RefcountedArray::publish), one with a name sent as a
/// descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum SharingStrategy {
    /// The array has no name; its descriptor is sent over a Unix socket, and costs one of the process's. Nothing can be
    /// left behind. Linux only.
    FileDescriptor,
    /// The array has a random name, which is removed with its last handle. Any text channel carries its
    /// [`Handle`](crate::counted::Handle), and there can be more arrays than descriptors.
    FileSystem,
}

impl SharingStrategy {
    /// Every strategy.
    pub const ALL: [Self; 2] = [Self::FileDescriptor, Self::FileSystem];

    /// Whether this platform has it.
    pub fn is_supported(self) -> bool {
        self == Self::FileSystem || os::DESCRIPTORS_CAN_BE_SHARED
    }

    /// Returns the strategy of arrays made from now on: what [`set_current`](Self::set_current) said, else the
    /// environment variable `NDSHM_SHARING_STRATEGY`, else `file_descriptor` where it is supported.
    ///
    /// # Errors
    ///
    /// [`InvalidSetting`](Error::InvalidSetting): the environment variable is set to something else.
    /// [`Unsupported`](Error::Unsupported): it asks for what this platform has not.
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
        let strategy = Self::from_str(&value).map_err(|_| Error::InvalidSetting {
            setting: VARIABLE,
            value,
            expected: "file_descriptor or file_system, or unset",
        })?;
        strategy.check(VARIABLE)?;
        Ok(strategy)
    }

    /// Chooses the strategy of arrays that this process makes from now on; those that exist stay as they are.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](Error::Unsupported): this platform does not have it.
    pub fn set_current(self) -> Result<()> {
        self.check("the sharing strategy")?;
        CURRENT.store(1 + self as u8, Ordering::Relaxed);
        Ok(())
    }

    /// Refuses what the platform has not.
    pub(super) fn check(self, location: &str) -> Result<()> {
        if self.is_supported() {
            return Ok(());
        }
        let what = "arrays cannot be handed over by descriptor on this platform; use file_system";
        Err(Error::Unsupported { location: location.to_owned(), what: what.into() })
    }

    /// Returns the word for it.
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
        Self::ALL.into_iter().find(|strategy| strategy.as_str() == text).ok_or_else(|| Error::InvalidSetting {
            setting: "the sharing strategy",
            value: text.to_owned(),
            expected: "file_descriptor or file_system",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strategies_are_written_as_torch_writes_them() {
        for strategy in SharingStrategy::ALL {
            assert_eq!(strategy.to_string().parse::<SharingStrategy>().expect("its own word"), strategy);
        }
        assert_eq!("file_system".parse::<SharingStrategy>().expect("a word"), SharingStrategy::FileSystem);
        match SharingStrategy::of_variable(Some("fd".to_owned())) {
            Err(Error::InvalidSetting { setting, .. }) => assert_eq!(setting, VARIABLE),
            other => panic!("{other:?}"),
        }
    }
}
