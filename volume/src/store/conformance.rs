//! The conformance suite of [`Store`]: one function for each group of promises, run on every store.

use std::collections::BTreeMap;

use crate::store::{Store, StoredVersion};

/// Returns pseudorandom bytes, different for each seed.
pub(crate) fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    std::iter::repeat_with(&mut next).take(length).collect()
}

/// The objects that every store is tested with: keys, bytes, and whether the bytes are a gzip stream.
pub(crate) fn samples() -> BTreeMap<&'static str, (Vec<u8>, bool)> {
    let gzip_stream = libdeflated(&noise(9, 5000));
    BTreeMap::from([
        ("info", (b"{\"type\": \"image\"}".to_vec(), false)),
        ("0/-64-0_0-64_0-64", (noise(1, 262_144), false)),
        ("0/packed", (gzip_stream, true)),
        ("0/a b+c=d~e(1),ü@%20%", (noise(2, 100), false)),
        ("0/empty", (Vec::new(), false)),
        ("c/0/1/2", (noise(3, 1_000_003), false)),
    ])
}

fn libdeflated(bytes: &[u8]) -> Vec<u8> {
    let mut packer = libdeflater::Compressor::new(libdeflater::CompressionLvl::fastest());
    let mut stream = vec![0; packer.gzip_compress_bound(bytes.len())];
    let length = packer.gzip_compress(bytes, &mut stream).expect("room enough");
    stream.truncate(length);
    stream
}

/// Checks all promises of reading, on a store that has the [`samples`].
pub(crate) fn reads(store: &dyn Store) {
    for (key, (bytes, gzip)) in samples() {
        let found = store.get(key).expect(key).unwrap_or_else(|| panic!("{key} is not there"));
        assert!(found.bytes == bytes, "{key}: {} bytes of {}", found.bytes.len(), bytes.len());
        assert_eq!(found.gzip, gzip, "{key}");
        assert!(!found.mark.is_empty(), "{key}");
        assert_eq!(store.get(key).expect(key).expect(key).mark, found.mark, "{key}: it did not change");
        let version = store.version(key).expect(key).expect(key);
        assert_eq!(tag(&version), tag(&found.version), "{key}: it did not change");
        assert_eq!(store.size(key).expect(key), Some(bytes.len() as u64), "{key}");
    }
    let (key, bytes) = ("c/0/1/2", noise(3, 1_000_003));
    assert!(store.get_at_most(key, 1_000_003).expect("as long as it may be").is_some());
    for most in [0, 1_000_002] {
        let error = store.get_at_most(key, most).expect_err("too long");
        let text = format!("{error}: {}", std::error::Error::source(&error).expect("a cause")).replace('\\', "/");
        assert!(text.contains(key) && text.contains(&format!("({most})")), "{text}");
    }
    let whole = tag(&store.version(key).expect("its version").expect("it is there"));
    for range in [0..1, 0..1_000_003, 999_999..1_000_003, 1_000_002..1_000_003, 70..70, 500_000..800_000] {
        let part = store.get_range(key, range.clone()).expect("a part").expect("it is there");
        let (start, end) = (usize::try_from(range.start).expect("small"), usize::try_from(range.end).expect("small"));
        assert!(part.bytes == bytes[start..end], "{range:?}");
        assert_eq!((part.length, tag(&part.version)), (1_000_003, whole.clone()), "{range:?}");
    }
    for length in [1, 16, 1_000_003, 2_000_000] {
        let part = store.get_suffix(key, length).expect("its end").expect("it is there");
        let begin = bytes.len().saturating_sub(usize::try_from(length).expect("small"));
        assert!(part.bytes == bytes[begin..], "the last {length}");
        assert_eq!((part.length, tag(&part.version)), (1_000_003, whole.clone()), "the last {length}");
    }
    assert!(store.get_suffix("0/empty", 16).expect("nothing").expect("it is there").bytes.is_empty());
    for range in [0..1_000_004, 1_000_003..1_000_004, 2_000_000..2_000_001, 0..u64::MAX, 5..u64::MAX - 1] {
        let error = store.get_range(key, range.clone()).expect_err("too far");
        assert!(error.to_string().replace('\\', "/").contains(key), "{range:?}: {error}");
    }
    missing_objects_are_none(store);
    bad_keys_are_refused(store);
}

/// Returns the tag of a version. Whether it is settled depends on when it was asked for.
fn tag(version: &StoredVersion) -> Option<String> {
    match version {
        StoredVersion::Tagged { tag, .. } => Some(tag.clone()),
        StoredVersion::Unknown => None,
        StoredVersion::Mixed => panic!("it did not change"),
    }
}

fn missing_objects_are_none(store: &dyn Store) {
    for key in ["nothing", "c/0/1/3", "no/such/group", "info/below"] {
        assert!(store.get(key).expect(key).is_none(), "{key}");
        assert!(store.get_range(key, 0..5).expect(key).is_none(), "{key}");
        assert!(store.get_suffix(key, 5).expect(key).is_none(), "{key}");
        assert!(store.size(key).expect(key).is_none(), "{key}");
        assert_eq!(store.version(key).expect(key), None, "{key}");
    }
}

fn bad_keys_are_refused(store: &dyn Store) {
    for key in ["../info", "0/../info", "/info", "0//x", "0/", "", "0/.", "..\\info", "in\0fo"] {
        let name = format!("{key:?}");
        let errors = [
            store.get(key).expect_err(key),
            store.get_range(key, 0..1).expect_err(key),
            store.get_suffix(key, 1).expect_err(key),
            store.size(key).expect_err(key),
            store.version(key).expect_err(key),
            store.put(key, vec![1], false).expect_err(key),
            store.delete(key).expect_err(key),
        ];
        for error in errors {
            let text = format!("{error}: {}", std::error::Error::source(&error).expect("a cause"));
            assert!(text.contains(&name) || text.contains("empty") || text.contains("read only"), "{text}");
        }
    }
    assert!(store.list("../x").is_err());
}

/// Checks all promises of writing, on an empty store. Afterwards the store has the [`samples`].
pub(crate) fn writes(store: &dyn Store) {
    assert!(store.list("").expect("an empty root").is_empty());
    for (key, (bytes, gzip)) in samples() {
        assert!(store.get(key).expect(key).is_none(), "{key}");
        store.put(key, bytes, gzip).expect(key);
    }
    assert_eq!(store.list("").expect("the root"), ["0/", "c/", "info"]);
    assert_eq!(store.list("0").expect("a group"), ["-64-0_0-64_0-64", "a b+c=d~e(1),ü@%20%", "empty", "packed"]);
    assert_eq!(store.list("c/0").expect("a group"), ["1/"]);
    assert!(store.list("nothing").expect("no group").is_empty());

    // Replacing an object, packed or not, by a longer or shorter one.
    let mut before = None;
    for (length, gzip) in [(10, false), (20, true), (5, true), (40, false), (30, true), (10, false)] {
        store.put("0/changing", noise(length, 10 * usize::try_from(length).expect("small")), gzip).expect("a change");
        let found = store.get("0/changing").expect("the new one").expect("it is there");
        assert_eq!((found.bytes.len() as u64, found.gzip), (10 * length, gzip));
        assert!(found.bytes == noise(length, found.bytes.len()));
        let version = tag(&store.version("0/changing").expect("its version").expect("it is there"));
        assert_eq!(version, tag(&found.version), "{length}");
        assert!(version.is_none() || version != before, "{length}: the version of the object before");
        before = version;
    }
    assert!(store.delete("0/changing").expect("removing"));
    assert!(store.get("0/changing").expect("nothing").is_none());
    assert!(!store.delete("0/changing").expect("removing again"));

    assert!(store.put_new("0/first", vec![1; 10]).expect("there is none"));
    assert!(!store.put_new("0/first", vec![2; 20]).expect("there is one"));
    assert_eq!(store.get("0/first").expect("the first").expect("it is there").bytes, [1; 10]);
    assert!(store.delete("0/first").expect("removing"));
    store.put("0/first", noise(1, 10), true).expect("a packed one");
    assert!(!store.put_new("0/first", vec![2; 20]).expect("there is one"));
    assert!(store.delete("0/first").expect("removing"));
    assert_eq!(store.list("0").expect("a group").len(), 4);

    // Longer than one part of an upload.
    let long = noise(7, (17 << 20) + 5);
    store.put("long", long.clone(), true).expect("a long object");
    let found = store.get("long").expect("the long one").expect("it is there");
    assert!(found.bytes == long && found.gzip);
    assert!(store.delete("long").expect("removing"));
}

/// Checks that readers see the whole old object or the whole new one while it is written repeatedly. All threads use
/// one store.
pub(crate) fn is_replaced_in_one_step(store: &dyn Store, rounds: u64) {
    let object = |round: u64| [vec![u8::try_from(round % 251).expect("small"); 200_000], vec![7; 1]].concat();
    store.put("0/one-step", object(0), false).expect("the first");
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    for _ in 0..rounds {
                        let found = store.get("0/one-step").expect("reading").expect("always there").bytes;
                        assert!(found == object(u64::from(found[0])), "a half-made object of {} bytes", found.len());
                        if cfg!(windows) {
                            // Without POSIX semantics, as under Wine, an object can be replaced only while it is not
                            // being read.
                            std::thread::sleep(std::time::Duration::from_millis(20));
                        }
                    }
                })
            })
            .collect();
        for round in 0..rounds {
            store.put("0/one-step", object(round), false).expect("writing");
        }
        readers.into_iter().for_each(|reader| reader.join().expect("a reader"));
    });
    assert!(store.delete("0/one-step").expect("removing"));
}
