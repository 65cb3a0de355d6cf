//! Under which names the chunks of a volume are found: `NAME`, or the names of files that CloudVolume has packed, `NAME.gz`.
//!
//! A directory's store looks for both, and buckets announce the packing of an object. A plain web server has just the files, so
//! that both names are asked for, and what is found says which of them is worth asking for first. What is missing is asked for under
//! both, always: a volume may hold some chunks of each kind, and a chunk that is taken for missing may become background.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::error::Result;
use crate::store::{Object, Store};

/// What CloudVolume adds to the name of a file that it packs by gzip.
const PACKED: &str = ".gz";

/// Other ways in which CloudVolume packs the files of a volume.
pub(super) const OTHER_SUFFIXES: [(&str, &str); 5] =
    [(".br", "brotli"), (".bz2", "bzip2"), (".zstd", "zstd"), (".zst", "zstd"), (".xz", "xz")];

/// So many missing chunks are looked for under names that cannot be read.
const ENOUGH: usize = 16;

/// What was found so far, by all threads.
#[derive(Debug, Default)]
pub(super) struct Names {
    plain: AtomicBool,
    packed: AtomicBool,
    /// How many chunks were looked for under names that cannot be read.
    searched: AtomicUsize,
}

impl Names {
    /// Reads a chunk of at most so many bytes, whatever its name.
    ///
    /// Behind a web server, a chunk that is there costs one request once another one was found, and one that is missing two.
    pub(super) fn get(&self, store: &dyn Store, key: &str, most: u64) -> Result<Option<Object>> {
        if !store.is_web() {
            return store.get_at_most(key, most);
        }
        let mut names = [(key.to_owned(), false), (format!("{key}{PACKED}"), true)];
        if self.packed.load(Ordering::Relaxed) && !self.plain.load(Ordering::Relaxed) {
            names.reverse();
        }
        for (name, is_packed) in names {
            if let Some(mut object) = store.get_at_most(&name, most)? {
                object.gzip |= is_packed;
                if is_packed { &self.packed } else { &self.plain }.store(true, Ordering::Relaxed);
                return Ok(Some(object));
            }
        }
        Ok(None)
    }

    /// Returns the suffix under which a missing chunk is stored, packed in a way that cannot be read, and what that is called.
    ///
    /// A web server is asked only while nothing was found under a name that can be read.
    pub(super) fn other(&self, store: &dyn Store, key: &str) -> Result<Option<(&'static str, &'static str)>> {
        if store.is_web() {
            let found = self.plain.load(Ordering::Relaxed) || self.packed.load(Ordering::Relaxed);
            if found || self.searched.fetch_add(1, Ordering::Relaxed) >= ENOUGH {
                return Ok(None);
            }
        } else if store.is_remote() {
            // Buckets say how an object is packed, not its name.
            return Ok(None);
        }
        for (suffix, packing) in OTHER_SUFFIXES {
            match store.size(&format!("{key}{suffix}")) {
                Ok(Some(_)) => return Ok(Some((suffix, packing))),
                Ok(None) => {}
                // A web server need not like such questions, and it is only for a better message.
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

    /// The files of a web server, and what it was asked for.
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
        fn is_remote(&self) -> bool {
            true
        }
        fn is_web(&self) -> bool {
            true
        }
        fn get_at_most(&self, key: &str, _: u64) -> Result<Option<Object>> {
            Ok(self.answer(key).map(|bytes| Object { bytes, gzip: false, version: String::new() }))
        }
        fn get_range(&self, _: &str, _: Range<u64>) -> Result<Option<Vec<u8>>> {
            unreachable!("chunks are read whole")
        }
        fn get_suffix(&self, _: &str, _: u64) -> Result<Option<Vec<u8>>> {
            unreachable!("chunks are read whole")
        }
        fn size(&self, key: &str) -> Result<Option<u64>> {
            let found = self.answer(key);
            if self.refuses_to_look {
                return Err(Error::Store { op: "looking at", object: key.to_owned(), cause: "501".into() });
            }
            Ok(found.map(|bytes| bytes.len() as u64))
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

    #[test]
    fn a_healthy_volume_costs_one_request_for_each_chunk() {
        for (suffix, first) in [("", 1), (PACKED, 2)] {
            let (web, names) = (FakeWebServer::of(&chunks(0, 50, suffix)), Names::default());
            for number in 0..50 {
                let object = names.get(&web, &number.to_string(), 9).expect("an answer").expect("it is there");
                assert_eq!(object.gzip, suffix == PACKED);
                assert_eq!(web.asked().len(), if number == 0 { first } else { 1 }, "chunk {number} of `{suffix}`");
            }
        }
    }

    #[test]
    fn missing_chunks_cost_two_requests() {
        for suffix in ["", PACKED] {
            let (web, names) = (FakeWebServer::of(&chunks(0, 1, suffix)), Names::default());
            assert!(names.get(&web, "0", 9).expect("an answer").is_some());
            let _first = web.asked();
            for number in 1..=100 {
                let key = number.to_string();
                assert!(names.get(&web, &key, 9).expect("an answer").is_none());
                assert!(names.other(&web, &key).expect("an answer").is_none());
            }
            assert_eq!(web.asked().len(), 2 * 100, "`{suffix}`");
        }
    }

    #[test]
    fn a_volume_with_both_kinds_of_names_is_read() {
        let files = [chunks(0, 20, ""), chunks(520, 20, PACKED), chunks(540, 20, "")].concat();
        let (web, names) = (FakeWebServer::of(&files), Names::default());
        for number in 0..560 {
            let object = names.get(&web, &number.to_string(), 9).expect("an answer");
            let expected = (!(20..520).contains(&number)).then(|| (520..540).contains(&number));
            assert_eq!(object.map(|object| object.gzip), expected, "chunk {number}");
        }
    }

    #[test]
    fn a_server_that_refuses_to_look_is_asked_once() {
        let (mut web, names) = (FakeWebServer::of(&[]), Names::default());
        web.refuses_to_look = true;
        for number in 0..5 {
            assert_eq!(names.other(&web, &number.to_string()).expect("an answer"), None);
        }
        assert_eq!(web.asked().len(), 1);
    }

    #[test]
    fn a_packing_that_cannot_be_read_is_looked_for_a_few_times() {
        let (web, names) = (FakeWebServer::of(&chunks(0, 1, ".br")), Names::default());
        assert_eq!(names.other(&web, "0").expect("an answer"), Some((".br", "brotli")));
        let _first = web.asked();
        for number in 1..100 {
            assert_eq!(names.other(&web, &number.to_string()).expect("an answer"), None);
        }
        assert_eq!(web.asked().len(), (ENOUGH - 1) * OTHER_SUFFIXES.len());
    }
}
