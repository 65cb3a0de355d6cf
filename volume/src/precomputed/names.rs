//! Under which names the chunks of a volume are found: `NAME`, or the names of files that CloudVolume has packed, `NAME.gz`.
//!
//! A directory's store looks for both, and buckets announce the packing of an object. A plain web server has just the files, so
//! that both names are asked for, and what is found says which of them is worth asking for first, or at all.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::error::Result;
use crate::store::{Object, Store};

/// What CloudVolume adds to the name of a file that it packs by gzip.
const PACKED: &str = ".gz";

/// Other ways in which CloudVolume packs the files of a volume.
pub(super) const OTHER_SUFFIXES: [(&str, &str); 5] =
    [(".br", "brotli"), (".bz2", "bzip2"), (".zstd", "zstd"), (".zst", "zstd"), (".xz", "xz")];

/// So many missing chunks are looked for under a second name though all that were found had the first.
const ENOUGH: usize = 16;

/// What was found so far, by all threads.
#[derive(Debug, Default)]
pub(super) struct Names {
    plain: AtomicBool,
    packed: AtomicBool,
    /// Chunks that neither name led to, while all that were found had one and the same.
    in_vain: AtomicUsize,
    /// Whether suffixes that cannot be read were looked for.
    searched: AtomicUsize,
}

impl Names {
    /// Reads a chunk, whatever its name.
    ///
    /// A chunk that is there costs one request once another one was found; one that is missing costs two only as long as it is
    /// not clear that all chunks have the same kind of name.
    pub(super) fn get(&self, store: &dyn Store, key: &str) -> Result<Option<Object>> {
        if !store.is_web() {
            return store.get(key);
        }
        let (plain, packed) = (self.plain.load(Ordering::Relaxed), self.packed.load(Ordering::Relaxed));
        let is_clear = plain != packed && self.in_vain.load(Ordering::Relaxed) >= ENOUGH;
        let packed_first = packed && !plain;
        let mut names = [(key.to_owned(), false), (format!("{key}{PACKED}"), true)];
        if packed_first {
            names.reverse();
        }
        for (name, is_packed) in names.iter().take(if is_clear { 1 } else { 2 }) {
            if let Some(mut object) = store.get(name)? {
                object.gzip |= is_packed;
                if *is_packed { &self.packed } else { &self.plain }.store(true, Ordering::Relaxed);
                return Ok(Some(object));
            }
        }
        if plain != packed {
            self.in_vain.fetch_add(1, Ordering::Relaxed);
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
            if store.size(&format!("{key}{suffix}"))?.is_some() {
                return Ok(Some((suffix, packing)));
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

    /// The files of a web server, and what it was asked for.
    #[derive(Debug, Default)]
    struct Web {
        files: HashMap<String, Vec<u8>>,
        asked: Mutex<Vec<String>>,
    }

    impl Web {
        fn of(files: &[String]) -> Self {
            Self { files: files.iter().map(|name| (name.clone(), vec![1])).collect(), asked: Mutex::default() }
        }

        fn asked(&self) -> Vec<String> {
            std::mem::take(&mut *self.asked.lock().expect("the list"))
        }

        fn answer(&self, key: &str) -> Option<Vec<u8>> {
            self.asked.lock().expect("the list").push(key.to_owned());
            self.files.get(key).cloned()
        }
    }

    impl Store for Web {
        fn locate(&self, key: &str) -> String {
            key.to_owned()
        }
        fn is_remote(&self) -> bool {
            true
        }
        fn is_web(&self) -> bool {
            true
        }
        fn get(&self, key: &str) -> Result<Option<Object>> {
            Ok(self.answer(key).map(|bytes| Object { bytes, gzip: false, version: String::new() }))
        }
        fn get_range(&self, _: &str, _: Range<u64>) -> Result<Option<Vec<u8>>> {
            unreachable!("chunks are read whole")
        }
        fn get_suffix(&self, _: &str, _: u64) -> Result<Option<Vec<u8>>> {
            unreachable!("chunks are read whole")
        }
        fn size(&self, key: &str) -> Result<Option<u64>> {
            Ok(self.answer(key).map(|bytes| bytes.len() as u64))
        }
        fn put(&self, _: &str, _: Vec<u8>, _: bool) -> Result<()> {
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
            let (web, names) = (Web::of(&chunks(0, 50, suffix)), Names::default());
            for number in 0..50 {
                let object = names.get(&web, &number.to_string()).expect("an answer").expect("it is there");
                assert_eq!(object.gzip, suffix == PACKED);
                assert_eq!(web.asked().len(), if number == 0 { first } else { 1 }, "chunk {number} of `{suffix}`");
            }
        }
    }

    #[test]
    fn missing_chunks_cost_one_request_as_soon_as_it_is_clear_what_chunks_are_called() {
        for suffix in ["", PACKED] {
            let (web, names) = (Web::of(&chunks(0, 1, suffix)), Names::default());
            assert!(names.get(&web, "0").expect("an answer").is_some());
            let _first = web.asked();
            for number in 1..=ENOUGH + 100 {
                let key = number.to_string();
                assert!(names.get(&web, &key).expect("an answer").is_none());
                assert!(names.other(&web, &key).expect("an answer").is_none());
            }
            assert_eq!(web.asked().len(), 2 * ENOUGH + 100, "`{suffix}`");
        }
    }

    #[test]
    fn until_one_is_found_both_names_are_asked_for() {
        let (web, names) = (Web::of(&chunks(500, 1, PACKED)), Names::default());
        for number in 0..500 {
            assert!(names.get(&web, &number.to_string()).expect("an answer").is_none());
        }
        assert_eq!(web.asked().len(), 1000);
        assert!(names.get(&web, "500").expect("an answer").is_some_and(|object| object.gzip));
    }

    #[test]
    fn a_volume_with_both_kinds_of_names_is_read() {
        let files = [chunks(0, 20, ""), chunks(20, 20, PACKED), chunks(40, 20, "")].concat();
        let (web, names) = (Web::of(&files), Names::default());
        for number in 0..60 {
            let object = names.get(&web, &number.to_string()).expect("an answer").expect("it is there");
            assert_eq!(object.gzip, (20..40).contains(&number));
        }
    }

    #[test]
    fn a_packing_that_cannot_be_read_is_looked_for_a_few_times() {
        let (web, names) = (Web::of(&chunks(0, 1, ".br")), Names::default());
        assert_eq!(names.other(&web, "0").expect("an answer"), Some((".br", "brotli")));
        let _first = web.asked();
        for number in 1..100 {
            assert_eq!(names.other(&web, &number.to_string()).expect("an answer"), None);
        }
        assert_eq!(web.asked().len(), (ENOUGH - 1) * OTHER_SUFFIXES.len());
    }
}
