//! The address of a volume: a path or a URL, optionally with the format in front.

#[cfg(test)]
mod tests;
#[cfg(feature = "remote")]
mod web;

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::error::{Error, Result};
#[cfg(feature = "remote")]
pub(crate) use web::WebUrl;

/// The format of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum VolumeFormat {
    /// Zarr version 2 or 3.
    Zarr,
    /// Neuroglancer Precomputed.
    Precomputed,
    /// N5, for reading only.
    N5,
}

/// The address of a volume: `volume.zarr`, `precomputed://file:///data/em`, `zarr://s3://bucket/key`,
/// `https://host/path`.
///
/// Without a format in front, opening the volume detects it. A path is taken literally, including `~` and `%`. The text
/// after `file://` and `https://` is a URL, in which `%20` is a space. Keys of buckets (`s3://`, `gs://`, `az://`) are
/// taken literally.
///
/// `Display` and `Debug` hide passwords and signatures. [`to_argument`](Self::to_argument) returns the whole text,
/// which parses to an equal value.
///
/// # Examples
///
/// ```
/// use ndarray_shm_volume::{VolumeFormat, VolumeUrl};
///
/// let url: VolumeUrl = "precomputed://https://me:secret@example.org/em/?key=123".parse()?;
/// assert_eq!(url.expected_format(), Some(VolumeFormat::Precomputed));
/// assert_eq!(url.to_string(), "precomputed://https://example.org/em?…");
/// assert_eq!(url.to_argument().parse::<VolumeUrl>()?, url);
/// assert!("ftp://example.org/em".parse::<VolumeUrl>().is_err());
/// # Ok::<(), ndarray_shm_volume::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct VolumeUrl {
    format: Option<VolumeFormat>,
    place: StorePlace,
}

/// The part of a URL that a store is opened with.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) enum StorePlace {
    Local(PathBuf),
    /// A URL with a lowercase scheme and no slash at the end. It may contain secrets: print it only through [`shown`].
    Remote(String),
}

impl VolumeUrl {
    /// Returns the address of a local directory. Its path may contain any characters.
    pub fn local(path: impl Into<PathBuf>) -> Self {
        Self { format: None, place: StorePlace::Local(path.into()) }
    }

    /// Sets the expected format.
    pub fn format(mut self, format: VolumeFormat) -> Self {
        self.format = Some(format);
        self
    }

    /// Returns the expected format, if one was given.
    pub fn expected_format(&self) -> Option<VolumeFormat> {
        self.format
    }

    /// Returns a text that another process parses to an equal value, whatever characters it contains. The text includes
    /// passwords and signatures.
    pub fn to_argument(&self) -> String {
        match &self.place {
            StorePlace::Local(path) => format!("{}{}", self.prefix(), local_text(path)),
            StorePlace::Remote(url) => format!("{}{url}", self.prefix()),
        }
    }

    /// Returns whether two addresses lead to the same directory, or to the same place on a server, whatever format they
    /// name.
    ///
    /// Paths are the same if they lead to one directory: relative, through symbolic links, or as a `file://` URL. A
    /// query, a user and a default port make no difference, and `https://storage.googleapis.com/BUCKET` is
    /// `gs://BUCKET`.
    ///
    /// # Examples
    ///
    /// ```
    /// use ndarray_shm_volume::VolumeUrl;
    ///
    /// let url: VolumeUrl = "precomputed://file:///data/em/".parse()?;
    /// assert!(url.is_same_place(&"/data/./em".parse()?));
    /// assert!(!url.is_same_place(&"/data/other".parse()?));
    /// # Ok::<(), ndarray_shm_volume::Error>(())
    /// ```
    pub fn is_same_place(&self, other: &Self) -> bool {
        match (&self.place, &other.place) {
            (StorePlace::Local(one), StorePlace::Local(other)) => match (resolved(one), resolved(other)) {
                (Ok(one), Ok(other)) => one == other,
                _ => one == other,
            },
            (StorePlace::Remote(one), StorePlace::Remote(other)) => comparable(one) == comparable(other),
            _ => false,
        }
    }

    /// Whether it is a path that depends on the working directory.
    pub(crate) fn is_relative(&self) -> bool {
        matches!(&self.place, StorePlace::Local(path) if path.is_relative())
    }

    pub(crate) fn place(&self) -> &StorePlace {
        &self.place
    }

    fn prefix(&self) -> &'static str {
        match self.format {
            Some(VolumeFormat::Zarr) => "zarr://",
            Some(VolumeFormat::Precomputed) => "precomputed://",
            Some(VolumeFormat::N5) => "n5://",
            None => "",
        }
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
        let wrong = |reason: String| Error::Url { url: shown(text), reason };
        let (format, rest) = match scheme(text) {
            Some((name, rest)) => match name.as_str() {
                "precomputed" => (Some(VolumeFormat::Precomputed), rest),
                "zarr" | "zarr2" | "zarr3" => (Some(VolumeFormat::Zarr), rest),
                "n5" => (Some(VolumeFormat::N5), rest),
                _ => (None, text),
            },
            None => (None, text),
        };
        let place = match scheme(rest) {
            None if rest.is_empty() => return Err(wrong("it names nothing: say a path or a URL".to_owned())),
            None if rest.contains('\0') => return Err(wrong("it has a NUL character".to_owned())),
            None => StorePlace::Local(PathBuf::from(rest)),
            Some((name, rest)) => match name.as_str() {
                "file" => StorePlace::Local(local_path(rest).map_err(wrong)?),
                "http" | "https" => StorePlace::Remote(web_place(&name, rest).map_err(wrong)?),
                "s3" | "gs" | "az" => StorePlace::Remote(bucket_place(&name, rest).map_err(wrong)?),
                "precomputed" | "zarr" | "zarr2" | "zarr3" | "n5" => {
                    return Err(wrong("it names two formats".to_owned()));
                }
                _ => {
                    return Err(wrong(format!(
                        "`{name}://` is not known: use file, http, https, s3, gs or az, with precomputed://, zarr:// or n5:// in \
                         front where the format is not clear (a path that looks like this needs ./ in front)"
                    )));
                }
            },
        };
        Ok(Self { format, place })
    }
}

/// Types that convert to a [`VolumeUrl`]: text, which may be a path or a URL, and paths.
///
/// Other types need not implement it.
pub trait IntoVolumeUrl {
    /// Parses and checks the address.
    ///
    /// # Errors
    ///
    /// [`Url`](Error::Url): the text is neither a path nor a URL of a known kind. A [`Path`] always is one.
    fn into_volume_url(self) -> Result<VolumeUrl>;
}

impl IntoVolumeUrl for VolumeUrl {
    fn into_volume_url(self) -> Result<VolumeUrl> {
        Ok(self)
    }
}

impl IntoVolumeUrl for &VolumeUrl {
    fn into_volume_url(self) -> Result<VolumeUrl> {
        Ok(self.clone())
    }
}

impl IntoVolumeUrl for &str {
    fn into_volume_url(self) -> Result<VolumeUrl> {
        self.parse()
    }
}

impl IntoVolumeUrl for &String {
    fn into_volume_url(self) -> Result<VolumeUrl> {
        self.parse()
    }
}

impl IntoVolumeUrl for &Path {
    fn into_volume_url(self) -> Result<VolumeUrl> {
        Ok(VolumeUrl::local(self))
    }
}

impl IntoVolumeUrl for &PathBuf {
    fn into_volume_url(self) -> Result<VolumeUrl> {
        Ok(VolumeUrl::local(self))
    }
}

impl fmt::Display for VolumeUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.prefix())?;
        match &self.place {
            StorePlace::Local(path) => f.write_str(&local_text(path)),
            StorePlace::Remote(url) => f.write_str(&shown(url)),
        }
    }
}

/// Hides secrets, like `Display`.
impl fmt::Debug for VolumeUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VolumeUrl({self})")
    }
}

impl fmt::Debug for StorePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local(path) => write!(f, "Local({})", path.display()),
            Self::Remote(url) => write!(f, "Remote({})", shown(url)),
        }
    }
}

/// Returns the absolute path without symbolic links. Resolves the part of the path that exists; the rest may not exist
/// yet.
pub(crate) fn resolved(path: &Path) -> io::Result<PathBuf> {
    let path = std::path::absolute(path)?;
    let mut root = path.as_path();
    let mut missing = Vec::new();
    // `dunce` leaves out the `\\?\` prefix of Windows, which would appear in messages.
    while let (Err(_), Some(parent), Some(name)) = (dunce::canonicalize(root), root.parent(), root.file_name()) {
        missing.push(name);
        root = parent;
    }
    let mut found = dunce::canonicalize(root)?;
    found.extend(missing.iter().rev());
    Ok(found)
}

/// Returns a remote place in a form that is equal for equal places: without user, query, default port and
/// percent-encoding.
fn comparable(url: &str) -> (String, Vec<u8>) {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let is_web = matches!(scheme, "http" | "https");
    let rest = if is_web { rest.split_once('?').map_or(rest, |(rest, _)| rest) } else { rest };
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let path = path.trim_end_matches('/');
    if !is_web {
        return (format!("{scheme}://{authority}"), path.as_bytes().to_vec());
    }
    let host = web_host(scheme, authority);
    let path = percent_decoded(path);
    // Public buckets are read as web pages, and written as buckets.
    if host == "storage.googleapis.com" {
        let end = path.iter().position(|byte| *byte == b'/').unwrap_or(path.len());
        let key = path.get(end + 1..).unwrap_or_default().to_vec();
        return (format!("gs://{}", String::from_utf8_lossy(&path[..end])), key);
    }
    (format!("{scheme}://{host}"), path)
}

/// Returns the host and port of a web server, in lowercase, without user and default port.
fn web_host(scheme: &str, authority: &str) -> String {
    let host = without_user(authority).to_ascii_lowercase();
    let default = if scheme == "http" { ":80" } else { ":443" };
    host.strip_suffix(default).map_or_else(|| host.clone(), str::to_owned)
}

/// Returns a text for a key under a remote place, or under the endpoint of a service. Equal texts stand for the same
/// object: the user is left out. A query may choose the object, and may be a secret: it is hashed with the host.
#[cfg(feature = "remote")]
pub(crate) fn identified(url: &str, key: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let is_bucket = matches!(scheme, "s3" | "gs" | "az");
    // Names and keys of buckets may contain any characters.
    let (rest, query) = if is_bucket {
        (rest, None)
    } else {
        rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)))
    };
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let host = if is_bucket { authority.to_owned() } else { web_host(scheme, authority) };
    let parts = [path.trim_matches('/'), key].into_iter().filter(|part| !part.is_empty());
    let place = parts.fold(format!("{scheme}://{host}"), |place, part| format!("{place}/{part}"));
    let hash = query.map(|query| {
        let text = format!("{scheme}://{host}?{query}");
        format!(" query {:032x}", twox_hash::XxHash3_128::oneshot(text.as_bytes()))
    });
    format!("{place:?}{}", hash.unwrap_or_default())
}

/// Splits off the scheme: letters and digits in front of `://`. A single letter is a drive, not a scheme.
fn scheme(text: &str) -> Option<(String, &str)> {
    let (name, rest) = text.split_once("://")?;
    let is_name = name.len() > 1 && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'));
    // `./a://b` is a path.
    (is_name && !name.starts_with('.')).then(|| (name.to_ascii_lowercase(), rest))
}

fn leads_up(path: &str) -> bool {
    path.split(['/', '\\']).any(|part| part == "..")
}

const LEADS_UP: &str = "`..` is not taken in a URL: write where it leads";

/// Parses the text behind `file://`.
fn local_path(rest: &str) -> std::result::Result<PathBuf, String> {
    let (host, path) = match rest.find('/') {
        Some(at) => rest.split_at(at),
        None => (rest, ""),
    };
    let path = match host {
        "" => path.to_owned(),
        _ if host.eq_ignore_ascii_case("localhost") => path.to_owned(),
        // Not a machine name: the rest is a path relative to the working directory, or to the literal directory `~`.
        "." => path.strip_prefix('/').unwrap_or(path).to_owned(),
        "~" => rest.to_owned(),
        _ => {
            let (host, rest) = (without_user(host), without_user(rest));
            return Err(format!(
                "`{host}` would be another machine: write file:///{rest} for a path from the root, or {rest} for one from here"
            ));
        }
    };
    // Checks the encoded text: `local_text` writes a local path with `..` as `%2E%2E`, which is accepted.
    if leads_up(&path) {
        return Err(LEADS_UP.to_owned());
    }
    let bytes = percent_decoded(&path);
    if bytes.contains(&0) {
        return Err("it has a NUL character".to_owned());
    }
    let is_drive = matches!(bytes.as_slice(), [b'/', letter, b':', ..] if letter.is_ascii_alphabetic());
    let bytes = if cfg!(windows) && is_drive { bytes[1..].to_vec() } else { bytes };
    os_string(bytes).map(PathBuf::from)
}

/// Converts the bytes of a path. On Unix any bytes are a path.
#[cfg(unix)]
#[expect(clippy::unnecessary_wraps, reason = "elsewhere not all bytes are names")]
fn os_string(bytes: Vec<u8>) -> std::result::Result<OsString, String> {
    Ok(std::os::unix::ffi::OsStringExt::from_vec(bytes))
}

#[cfg(not(unix))]
fn os_string(bytes: Vec<u8>) -> std::result::Result<OsString, String> {
    String::from_utf8(bytes).map(OsString::from).map_err(|error| format!("it is no path here: {error}"))
}

/// Returns a path unchanged if that text parses back to it, otherwise as a `file://` URL.
fn local_text(path: &Path) -> String {
    match path.to_str() {
        Some(text) if !text.is_empty() && !text.contains("://") && !text.contains('\0') => text.to_owned(),
        _ => {
            let mut text = "file://".to_owned();
            let bytes = path.as_os_str().as_encoded_bytes();
            match bytes {
                [b'/', ..] => {}
                [_, b':', ..] if cfg!(windows) => text.push('/'),
                _ => text.push_str("./"),
            }
            for (at, byte) in bytes.iter().enumerate() {
                match byte {
                    // The first dot of `..`, which the parser would refuse unencoded.
                    b'.' if bytes.get(at + 1) == Some(&b'.') => text.push_str("%2E"),
                    b'/' | b'-' | b'_' | b'.' | b'~' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => {
                        text.push(char::from(*byte));
                    }
                    byte => text.extend(['%', hex_digit(byte >> 4), hex_digit(byte & 15)]),
                }
            }
            text
        }
    }
}

fn hex_digit(value: u8) -> char {
    char::from_digit(u32::from(value), 16).unwrap_or('0').to_ascii_uppercase()
}

/// Decodes `%` and two hexadecimal digits to a byte. Other characters stay, including other uses of `%`.
fn percent_decoded(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let digit = |at: usize| tail.get(at).and_then(|byte| char::from(*byte).to_digit(16));
        if let (b'%', Some(high), Some(low)) = (first, digit(0), digit(1)) {
            bytes.extend(u8::try_from(high * 16 + low));
            rest = &tail[2..];
        } else {
            bytes.push(*first);
            rest = tail;
        }
    }
    bytes
}

fn web_place(scheme: &str, rest: &str) -> std::result::Result<String, String> {
    let rest = rest.split_once('#').map_or(rest, |(rest, _fragment)| rest);
    let (path, query) = match rest.split_once('?') {
        Some((path, query)) => (path, format!("?{query}")),
        None => (rest, String::new()),
    };
    if path.chars().any(char::is_control) || percent_decoded(path).contains(&0) {
        return Err("it has a control character".to_owned());
    }
    if leads_up(path) || leads_up(&String::from_utf8_lossy(&percent_decoded(path))) {
        return Err(LEADS_UP.to_owned());
    }
    let path = path.trim_end_matches('/');
    let host = without_user(path.split('/').next().unwrap_or_default());
    if host.is_empty() || host.starts_with(':') {
        return Err("it names no host".to_owned());
    }
    Ok(format!("{scheme}://{path}{query}"))
}

fn bucket_place(scheme: &str, rest: &str) -> std::result::Result<String, String> {
    let rest = rest.trim_end_matches('/');
    let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
    if bucket.is_empty() {
        return Err(format!("it names no bucket: {scheme}://BUCKET/KEY"));
    }
    if bucket.contains(['@', '?', '#', ':']) {
        return Err("the name of a bucket has no @, ?, # or colon; which server and which credentials are meant is said in the \
                    environment"
            .to_owned());
    }
    if leads_up(rest) {
        return Err(LEADS_UP.to_owned());
    }
    if let Some(complaint) = super::key::complaint(key).filter(|_| !key.is_empty()) {
        return Err(complaint);
    }
    Ok(format!("{scheme}://{rest}"))
}

/// Returns a URL for messages: without user, password and query, which may be a signature. `text` may be any text.
pub(crate) fn shown(text: &str) -> String {
    let mut rest = text;
    while let Some((name, behind)) = scheme(rest) {
        rest = behind;
        if !matches!(name.as_str(), "precomputed" | "zarr" | "zarr2" | "zarr3" | "n5") {
            break;
        }
    }
    if rest.len() == text.len() {
        return text.to_owned();
    }
    let front = &text[..text.len() - rest.len()];
    let (path, query) = rest.split_once('?').map_or((rest, ""), |(path, _)| (path, "?…"));
    let (authority, path) = path.split_at(path.find('/').unwrap_or(path.len()));
    let host = without_user(authority);
    // The text after the last colon is not a port: so a password may contain a slash, which splits it between host and
    // path. Such a text is not a valid URL, but the password must stay hidden.
    let is_torn =
        host.rsplit_once(':').is_some_and(|(_, port)| !port.bytes().all(|byte| byte.is_ascii_digit() || byte == b']'));
    if is_torn && path.contains('@') {
        return format!("{front}…{query}");
    }
    format!("{front}{host}{path}{query}")
}

fn without_user(text: &str) -> &str {
    text.rsplit_once('@').map_or(text, |(_, host)| host)
}

/// Appends a key to a URL that [`shown`] returned.
#[cfg(feature = "remote")]
pub(crate) fn join(shown: &str, key: &str) -> String {
    match shown.split_once('?') {
        Some((path, query)) => format!("{path}/{key}?{query}"),
        None => format!("{shown}/{key}"),
    }
}
