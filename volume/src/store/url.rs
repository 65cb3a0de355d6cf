//! What leads to a volume: a path or a URL, with the format in front where it is not clear.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::error::{Error, Result};

/// Formats a volume may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum VolumeFormat {
    /// Zarr version 2 or 3.
    Zarr,
    /// Neuroglancer Precomputed.
    Precomputed,
}

/// Where a volume is: `volume.zarr`, `precomputed://file:///data/em`, `zarr://s3://bucket/key`, `https://host/path`.
///
/// Without a format in front, it is looked for what is there.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct VolumeUrl {
    format: Option<VolumeFormat>,
    place: Place,
}

/// The part of a URL that a store is opened with.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    Local(PathBuf),
    Remote(String),
}

impl VolumeUrl {
    /// Means the volume in a local directory, whatever characters its path is made of.
    pub fn local(path: impl Into<PathBuf>) -> Self {
        Self { format: None, place: Place::Local(path.into()) }
    }

    /// Says which format is expected there.
    pub fn format(mut self, format: VolumeFormat) -> Self {
        self.format = Some(format);
        self
    }

    /// Returns the format that is expected, if one was said.
    pub fn expected_format(&self) -> Option<VolumeFormat> {
        self.format
    }

    pub(crate) fn place(&self) -> &Place {
        &self.place
    }
}

impl From<&Path> for VolumeUrl {
    fn from(path: &Path) -> Self {
        Self::local(path)
    }
}

impl FromStr for VolumeUrl {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (format, rest) = match text.split_once("://") {
            Some(("precomputed", rest)) => (Some(VolumeFormat::Precomputed), rest),
            Some(("zarr" | "zarr2" | "zarr3", rest)) => (Some(VolumeFormat::Zarr), rest),
            _ => (None, text),
        };
        let place = match rest.split_once("://") {
            None => Place::Local(PathBuf::from(rest)),
            Some(("file", path)) => Place::Local(PathBuf::from(path)),
            Some(("http" | "https" | "s3" | "gs" | "az", _)) => Place::Remote(rest.to_owned()),
            Some((scheme, _)) => {
                let reason = format!(
                    "`{scheme}://` is not known: use file, http, https, s3, gs or az, with precomputed:// or zarr:// in front \
                     where the format is not clear"
                );
                return Err(Error::Url { url: text.to_owned(), reason });
            }
        };
        Ok(Self { format, place })
    }
}

impl fmt::Display for VolumeUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.format {
            Some(VolumeFormat::Zarr) => f.write_str("zarr://")?,
            Some(VolumeFormat::Precomputed) => f.write_str("precomputed://")?,
            None => {}
        }
        match &self.place {
            Place::Local(path) if self.format.is_some() => write!(f, "file://{}", path.display()),
            Place::Local(path) => write!(f, "{}", path.display()),
            Place::Remote(url) => f.write_str(url),
        }
    }
}
