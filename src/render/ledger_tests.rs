//! Ledgers are decoded as they were encoded, and inconsistent ones are refused.

use super::*;
use crate::error::ErrorKind;

fn sample() -> LedgerRecord {
    let work = RenderSpec {
        dtype: DType::Bf16,
        order: Order::F,
        shape: vec![10, 20],
        chunk_shape: vec![4, 4],
        chunk_offset: vec![1, 0],
        fingerprint: "a volume, ümlauts and all".into(),
    };
    LedgerRecord { work, payload: FileId { device: 1, number: 2 }, boot: Boot([3; 16]), chunks: 15 }
}

#[test]
fn decoding_gives_the_encoded_record_back() {
    let bytes = sample().to_trailer(64, 9);
    assert_eq!(LedgerRecord::parse(&bytes[..bytes.len() - FOOTER]), Ok(sample()));
}

#[test]
fn truncated_trailer_is_an_error() {
    let bytes = sample().to_trailer(64, 9);
    for length in 0..bytes.len() - FOOTER {
        assert!(LedgerRecord::parse(&bytes[..length]).is_err(), "{length}");
    }
}

/// Writes 64 states and a trailer as the ledger of a buffer, opens it, and returns how many chunks it has.
fn open(trailer: &[u8]) -> Result<Option<usize>> {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let backend = crate::backend::Directory::new("test", directory.path());
    let home = Home { backend, location: Location::new("buffer").expect("a name") };
    let ledger = home.location.companion(Companion::Ledger).expect("a name");
    std::fs::write(directory.path().join(ledger.as_str()), [&[0; 64], trailer].concat()).expect("a file");
    // The ledger is closed before the directory is removed: Windows removes no directory with open files.
    LedgerFile::open(&home, |_| Ok(())).map(|ledger| ledger.map(|ledger| ledger.record.chunks))
}

#[test]
fn too_long_trailer_is_refused_unread() {
    let mut trailer = vec![0; LONGEST_TRAILER];
    Footer::append_to(Kind::Ledger, 64, 1, &mut trailer);
    match open(&trailer) {
        Err(Error { kind: ErrorKind::Trailer { reason, .. }, .. }) => assert!(reason.contains("at most"), "{reason}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn lengths_beyond_the_address_space_are_too_large() {
    assert!(matches!(open(&sample().to_trailer(64, 9)), Ok(Some(15))));
    // A 32-bit process reads the lengths of a 64-bit one as `usize::MAX`.
    let lengths: [fn(&mut RenderSpec) -> &mut usize; 3] =
        [|work| &mut work.shape[0], |work| &mut work.chunk_shape[1], |work| &mut work.chunk_offset[1]];
    for length in lengths {
        let mut large = sample();
        *length(&mut large.work) = usize::MAX;
        let outcome = open(&large.to_trailer(64, 9));
        assert!(matches!(outcome, Err(Error { kind: ErrorKind::TooLarge { .. }, .. })), "{outcome:?}");
    }
    // Each length fits, but shape + offset does not.
    let mut large = sample();
    large.work.shape[0] = usize::MAX - 1;
    large.work.chunk_shape[0] = usize::MAX - 1;
    large.work.chunk_offset[0] = 7;
    assert!(matches!(open(&large.to_trailer(64, 9)), Err(Error { kind: ErrorKind::TooLarge { .. }, .. })));
}

#[test]
fn digest_is_that_of_the_format_and_tells_works_apart() {
    let work = sample().work;
    // FNV-1a of the bytes that docs/layout/renderbuffer.md lists, by another program.
    assert_eq!(work.digest(), "5fe5430f7f56116d9a59f42455f03405");
    let changes: [fn(&mut RenderSpec); 6] = [
        |work| work.dtype = DType::F16,
        |work| work.order = Order::C,
        |work| work.shape = vec![20, 10],
        |work| work.chunk_shape = vec![4, 5],
        |work| work.chunk_offset = vec![0, 1],
        |work| work.fingerprint.push('.'),
    ];
    for change in changes {
        let mut other = work.clone();
        change(&mut other);
        assert_ne!(other.digest(), work.digest(), "{other:?}");
    }
}

#[test]
fn mismatch_names_the_field_that_differs() {
    let location = Location::new("x").expect("a name");
    let work = sample().work;
    assert!(work.require(&work, &location, OtherWork::Idle).is_ok());
    let mut other = work.clone();
    other.fingerprint = "another".into();
    match work.require(&other, &location, OtherWork::Idle) {
        Err(Error { kind: ErrorKind::Mismatch { what, found, .. }, .. }) => {
            assert_eq!((what, found.as_str()), ("fingerprint", "\"another\""));
        }
        unexpected => panic!("{unexpected:?}"),
    }
    let fingerprints = ["region=0:8 of a volume with a long name", "region=8:16 of a volume with a long name"];
    let [one, other] = fingerprints.map(|text| RenderSpec { fingerprint: text.to_owned(), ..work.clone() });
    match one.require(&other, &location, OtherWork::Idle) {
        Err(Error { kind: ErrorKind::Mismatch { expected, found, .. }, .. }) => {
            assert_eq!((&*expected, &*found), ("\"region=0:8\"", "\"region=8:16\""), "only what differs");
        }
        unexpected => panic!("{unexpected:?}"),
    }
    let mut other = work.clone();
    other.shape[0] = 11;
    assert!(matches!(
        work.require(&other, &location, OtherWork::Idle),
        Err(Error { kind: ErrorKind::Mismatch { what: "shape", .. }, .. })
    ));
}
