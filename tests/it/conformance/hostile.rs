//! Forged trailers and files of wrong lengths: any bytes yield an error or a sane array.
//!
//! Children try the bytes, so that death by a signal fails one test instead of all of them.

use std::path::PathBuf;
use std::time::Duration;

use libtest_mimic::Trial;
use ndarray::{Ix2, IxDyn, ShapeBuilder};
use ndarray_shm::counted::{HandleOptions, Reclaim, inspect_in};
use ndarray_shm::{Access, CreateOptions, Directory, Error, ErrorKind, Location, OpenOptions, RefcountedArray};

use crate::support::child::{Child, Role, say};
use crate::support::{Place, backend_of_child};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "conformance",
        "hostile",
        tests![
            corrupt_trailer_byte_is_not_trusted,
            file_of_wrong_length_is_refused,
            forged_trailers_with_valid_checksums_are_refused,
            any_forged_handle_count_is_survived,
            guards_of_a_shortened_array_are_refused,
        ],
    )
}

pub const ROLES: &[(&str, Role)] = &[
    ("spoil-bytes", spoil_bytes),
    ("cut-lengths", cut_lengths),
    ("forge", forge),
    ("count-wrongly", count_wrongly),
    ("shorten", shorten),
];

pub(super) const PAGE: usize = 4096;
// Offsets in the trailer, as in src/segment/trailer.rs and src/counted/record.rs.
const TICKETS: usize = 64;
const SPARE: usize = 2112;
pub(super) const FILE: usize = 3440;
pub(super) const NAME: usize = 3456;
const RECORD: usize = 3728;
const FOOTER: usize = 4032;
/// Distance between the bytes or lengths tried. Under Wine an attempt takes a hundred times as long.
const STEP: usize = if cfg!(windows) { 53 } else { 1 };
const SHAPE: (usize, usize) = (6, 5);
const PAYLOAD: usize = 60;

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| crc >> 1 ^ (0xedb8_8320 & (crc & 1).wrapping_neg()))
    })
}

/// Sets both checksums of the trailer.
pub(super) fn seal(file: &mut [u8]) {
    let Some(start) = file.len().checked_sub(PAGE) else { return };
    let page = &mut file[start..];
    let constant = crc32(&page[FILE..FOOTER]);
    page[FOOTER + 56..FOOTER + 60].copy_from_slice(&constant.to_le_bytes());
    let own = crc32(&page[FOOTER..FOOTER + 60]);
    page[FOOTER + 60..].copy_from_slice(&own.to_le_bytes());
}

/// A location whose file is written and opened again and again.
pub(super) struct Target {
    pub(super) backend: Directory,
    pub(super) location: Location,
    path: PathBuf,
}

impl Target {
    pub(super) fn new(arguments: &[String]) -> Self {
        let backend = backend_of_child();
        let location: Location = arguments[0].parse().unwrap();
        let path = backend.path().join(location.as_str());
        Self { backend, location, path }
    }

    fn options(&self) -> CreateOptions {
        CreateOptions::new().directory(self.backend.clone())
    }

    fn open_options(&self) -> OpenOptions {
        OpenOptions::new().directory(self.backend.clone())
    }

    /// The bytes of an array with the elements 0 to 29, one attachment, and a handle in flight.
    pub(super) fn honest(&self) -> Vec<u8> {
        let array = self.options().create_counted::<u16, _>(&self.location, SHAPE.f()).unwrap();
        array.write().unwrap().iter_mut().zip(0..).for_each(|(element, number)| *element = number);
        array.handle_with(HandleOptions::new().reusable()).unwrap();
        let bytes = std::fs::read(&self.path).unwrap();
        assert_eq!(bytes.len(), 2 * PAGE);
        assert!(self.backend.unlink(&self.location).unwrap());
        bytes
    }

    fn plant(&self, bytes: &[u8]) {
        let _ = self.backend.unlink(&self.location); // an earlier attempt may have left the file
        std::fs::write(&self.path, bytes).unwrap();
    }

    /// Plants the bytes, with the planted file's own identity in the trailer, as if the array had been created in it.
    fn plant_as_made(&self, bytes: &[u8]) {
        self.plant(bytes);
        let entries = self.backend.list().unwrap();
        let id = entries.iter().find(|entry| entry.name == self.location.as_str()).unwrap().id;
        let mut bytes = bytes.to_vec();
        let file = bytes.len() - PAGE + FILE;
        bytes[file..file + 8].copy_from_slice(&id.device.to_le_bytes());
        bytes[file + 8..file + 16].copy_from_slice(&id.number.to_le_bytes());
        seal(&mut bytes);
        std::fs::write(&self.path, bytes).unwrap(); // into the same file
    }

    /// Plants the bytes and runs every operation that reads a trailer. An array that opens must be sane. Returns the
    /// outcome of opening.
    pub(super) fn attempt(&self, bytes: &[u8]) -> Result<(), Error> {
        self.plant(bytes);
        let mut payload = None;
        if let Ok(inspection) = inspect_in(&self.backend, &self.location) {
            let item = inspection.dtype.size() as u64;
            let needed = inspection.shape.iter().try_fold(item, |bytes, length| bytes.checked_mul(*length as u64));
            assert_eq!(needed, Some(inspection.bytes));
            let length = inspection.bytes.next_multiple_of(PAGE as u64) + PAGE as u64;
            assert_eq!(length, bytes.len() as u64, "{inspection:?}");
            payload = Some(inspection.bytes);
        }
        for reclaim in [Reclaim::new().dry_run(true), Reclaim::new().older_than(Duration::from_secs(3600))] {
            reclaim.run(&self.backend).unwrap();
        }
        // A file with the footer's magic is refused as a plain array, forged or not.
        let plain = OpenOptions::new().directory(self.backend.clone()).open::<u8, _>(&self.location, bytes.len());
        let claims = bytes.len() >= 64 && bytes[bytes.len() - 64..].starts_with(b"\x89NDSHM\r\n");
        assert_eq!(plain.is_err_and(|error| matches!(error.kind, ErrorKind::Reserved { .. })), claims);
        if let Ok(reader) =
            self.open_options().timeout(Duration::ZERO).open_counted_reader::<u16, IxDyn>(&self.location)
        {
            assert_eq!(reader.view().len() as u64 * 2, payload.expect("it could be inspected"));
            let _ = reader.view().iter().fold(0u16, |sum, value| sum.wrapping_add(*value));
            drop(reader);
            self.plant(bytes);
        }
        let outcome = self.open_options().open_counted::<u16, Ix2>(&self.location).map(|array| {
            assert_eq!(array.len() as u64 * 2, payload.expect("it could be inspected"));
            assert_eq!(array.shape().iter().product::<usize>(), array.len());
            let read = array.read().unwrap().iter().fold(0u16, |sum, value| sum.wrapping_add(*value));
            if let Ok(mut guard) = array.write() {
                guard.fill(read);
            }
            let _ = (array.refcount(), array.in_flight(), array.strategy(), array.is_kept(), array.view().is_ok());
            let _ = array.handle().map(|handle| handle.revoke());
            let _ = array.try_clone().map(RefcountedArray::close);
            let _ = array.close();
        });
        Reclaim::new().run(&self.backend).unwrap();
        outcome
    }
}

/// Starts a role that tries bytes and waits for its success. It may take any time, as long as it keeps speaking.
pub(super) fn run(place: &Place, role: &str) {
    let place = &place.private();
    let name = place.location(role);
    let mut child = Child::start(place, role, &[name.as_str()]);
    loop {
        match child.line().as_str() {
            "alive" => {}
            "done" => break,
            line => println!("{}: {line}", place.name),
        }
    }
    child.finish();
}

fn spoil_bytes(arguments: &[String]) {
    let target = Target::new(arguments);
    let honest = target.honest();
    assert!(target.attempt(&honest).is_ok());
    // Tickets and spare room have no checksum. Every fifth byte of them is tried, which is another byte of each ticket.
    let is_tried = |at: &usize| !(TICKETS..FILE).contains(at) || at % 5 == 0;
    for at in (0..PAGE).step_by(STEP).filter(is_tried) {
        let changes: [fn(u8) -> u8; 3] = [|byte| byte ^ 0xff, |byte| byte ^ 1, |_| 0];
        for change in changes {
            let mut bytes = honest.clone();
            bytes[PAGE + at] = change(bytes[PAGE + at]);
            let is_checked = !(8..FILE).contains(&at);
            if bytes == honest || (!is_checked && bytes[PAGE + at] == 1) {
                continue; // nothing new
            }
            let outcome = target.attempt(&bytes);
            let is_expected = match &outcome {
                Ok(()) => at < FILE,
                Err(Error { kind: ErrorKind::TooManyHandles { .. }, .. }) => at < 4,
                Err(Error { kind: ErrorKind::NotFound, .. }) => (4..8).contains(&at),
                Err(Error { kind: ErrorKind::Trailer { .. } | ErrorKind::NotCounted, .. }) => at >= FILE,
                Err(_) => false,
            };
            assert!(is_expected, "byte {at}: {outcome:?}");
        }
        if at % 64 < STEP.max(5) {
            say("alive");
        }
    }
    say("done");
}

fn corrupt_trailer_byte_is_not_trusted(place: &Place) {
    run(place, "spoil-bytes");
}

fn cut_lengths(arguments: &[String]) {
    let target = Target::new(arguments);
    let honest = target.honest();
    let refused = |bytes: &[u8]| match target.attempt(bytes) {
        Err(Error { kind: ErrorKind::NotCounted | ErrorKind::Trailer { .. }, .. }) => {}
        other => panic!("{} bytes: {other:?}", bytes.len()),
    };
    for length in (0..2 * PAGE).filter(|length| *length > PAGE || length % 61 == 0 || PAGE - length < 70).step_by(STEP)
    {
        refused(&honest[..length]);
        if length % 64 < STEP {
            say("alive");
        }
    }
    for more in [1, 63, 64, 100, PAGE - 1, PAGE, PAGE + 1, 5 * PAGE] {
        refused(&[&honest[..], &vec![0; more]].concat());
        refused(&[&vec![0; more], &honest[..]].concat()); // the last page is a trailer of a shorter file
    }
    refused(&honest[PAGE..]);
    refused(&[&honest[PAGE..], &honest[PAGE..]].concat()[1..]);
    assert!(target.attempt(&[&honest[PAGE..], &honest[PAGE..]].concat()).is_ok(), "elements may be any bytes");
    say("done");
}

fn file_of_wrong_length_is_refused(place: &Place) {
    run(place, "cut-lengths");
}

/// A child that tries false trailers with valid checksums.
fn forge(arguments: &[String]) {
    let target = Target::new(arguments);
    let honest = target.honest();
    // Makes a file with `before` zeros and then the trailer, with bytes of it changed.
    let lie = |before: usize, changes: &[(usize, &[u8])]| {
        let mut bytes = vec![0; before];
        bytes.extend_from_slice(&honest[PAGE..]);
        let payload = before as u64;
        for (at, change) in [(FOOTER + 16, payload.to_le_bytes().as_slice())].iter().chain(changes) {
            bytes[before + at..before + at + change.len()].copy_from_slice(change);
        }
        seal(&mut bytes);
        target.attempt(&bytes)
    };
    let (axes, shape, footer) = (RECORD + 17, RECORD + 32, FOOTER);
    let lengths = |lengths: &[u64]| lengths.iter().flat_map(|length| length.to_le_bytes()).collect::<Vec<u8>>();
    let payload = |bytes: u64| bytes.to_le_bytes();
    let true_payload = payload(PAYLOAD as u64);
    assert!(lie(PAGE, &[(footer + 16, &true_payload)]).is_ok(), "the builder can tell the truth");
    assert!(lie(PAGE, &[(footer + 16, &true_payload), (shape, &lengths(&[5, 6]))]).is_ok());

    let huge = 1u64 << 63;
    let overflowing =
        [[huge, 2], [1 << 32, 1 << 31], [1 << 32, 1 << 32], [u64::MAX, u64::MAX], [0, 7], [6, 0], [30, 2]];
    let mut outcomes: Vec<(String, Result<(), Error>)> = Vec::new();
    let mut note = |what: String, outcome| outcomes.push((what, outcome));
    for lie_of_shape in overflowing {
        let bytes = lengths(&lie_of_shape);
        note(format!("{lie_of_shape:?}"), lie(PAGE, &[(footer + 16, &true_payload), (shape, &bytes)]));
        let claims = [(footer + 16, payload(0)), (footer + 16, payload(PAGE as u64)), (footer + 16, payload(huge))];
        for (at, claimed) in claims {
            note(format!("{lie_of_shape:?} {claimed:?}"), lie(PAGE, &[(at, &claimed), (shape, &bytes)]));
        }
        if lie_of_shape[0] != 0 && lie_of_shape[1] != 0 {
            note(format!("{lie_of_shape:?} in nothing"), lie(0, &[(footer + 12, &[0, 16]), (shape, &bytes)]));
        }
    }
    for count in [0, 1, 3, 32, 33, 255] {
        note(format!("{count} axes"), lie(PAGE, &[(footer + 16, &true_payload), (axes, &[count])]));
    }
    for claimed in [0, 1, 59, 61, 62, PAGE as u64, huge, u64::MAX, u64::MAX - PAGE as u64, (2 * PAGE) as u64] {
        note(format!("{claimed} bytes"), lie(PAGE, &[(footer + 16, &payload(claimed))]));
        // With a length of the trailer that adds up to the length of the file.
        let trailer = (2 * PAGE as u64).wrapping_sub(claimed) as u32;
        let changes = [(footer + 16, &payload(claimed)[..]), (footer + 12, &trailer.to_le_bytes()[..])];
        note(format!("{claimed} and {trailer} bytes"), lie(PAGE, &changes));
    }
    let name = NAME + 2;
    let others: &[(usize, &[u8])] = &[
        (footer + 8, &[1]),
        (footer + 8, &[0]),
        (footer + 10, &[2]),
        (footer + 10, &[0]),
        (footer + 10, &[3]),
        (footer + 12, &[64, 0]),
        (footer + 12, &[0, 0]),
        (footer + 40, &[1]),
        (footer + 55, &[1]),
        (RECORD, b"<f3\0"),
        (RECORD, b"|O\0\0"),
        (RECORD, b"\0\0\0\0"),
        (RECORD, b"<u8\0"),
        (RECORD, b">u2\0"),
        (RECORD, b"<u2 "),
        (RECORD, &[0xff; 16]),
        (RECORD, &[b'<'; 16]),
        (RECORD + 16, b"A"),
        (RECORD + 16, &[0]),
        (RECORD + 18, &[1]),
        (shape + 8 * 31, &[1]),
        (name - 2, &[0, 1]),
        (name - 2, &[0xff, 0xff]),
        (name - 2, &[0, 0]),
        (name + 1, b"/"),
        (name, b".ndshm-"),
        (name, &[0xff]),
        (name, &[0]),
        (RECORD + 288, &[1]),
        (FOOTER - 1, &[1]),
    ];
    for (at, change) in others {
        note(format!("{change:?} at {at}"), lie(PAGE, &[(footer + 16, &true_payload), (*at, change)]));
    }
    for (what, outcome) in outcomes {
        let error = outcome.expect_err(&what);
        // The kind of another file of the library is no damage: the error says what the file is.
        let is_of_another_kind =
            what == format!("[3] at {}", FOOTER + 10) && matches!(error.kind, ErrorKind::Reserved { .. });
        assert!(is_of_another_kind || matches!(error.kind, ErrorKind::Trailer { .. }), "{what}: {error}");
    }
    // No elements, but an axis longer than the address space. Only the process that opens the array can tell.
    for zero in [[0, huge], [huge, 0]] {
        let page = [(footer + 12, &[0, 16][..]), (footer + 16, &payload(0)[..]), (shape, &lengths(&zero)[..])];
        let error = lie(0, &page).expect_err("too large");
        assert!(matches!(error.kind, ErrorKind::TooLarge { .. } | ErrorKind::Trailer { .. }), "{zero:?}: {error}");
    }
    let empty = [(footer + 12, &[0, 16][..]), (footer + 16, &payload(0)[..]), (shape, &lengths(&[0, 5])[..])];
    assert!(lie(0, &empty).is_ok(), "no elements and one page are an array");
    say("done");
}

fn forged_trailers_with_valid_checksums_are_refused(place: &Place) {
    run(place, "forge");
}

/// A child that tries false numbers of handles and false deadlines, which no checksum can cover.
fn count_wrongly(arguments: &[String]) {
    let target = Target::new(arguments);
    let honest = target.honest();
    let (dead, kept, named) = (1u64 << 63, 1u64 << 62, 1u64 << 60);
    let with = |word: u64| {
        let mut bytes = honest.clone();
        bytes[PAGE..PAGE + 8].copy_from_slice(&word.to_le_bytes());
        bytes[PAGE + TICKETS..PAGE + SPARE].fill(0);
        bytes
    };
    let is_there = || target.path.exists();
    let inspect = || inspect_in(&target.backend, &target.location).unwrap();
    let open = || target.open_options().open_counted::<u16, Ix2>(&target.location);
    let reclaim = || Reclaim::new().run(&target.backend).unwrap();

    target.plant_as_made(&with(named | u64::from(u32::MAX)));
    assert!(matches!(
        open().unwrap_err().kind,
        ErrorKind::TooManyHandles { limit: 0xffff_ffff, doing: "attached", .. }
    ));
    assert!(inspect().refcount == u32::MAX && inspect().is_orphaned());
    assert_eq!(reclaim().removed.len(), 1, "no process is attached, whatever is counted");
    target.plant_as_made(&with(named | u64::from(u32::MAX - 1)));
    let array = open().unwrap();
    assert!(array.refcount() == u32::MAX && open().is_err());
    drop(array);
    assert!(!is_there());

    for handles in [0, 1, 77] {
        target.plant_as_made(&with(named | dead | handles));
        assert!(open().unwrap_err().is_not_found());
        assert!(!is_there());
        target.plant_as_made(&with(named | dead | handles));
        assert!(inspect().is_orphaned() && reclaim().removed.len() == 1);
    }
    target.plant_as_made(&with(named));
    let array = open().unwrap();
    assert_eq!((array.refcount(), array.read().unwrap()[[5, 4]]), (1, 29));
    array.close().unwrap();
    assert!(!is_there());
    target.plant_as_made(&with(named | kept | 5));
    drop(open().unwrap());
    assert!(is_there() && inspect().refcount == 5 && reclaim().kept == 1);
    target.plant_as_made(&with(u64::MAX));
    assert!(open().is_err());

    // Another process lowers the number below that of the living holders. It never goes below 0, and the lease keeps
    // the name.
    target.plant_as_made(&with(named | 1));
    let (first, second) = (open().unwrap(), open().unwrap());
    let file = std::fs::File::options().write(true).open(&target.path).unwrap();
    let mut word = &file;
    std::io::Seek::seek(&mut word, std::io::SeekFrom::Start(PAGE as u64)).unwrap();
    std::io::Write::write_all(&mut word, &named.to_le_bytes()).unwrap();
    assert_eq!(first.refcount(), 0);
    first.close().unwrap();
    assert!(is_there(), "a process is attached");
    second.close().unwrap();
    assert!(!is_there());

    // Invalid deadlines: 128 tickets that would never expire.
    let mut bytes = with(named | 1);
    bytes[PAGE + TICKETS..PAGE + SPARE].fill(0xff);
    target.plant_as_made(&bytes);
    assert_eq!((inspect().in_flight, inspect().protected_for), (0, Duration::ZERO));
    let array = open().unwrap();
    assert_eq!(array.in_flight(), 0);
    assert_eq!((array.handle().unwrap().revoke().unwrap(), array.refcount()), (true, 2));
    drop(array);
    assert!(!is_there());
    // Deadlines from before the machine's last start are invalid too.
    let mut bytes = honest.clone();
    bytes[PAGE + TICKETS + 15] ^= 0x80;
    target.plant_as_made(&bytes);
    assert!(inspect().in_flight == 0 && reclaim().removed.len() == 1);
    target.plant_as_made(&honest);
    assert!(inspect().in_flight == 1 && reclaim().in_flight == 1);
    say("done");
}

fn any_forged_handle_count_is_survived(place: &Place) {
    run(place, "count-wrongly");
}

/// A child that holds an array while it is shortened.
fn shorten(arguments: &[String]) {
    let target = Target::new(arguments);
    let array = target.options().create_counted::<u16, _>(&target.location, SHAPE.f()).unwrap();
    let readonly = target.open_options().access(Access::Read).open_counted::<u16, IxDyn>(&target.location).unwrap();
    let whole = std::fs::read(&target.path).unwrap();
    let file = std::fs::File::options().write(true).open(&target.path).unwrap();
    for length in [0, 1, PAYLOAD as u64, PAGE as u64, 2 * PAGE as u64 - 1, 2 * PAGE as u64 + 1] {
        // Windows shortens no mapped file, not even to its earlier length.
        if cfg!(windows) {
            assert!(length > whole.len() as u64 || file.set_len(length).is_err());
            continue;
        }
        file.set_len(length).unwrap();
        let errors = [
            array.try_read().unwrap_err(),
            array.try_write().unwrap_err(),
            array.write().unwrap_err(),
            readonly.read().unwrap_err(),
        ];
        for error in errors {
            assert!(matches!(error.kind, ErrorKind::SizeMismatch { expected: 8192, .. }), "{length}: {error}");
        }
        assert!(target.open_options().open_counted::<u16, Ix2>(&target.location).is_err());
        file.set_len(0).unwrap();
        let mut again = std::fs::File::options().write(true).open(&target.path).unwrap();
        std::io::Write::write_all(&mut again, &whole).unwrap();
        assert!(array.try_write().is_ok(), "as it was before");
    }
    drop((array, readonly));
    assert!(!target.path.exists());
    say("done");
}

fn guards_of_a_shortened_array_are_refused(place: &Place) {
    run(place, "shorten");
}
