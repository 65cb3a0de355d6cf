//! Objects on a server: HTTP, S3, Google Cloud Storage, Azure.
//!
//! Temporary failures are retried: refused and broken connections, silence, status 429 and 5xx, bodies that end too
//! early (the rest is requested if the entity tag says that it is still the same object, otherwise all of it). A
//! failure that lasts becomes an error after [`RETRY_SECONDS`]; sooner if nothing was ever reached under the address.
//! Bytes arrive as they are stored: nothing here unpacks them.

mod connect;
mod failure;
mod forked;
mod lengths;
mod reach;
mod runtime;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::{StreamExt as _, TryStreamExt as _};
use object_store::path::Path;
use object_store::{
    Attribute, Attributes, GetOptions, GetRange, GetResultPayload, ObjectMeta, ObjectStore as _, ObjectStoreExt as _,
    PutMode, PutMultipartOptions, PutOptions, PutPayload,
};

use self::connect::{FIRST_PAUSE, LONGEST_PAUSE, RetryTimes, Server, Settings};
use self::failure::RequestFailure;
use self::forked::ForkedStore;
use self::runtime::RequestRuntime;
use crate::error::{Error, Result};
use crate::retries::{self, RETRY_SECONDS};
use crate::store::{LARGEST_OBJECT, Object, ObjectPart, Store, StoredVersion, key, not_built_in, too_long, url};

/// How long a server is tried that has never answered: enough for a restart that takes a moment, and for nothing else.
const FIRST_PATIENCE: Duration = Duration::from_secs(3);

/// Objects longer than this are sent in parts, so that a lost part costs little and no part takes longer than the limit
/// for silence.
const PART: usize = 16 << 20;

/// A bucket and a prefix in it, or a directory of a web server, with the connections of one process.
#[derive(Debug)]
struct RemoteStore {
    io: &'static RequestRuntime,
    server: Server,
    /// The URL for messages, without secrets.
    shown: String,
    /// The URL itself.
    place: String,
    patience: RetryTimes,
}

/// Opens the store of a URL.
pub(crate) fn open(place: &str) -> Result<Arc<dyn Store>> {
    open_with(place, &Settings::of_environment())
}

fn open_with(place: &str, settings: &Settings) -> Result<Arc<dyn Store>> {
    Ok(Arc::new(ForkedStore::open(place, settings)?))
}

/// Connects to the server of a URL.
fn connect_to(place: &str, settings: &Settings) -> Result<RemoteStore> {
    let shown = url::shown(place);
    let unusable = |reason: String| Error::Url { url: shown.clone(), reason };
    let (variable, usual) = RETRY_SECONDS;
    let patience = match settings.get(variable) {
        Some(text) => match text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()) {
            Some(chosen) => RetryTimes { usual: chosen, first: None },
            None => return Err(unusable(format!("{variable} is `{text}`, which is no number of seconds"))),
        },
        None => RetryTimes { usual, first: (!retries::waits_for_servers()).then_some(FIRST_PATIENCE) },
    };
    let io = RequestRuntime::current().map_err(|error| unusable(format!("cannot prepare requests: {error}")))?;
    let server = io
        .wait(connect::connect(place, settings, patience, io.answered()))
        .map_err(|forked| unusable(forked.to_string()))?
        .map_err(|failure| {
            if failure.is_unreached() {
                failed("opening", shown.clone(), failure)
            } else {
                unusable(failure.to_string())
            }
        })?
        .ok_or_else(|| not_built_in(&shown))?;
    Ok(RemoteStore { io, server, shown, place: place.to_owned(), patience })
}

fn failed(op: &'static str, object: String, failure: RequestFailure) -> Error {
    Error::Store { op, object, cause: Box::new(failure.into_fault()) }
}

/// The answer to a request for an object.
struct ReceivedObject {
    bytes: Vec<u8>,
    meta: ObjectMeta,
    gzip: bool,
}

impl ReceivedObject {
    fn into_part(self) -> ObjectPart {
        ObjectPart { version: version(&self.meta), length: self.meta.size, bytes: self.bytes }
    }
}

impl RemoteStore {
    /// Runs a request for a key, with retries, and waits for its answer.
    fn ask<T>(&self, op: &'static str, key: &str, request: impl AsyncFnMut(&Path) -> Answer<T>) -> Result<Option<T>> {
        let failed = |failure: RequestFailure| failed(op, self.locate(key), failure);
        if let Some(complaint) = key::complaint(key) {
            return Err(failed(RequestFailure::last(complaint)));
        }
        let path = self.path(key).map_err(failed)?;
        self.answer(key, &path, request).map_err(failed)
    }

    /// Waits for the answer to a request for a key.
    fn answer<T>(&self, key: &str, path: &Path, request: impl AsyncFnMut(&Path) -> Answer<T>) -> Answer<T> {
        retries::during(self.locate(key), || self.io.wait(self.again_and_again(path, request)))
            .map_err(|forked| RequestFailure::no_answer(forked.to_string()))?
    }

    fn path(&self, key: &str) -> std::result::Result<Path, RequestFailure> {
        let prefix = &self.server.prefix;
        let separator = if prefix.is_empty() || key.is_empty() { "" } else { "/" };
        Path::parse(format!("{prefix}{separator}{key}")).map_err(|error| RequestFailure::last(error.to_string()))
    }

    /// Repeats a request until it succeeds, fails permanently, or the patience is over.
    async fn again_and_again<T>(&self, path: &Path, mut request: impl AsyncFnMut(&Path) -> Answer<T>) -> Answer<T> {
        let begin = Instant::now();
        let mut pause = FIRST_PAUSE;
        loop {
            let failure = match request(path).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            let patience = self.patience.of(&failure);
            if begin.elapsed() >= patience {
                return Err(failure.after(format!("tried for {:.0?}", begin.elapsed())));
            }
            if !failure.may_pass() {
                return Err(failure);
            }
            retries::failed(&failure);
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Classifies an answer without an object: `None` if the object does not exist, otherwise an error.
    fn refused<T>(&self, error: &object_store::Error, status: Option<u16>) -> Answer<T> {
        match error {
            object_store::Error::NotFound { .. } => Ok(None),
            // S3 denies access to missing objects if the client may not list the bucket. An anonymous client sent no
            // credentials that could have expired, so the object is missing. With credentials it may be an expiry, and
            // then existing chunks must not become background.
            object_store::Error::PermissionDenied { .. } if self.server.is_anonymous && !self.server.is_web => Ok(None),
            error if self.server.is_anonymous && failure::is_denied(error) => Ok(None),
            error if failure::is_denied(error) => Err(RequestFailure::denied(
                "access denied: these credentials may not read it, or may not list the bucket, and then S3 also says so of \
                 objects that do not exist",
            )),
            error => Err(self.failure(error, status)),
        }
    }

    fn failure(&self, error: &object_store::Error, status: Option<u16>) -> RequestFailure {
        RequestFailure::of_request(error, status, self.server.is_anonymous)
    }

    /// Fetches an object or a part of it. A body that is too short is a temporary failure.
    async fn receive(&self, path: &Path, range: Option<GetRange>, most: u64) -> Answer<ReceivedObject> {
        let wanted = range.clone();
        let mut options = GetOptions { range, ..GetOptions::default() };
        let status = lengths::LastStatus::default();
        options.extensions.insert(lengths::Most(most));
        options.extensions.insert(status.clone());
        let found = match self.server.objects.get_opts(path, options).await {
            Ok(found) => found,
            Err(object_store::Error::NotSupported { .. }) if wanted.is_some() => {
                return Err(RequestFailure::about_range(
                    "this server cannot send a part of an object (HTTP range requests)",
                ));
            }
            Err(error) => return self.refused(&error, status.get()),
        };
        let gzip = is_gzip(&found.attributes)?;
        if gzip && wanted.is_some() {
            return Err(RequestFailure::last(
                "it is stored with Content-Encoding gzip, so no part of it can be read alone",
            ));
        }
        if let Some(GetRange::Bounded(wanted)) =
            wanted.filter(|wanted| *wanted != GetRange::Bounded(found.range.clone()))
        {
            let size = found.meta.size;
            return Err(RequestFailure::damaged(format!("bytes {wanted:?} were wanted, and the object has {size}")));
        }
        let length = found.range.end.saturating_sub(found.range.start);
        let Some(memory) = usize::try_from(length).ok().filter(|_| length <= most) else {
            return Err(RequestFailure::damaged(too_long(length, most)));
        };
        // The announced length may be false: beyond the first `PART`, memory is allocated as bytes arrive.
        let mut bytes = Vec::with_capacity(memory.min(PART));
        let meta = found.meta.clone();
        let GetResultPayload::Stream(mut body) = found.payload;
        while let Some(piece) = body.next().await {
            let piece = piece.map_err(|error| RequestFailure::of_body(&error))?;
            if bytes.len() + piece.len() > memory {
                break;
            }
            bytes.extend_from_slice(&piece);
        }
        if bytes.len() != memory {
            let came = bytes.len();
            return Err(RequestFailure::too_short(format!(
                "the answer had {came} bytes, where {memory} were announced"
            )));
        }
        Ok(Some(ReceivedObject { bytes, meta, gzip }))
    }

    /// Asks for the facts about an object; reads nothing of it.
    fn look(&self, key: &str) -> Result<Option<ObjectMeta>> {
        self.ask("reading", key, async |path| {
            let status = lengths::LastStatus::default();
            let mut options = GetOptions { head: true, ..GetOptions::default() };
            options.extensions.insert(status.clone());
            match self.server.objects.get_opts(path, options).await {
                Ok(found) => Ok(Some(found.meta)),
                Err(error) => self.refused(&error, status.get()),
            }
        })
    }

    /// Writes an object if there is none. On a server without conditional requests, writes it in any case.
    async fn send_new(&self, path: &Path, payload: PutPayload) -> Answer<bool> {
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        match self.server.objects.put_opts(path, payload.clone(), options).await {
            Ok(_) => Ok(Some(true)),
            Err(object_store::Error::AlreadyExists { .. }) => Ok(Some(false)),
            Err(object_store::Error::NotImplemented { .. } | object_store::Error::NotSupported { .. }) => {
                Ok(self.send(path, payload, false).await?.map(|()| true))
            }
            Err(error) => Err(self.failure(&error, None)),
        }
    }

    async fn send(&self, path: &Path, payload: PutPayload, gzip: bool) -> Answer<()> {
        let mut attributes = Attributes::new();
        if gzip {
            attributes.insert(Attribute::ContentEncoding, "gzip".into());
        }
        let objects = &self.server.objects;
        let sent = if payload.content_length() <= PART {
            objects.put_opts(path, payload, PutOptions { attributes, ..PutOptions::default() }).await.map(|_| ())
        } else {
            let options = PutMultipartOptions { attributes, ..PutMultipartOptions::default() };
            self.send_in_parts(path, payload, options).await
        };
        sent.map(Some).map_err(|error| self.failure(&error, None))
    }

    async fn send_in_parts(
        &self,
        path: &Path,
        payload: PutPayload,
        options: PutMultipartOptions,
    ) -> object_store::Result<()> {
        let mut upload = self.server.objects.put_multipart_opts(path, options).await?;
        let sent = async {
            for piece in &payload {
                for begin in (0..piece.len()).step_by(PART) {
                    let part = piece.slice(begin..piece.len().min(begin + PART));
                    upload.put_part(part.into()).await?;
                }
            }
            upload.complete().await.map(|_| ())
        };
        let sent = sent.await;
        if sent.is_err() {
            // Uploaded parts of an unfinished object cost storage fees. If removing them fails too, nothing more can be
            // done.
            let _ = upload.abort().await;
        }
        sent
    }

    fn writable(&self, op: &'static str, key: &str) -> Result<()> {
        if !self.server.is_web {
            return Ok(());
        }
        let reason = "web servers are read only: write to s3://, gs://, az:// or a directory";
        Err(failed(op, self.locate(key), RequestFailure::last(reason)))
    }
}

/// The content, `None` for a missing object, or a failure.
type Answer<T> = std::result::Result<Option<T>, RequestFailure>;

/// Returns the version of an object: its entity tag. A weak one (`W/"..."`) does not promise the same bytes.
fn version(meta: &ObjectMeta) -> StoredVersion {
    match &meta.e_tag {
        Some(tag) if !tag.starts_with("W/") => StoredVersion::settled(tag),
        _ => StoredVersion::Unknown,
    }
}

/// Whether the server says that an object is a gzip stream. Other content encodings are errors.
fn is_gzip(attributes: &Attributes) -> std::result::Result<bool, RequestFailure> {
    let Some(encoding) = attributes.get(&Attribute::ContentEncoding) else { return Ok(false) };
    let mut names = encoding
        .split(',')
        .map(|name| name.trim().to_ascii_lowercase())
        .filter(|name| !matches!(name.as_str(), "" | "identity" | "aws-chunked"));
    match (names.next().as_deref(), names.next()) {
        (None, _) => Ok(false),
        (Some("gzip" | "x-gzip"), None) => Ok(true),
        _ => Err(RequestFailure::last(format!("Content-Encoding `{}` is not supported, only gzip", &**encoding))),
    }
}

impl Store for RemoteStore {
    fn locate(&self, key: &str) -> String {
        url::join(&self.shown, key)
    }

    fn cache_place(&self, key: &str) -> Option<String> {
        let place = url::identified(&self.place, key);
        let meant = &self.server.meant;
        let place = if meant.is_empty() { place } else { format!("{place} of {meant}") };
        // Each network namespace has servers of its own at these addresses. Where there are none, the link is missing.
        let is_here = ["://localhost", "://127.", "://[::1]"].iter().any(|host| place.contains(host));
        let namespace = is_here.then(|| std::fs::read_link("/proc/self/ns/net").ok()).flatten();
        Some(namespace.map_or_else(|| place.clone(), |namespace| format!("{place} in {}", namespace.display())))
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn is_web(&self) -> bool {
        self.server.is_web
    }

    fn get_at_most(&self, key: &str, most: u64) -> Result<Option<Object>> {
        let received = self.ask("reading", key, async |path| self.receive(path, None, most).await)?;
        Ok(received.map(|received| {
            let ReceivedObject { bytes, gzip, meta } = received;
            let version = version(&meta);
            let mark = meta.e_tag.unwrap_or_else(|| meta.last_modified.timestamp_millis().to_string());
            Object { bytes, gzip, mark, version }
        }))
    }

    fn get_range(&self, key: &str, range: Range<u64>) -> Result<Option<ObjectPart>> {
        if range.is_empty() {
            let part = |meta: ObjectMeta| ObjectPart { bytes: Vec::new(), length: meta.size, version: version(&meta) };
            return Ok(self.look(key)?.map(part));
        }
        let wanted = GetRange::Bounded(range);
        let received =
            self.ask("reading", key, async |path| self.receive(path, Some(wanted.clone()), LARGEST_OBJECT).await)?;
        Ok(received.map(ReceivedObject::into_part))
    }

    fn get_suffix(&self, key: &str, length: u64) -> Result<Option<ObjectPart>> {
        let begin = Instant::now();
        let asked = self.ask("reading", key, async |path| {
            match self.receive(path, Some(GetRange::Suffix(length)), LARGEST_OBJECT).await {
                // Not every server supports ranges that count from the end, and some refuse them if the object is
                // shorter. Then a range from the beginning is tried below; if the cause is another one, that request
                // fails with it too. After the patience is over there is no further request.
                Err(failure) if failure.is_about_range() && begin.elapsed() < self.patience.usual => Ok(Some(None)),
                other => Ok(other?.map(Some)),
            }
        })?;
        match asked {
            None => Ok(None),
            Some(Some(received)) => Ok(Some(received.into_part())),
            Some(None) => {
                // The first answer was about a range, so the object exists: it must not be taken for missing.
                let Some(size) = self.size(key)? else {
                    let reason = "this server cannot send the end of an object, and does not say how long it is";
                    return Err(failed("reading", self.locate(key), RequestFailure::last(reason)));
                };
                self.get_range(key, size.saturating_sub(length)..size)
            }
        }
    }

    fn size(&self, key: &str) -> Result<Option<u64>> {
        Ok(self.look(key)?.map(|meta| meta.size))
    }

    fn version(&self, key: &str) -> Result<Option<StoredVersion>> {
        Ok(self.look(key)?.map(|meta| version(&meta)))
    }

    fn put(&self, key: &str, bytes: Vec<u8>, gzip: bool) -> Result<()> {
        self.writable("writing", key)?;
        let payload = PutPayload::from(bytes);
        self.ask("writing", key, async |path| self.send(path, payload.clone(), gzip).await).map(|_| ())
    }

    fn put_new(&self, key: &str, bytes: Vec<u8>) -> Result<bool> {
        self.writable("writing", key)?;
        let payload = PutPayload::from(bytes);
        let made = self.ask("writing", key, async |path| self.send_new(path, payload.clone()).await)?;
        Ok(made.unwrap_or(false))
    }

    fn delete(&self, key: &str) -> Result<bool> {
        self.writable("removing", key)?;
        if self.size(key)?.is_none() {
            return Ok(false);
        }
        let gone = self.ask("removing", key, async |path| match self.server.objects.delete(path).await {
            Ok(()) => Ok(Some(())),
            Err(error) => self.refused(&error, None),
        })?;
        Ok(gone.is_some())
    }

    fn first_keys(&self, prefix: &str, most: usize) -> Result<Vec<String>> {
        let failed = |failure| failed("listing", self.locate(prefix), failure);
        let path = self.path(prefix).map_err(failed)?;
        let root = self.path("").map_err(failed)?;
        let request = async |path: &Path| {
            let found = self.server.objects.list(Some(path)).take(most);
            let found: Vec<_> = found.try_collect().await.map_err(|error| self.failure(&error, None))?;
            let key = |found: &ObjectMeta| {
                let parts: Option<Vec<_>> = found.location.prefix_match(&root).map(Iterator::collect);
                parts.map(|parts| parts.iter().map(AsRef::as_ref).collect::<Vec<&str>>().join("/"))
            };
            Ok(Some(found.iter().filter_map(key).collect::<Vec<String>>()))
        };
        Ok(self.answer(prefix, &path, request).map_err(failed)?.unwrap_or_default())
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>> {
        let failed = |failure| failed("listing", self.locate(prefix), failure);
        if self.server.is_web {
            return Err(failed(RequestFailure::last("web servers do not say which objects they have")));
        }
        if let Some(complaint) = key::complaint(prefix).filter(|_| !prefix.is_empty()) {
            return Err(failed(RequestFailure::last(complaint)));
        }
        let path = self.path(prefix).map_err(failed)?;
        let request = async |path: &Path| {
            let listed = self.server.objects.list_with_delimiter(Some(path)).await;
            let listed = listed.map_err(|error| self.failure(&error, None))?;
            let name = |path: &Path| path.filename().unwrap_or_default().to_owned();
            let objects = listed.objects.iter().map(|object| name(&object.location));
            let groups = listed.common_prefixes.iter().map(|group| format!("{}/", name(group)));
            let mut names: Vec<String> = objects.chain(groups).collect();
            names.sort();
            Ok(Some(names))
        };
        Ok(self.answer(prefix, &path, request).map_err(failed)?.unwrap_or_default())
    }
}
