//! The names under which chunks are found: in the flat or nested layout, as `NAME`, or as `NAME.gz` if CloudVolume or
//! neuroglancer-scripts packed the files.
//!
//! The store of a directory finds packed files by itself, and buckets announce the packing of an object. A plain web
//! server serves only the files, so both names are requested; the names found so far decide which one is requested
//! first. A chunk is missing only if neither name exists: a volume may hold chunks of both kinds, and a chunk that is
//! wrongly taken for missing may become background.
//!
//! A scale has one layout, because the programs that write scales use one. So on a server both layouts are tried until
//! a chunk is found, and for a few missing chunks after that. In a directory both are always tried.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::key::NameLayout;
use crate::error::Result;
use crate::store::{Object, Store, StoredVersion};

/// Suffix of files packed by gzip.
const PACKED: &str = ".gz";

/// Suffixes of other packings that CloudVolume uses, which cannot be read here.
pub(super) const OTHER_SUFFIXES: [(&str, &str); 5] =
    [(".br", "brotli"), (".bz2", "bzip2"), (".zstd", "zstd"), (".zst", "zstd"), (".xz", "xz")];

/// Number of missing chunks that are also tried under unreadable suffixes, and number that are also tried in the other
/// layout.
const ENOUGH: usize = 16;

/// The kinds of names found so far, by all threads. Hints for the order of requests, so relaxed atomics are enough.
#[derive(Debug, Default)]
pub(super) struct Names {
    plain: AtomicBool,
    packed: AtomicBool,
    flat: AtomicBool,
    nested: AtomicBool,
    /// Number of chunks that were tried in the layout that no found chunk has.
    looked: AtomicUsize,
    /// Number of chunks that were tried under unreadable suffixes.
    searched: AtomicUsize,
}

impl Names {
    /// Reads a chunk of at most `most` bytes under any of its names; `key` returns its key in a layout.
    ///
    /// On a web server, once a chunk was found, an existing chunk costs one request and a missing one two.
    pub(super) fn get(
        &self,
        store: &dyn Store,
        key: &dyn Fn(NameLayout) -> String,
        most: u64,
    ) -> Result<Option<Object>> {
        let found = self.find(store, key, |name| store.get_at_most(name, most))?;
        Ok(found.map(|(object, is_packed)| Object { gzip: object.gzip || is_packed, ..object }))
    }

    /// Returns the version of the object that [`get`](Self::get) would read; reads nothing of it.
    pub(super) fn version(
        &self,
        store: &dyn Store,
        key: &dyn Fn(NameLayout) -> String,
    ) -> Result<Option<StoredVersion>> {
        Ok(self.find(store, key, |name| store.version(name))?.map(|(version, _)| version))
    }

    /// Looks for a chunk under its names. Returns what `look` has found, and whether the name has the suffix.
    fn find<T>(
        &self,
        store: &dyn Store,
        key: &dyn Fn(NameLayout) -> String,
        look: impl Fn(&str) -> Result<Option<T>>,
    ) -> Result<Option<(T, bool)>> {
        for (number, layout) in self.layouts(store).into_iter().enumerate() {
            if number > 0 && !self.is_worth_another_look(store) {
                break;
            }
            let key = key(layout);
            for suffix in self.suffixes(store, layout) {
                let Some(found) = look(&format!("{key}{suffix}"))? else { continue };
                let is_packed = *suffix == PACKED;
                let kind = if is_packed { &self.packed } else { &self.plain };
                let layout = if layout == NameLayout::Flat { &self.flat } else { &self.nested };
                kind.store(true, Ordering::Relaxed);
                layout.store(true, Ordering::Relaxed);
                return Ok(Some((found, is_packed)));
            }
        }
        Ok(None)
    }

    /// Returns the layout of the chunks found so far; flat if there were none, or both.
    pub(super) fn layout(&self) -> NameLayout {
        let (flat, nested) = (self.flat.load(Ordering::Relaxed), self.nested.load(Ordering::Relaxed));
        if nested && !flat { NameLayout::Nested } else { NameLayout::Flat }
    }

    /// Returns both layouts in the order to try them. In a directory the order is always the same, so that of a chunk
    /// stored in both layouts the same one is read every time.
    fn layouts(&self, store: &dyn Store) -> [NameLayout; 2] {
        match self.layout() {
            NameLayout::Nested if store.is_remote() => [NameLayout::Nested, NameLayout::Flat],
            _ => [NameLayout::Flat, NameLayout::Nested],
        }
    }

    /// Whether to try the second layout for a chunk that is not in the first.
    fn is_worth_another_look(&self, store: &dyn Store) -> bool {
        let is_settled = self.flat.load(Ordering::Relaxed) != self.nested.load(Ordering::Relaxed);
        !(store.is_remote() && is_settled) || self.looked.fetch_add(1, Ordering::Relaxed) < ENOUGH
    }

    /// Returns the suffixes to try, in order.
    fn suffixes(&self, store: &dyn Store, layout: NameLayout) -> &'static [&'static str] {
        // A directory's store adds the suffix itself; in buckets only copies of nested files have it.
        if !store.is_remote() || (!store.is_web() && layout == NameLayout::Flat) {
            return &[""];
        }
        let is_packed = self.packed.load(Ordering::Relaxed) && !self.plain.load(Ordering::Relaxed);
        if is_packed { &[PACKED, ""] } else { &["", PACKED] }
    }

    /// Returns the unreadable suffix under which a missing chunk is stored, and the name of its packing.
    ///
    /// A web server is asked only while no chunk was found under a readable name.
    pub(super) fn other(&self, store: &dyn Store, key: &str) -> Result<Option<(&'static str, &'static str)>> {
        if store.is_web() {
            let found = self.plain.load(Ordering::Relaxed) || self.packed.load(Ordering::Relaxed);
            if found || self.searched.fetch_add(1, Ordering::Relaxed) >= ENOUGH {
                return Ok(None);
            }
        } else if store.is_remote() {
            // In buckets a header tells the packing of an object, not its name.
            return Ok(None);
        }
        for (suffix, packing) in OTHER_SUFFIXES {
            match store.size(&format!("{key}{suffix}")) {
                Ok(Some(_)) => return Ok(Some((suffix, packing))),
                Ok(None) => {}
                // A web server may refuse such requests; the answer would only improve a message.
                Err(_) if store.is_web() => {
                    self.searched.store(ENOUGH, Ordering::Relaxed);
                    return Ok(None);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::ops::Range;
    use std::sync::Mutex;

    use super::*;
    use crate::error::Error;
    use crate::store::ObjectPart;

    /// A web server with these files, which records the requests.
    #[derive(Debug, Default)]
    struct FakeWebServer {
        files: HashMap<String, Vec<u8>>,
        asked: Mutex<Vec<String>>,
        refuses_to_look: bool,
    }

    impl FakeWebServer {
        fn of(files: &[String]) -> Self {
            Self { files: files.iter().map(|name| (name.clone(), vec![1])).collect(), ..Self::default() }
        }

        fn asked(&self) -> Vec<String> {
            std::mem::take(&mut *self.asked.lock().expect("the list"))
        }

        fn answer(&self, key: &str) -> Option<Vec<u8>> {
            self.asked.lock().expect("the list").push(key.to_owned());
            self.files.get(key).cloned()
        }
    }

    impl Store for FakeWebServer {
        fn locate(&self, key: &str) -> String {
            key.to_owned()
        }
        fn cache_place(&self, _: &str) -> Option<String> {
            None
        }
        fn is_remote(&self) -> bool {
            true
        }
        fn is_web(&self) -> bool {
            true
        }
        fn get_at_most(&self, key: &str, _: u64) -> Result<Option<Object>> {
            Ok(self.answer(key).map(|bytes| Object {
                bytes,
                gzip: false,
                mark: String::new(),
                version: StoredVersion::Unknown,
            }))
        }
        fn get_range(&self, _: &str, _: Range<u64>) -> Result<Option<ObjectPart>> {
            unreachable!("chunks are read whole")
        }
        fn get_suffix(&self, _: &str, _: u64) -> Result<Option<ObjectPart>> {
            unreachable!("chunks are read whole")
        }
        fn size(&self, key: &str) -> Result<Option<u64>> {
            let found = self.answer(key);
            if self.refuses_to_look {
                return Err(Error::Store { op: "looking at", object: key.to_owned(), cause: "501".into() });
            }
            Ok(found.map(|bytes| bytes.len() as u64))
        }
        fn version(&self, key: &str) -> Result<Option<StoredVersion>> {
            Ok(self.answer(key).map(|_| StoredVersion::settled(key)))
        }
        fn put(&self, _: &str, _: Vec<u8>, _: bool) -> Result<()> {
            unreachable!("web servers are read")
        }
        fn put_new(&self, _: &str, _: Vec<u8>) -> Result<bool> {
            unreachable!("web servers are read")
        }
        fn delete(&self, _: &str) -> Result<bool> {
            unreachable!("web servers are read")
        }
        fn list(&self, _: &str) -> Result<Vec<String>> {
            unreachable!("web servers do not list")
        }
    }

    fn chunks(from: usize, count: usize, suffix: &str) -> Vec<String> {
        (from..from + count).map(|number| format!("{number}{suffix}")).collect()
    }

    /// Returns the keys of chunk `number`.
    fn key(number: usize) -> impl Fn(NameLayout) -> String {
        move |layout| match layout {
            NameLayout::Flat => number.to_string(),
            NameLayout::Nested => format!("nested/{number}"),
        }
    }

    fn nested(from: usize, count: usize, suffix: &str) -> Vec<String> {
        chunks(from, count, suffix).into_iter().map(|name| format!("nested/{name}")).collect()
    }

    #[test]
    fn existing_chunks_cost_one_request_each() {
        let files = [chunks(0, 50, ""), chunks(0, 50, PACKED), nested(0, 50, ""), nested(0, 50, PACKED)];
        for (first, files) in (1..).zip(files) {
            let (web, names) = (FakeWebServer::of(&files), Names::default());
            let suffix = if first % 2 == 0 { PACKED } else { "" };
            for number in 0..50 {
                let object = names.get(&web, &key(number), 9).expect("an answer").expect("it is there");
                assert_eq!(object.gzip, suffix == PACKED);
                assert_eq!(web.asked().len(), if number == 0 { first } else { 1 }, "chunk {number} of {}", files[0]);
            }
        }
    }

    #[test]
    fn missing_chunks_cost_two_requests() {
        for files in [chunks(0, 1, ""), chunks(0, 1, PACKED), nested(0, 1, ""), nested(0, 1, PACKED)] {
            let (web, names) = (FakeWebServer::of(&files), Names::default());
            assert!(names.get(&web, &key(0), 9).expect("an answer").is_some());
            let _ = web.asked();
            for number in 1..=100 {
                assert!(names.get(&web, &key(number), 9).expect("an answer").is_none());
                assert!(names.other(&web, &number.to_string()).expect("an answer").is_none());
                let asked = web.asked().len();
                assert_eq!(asked, if number <= ENOUGH { 4 } else { 2 }, "chunk {number} beside {}", files[0]);
            }
        }
    }

    #[test]
    fn first_chunk_is_found_in_either_layout() {
        let (web, names) = (FakeWebServer::of(&nested(500, 1, PACKED)), Names::default());
        for number in 0..500 {
            assert!(names.get(&web, &key(number), 9).expect("an answer").is_none());
        }
        assert_eq!(names.layout(), NameLayout::Flat);
        assert!(names.get(&web, &key(500), 9).expect("an answer").is_some_and(|object| object.gzip));
        assert_eq!(names.layout(), NameLayout::Nested);
    }

    #[test]
    fn mixed_layouts_are_read_once_both_were_seen() {
        let files = [chunks(0, 1, ""), nested(ENOUGH, 1, ""), chunks(500, 1, ""), nested(900, 1, "")].concat();
        let (web, names) = (FakeWebServer::of(&files), Names::default());
        for number in 0..=900 {
            let is_there = names.get(&web, &key(number), 9).expect("an answer").is_some();
            assert_eq!(is_there, [0, ENOUGH, 500, 900].contains(&number), "chunk {number}");
        }
    }

    #[test]
    fn volume_with_both_kinds_of_names_is_read() {
        let files = [chunks(0, 20, ""), chunks(520, 20, PACKED), chunks(540, 20, "")].concat();
        let (web, names) = (FakeWebServer::of(&files), Names::default());
        for number in 0..560 {
            let object = names.get(&web, &key(number), 9).expect("an answer");
            let expected = (!(20..520).contains(&number)).then(|| (520..540).contains(&number));
            assert_eq!(object.map(|object| object.gzip), expected, "chunk {number}");
        }
    }

    #[test]
    fn server_that_refuses_unusual_names_is_asked_once() {
        let (mut web, names) = (FakeWebServer::of(&[]), Names::default());
        web.refuses_to_look = true;
        for number in 0..5 {
            assert_eq!(names.other(&web, &number.to_string()).expect("an answer"), None);
        }
        assert_eq!(web.asked().len(), 1);
    }

    #[test]
    fn unreadable_packing_is_searched_a_few_times() {
        let (web, names) = (FakeWebServer::of(&chunks(0, 1, ".br")), Names::default());
        assert_eq!(names.other(&web, "0").expect("an answer"), Some((".br", "brotli")));
        let _ = web.asked();
        for number in 1..100 {
            assert_eq!(names.other(&web, &number.to_string()).expect("an answer"), None);
        }
        assert_eq!(web.asked().len(), (ENOUGH - 1) * OTHER_SUFFIXES.len());
    }
}
