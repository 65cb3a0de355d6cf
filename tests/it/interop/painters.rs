//! A Python process that paints chunks of a renderbuffer, beside Rust painters or instead of them.

use std::time::Duration;

use libtest_mimic::Trial;
use ndarray::{Ix3, ShapeBuilder};
use ndarray_shm::render::Claim;
use ndarray_shm::{ErrorKind, NextClaim, RenderBuffer};

use super::peer::{Peer, path, python};
use super::sample::{assert_same, paint};
use crate::processes::painting::paint_with_a_kill;
use crate::support::{Name, Place, eventually};
use crate::tests;

/// Neither the shape nor the offset is a multiple of the chunk.
const SHAPE: [usize; 3] = [10, 9, 8];
const CHUNK: [usize; 3] = [4, 3, 5];
const OFFSET: [usize; 3] = [1, 0, 3];
const CHUNKS: usize = 3 * 3 * 3;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "interop",
        "painters",
        tests![
            python_reads_the_ledger,
            python_and_rust_paint_one_buffer,
            chunk_claimed_by_python_is_busy_until_its_death,
            chunk_claimed_here_is_busy_for_python,
            python_refuses_a_damaged_ledger,
            buffer_begun_by_python_is_painted_here,
            unfinished_ledger_of_killed_python_is_replaced,
            numpy_opens_array_painted_despite_a_kill,
        ],
    )
}

/// Opens the painted array with numpy alone, and compares it plane by plane.
const LOOK: &str = r#"
import sys
import numpy as np
path, shape = sys.argv[1], tuple(map(int, sys.argv[2].split(",")))
array = np.memmap(path, dtype="<u2", mode="r", shape=shape, order="F")
x, y = np.ogrid[: shape[0], : shape[1]]
wrong = sum(int((array[:, :, z] != ((x + 3 * y + 5 * z) & 0xFFFF)).sum()) for z in range(shape[2]))
print(array.shape, array.dtype, array.flags.f_contiguous, wrong)
"#;

fn numpy_opens_array_painted_despite_a_kill(place: &Place) {
    let name = place.location("painted-by-four");
    paint_with_a_kill(&place.backend, name.as_str(), [512, 512, 128], [128, 128, 64]);
    let mut command = std::process::Command::new(python());
    let look = command.args(["-c", LOOK, &path(place, &name), "512,512,128"]).output().unwrap();
    let said = String::from_utf8_lossy(&look.stdout);
    assert_eq!(said.trim(), "(512, 512, 128) uint16 True 0", "{}", String::from_utf8_lossy(&look.stderr));
}

fn begin(place: &Place, name: &Name) -> RenderBuffer<u16, Ix3> {
    let options = place.render_options().chunk_offset(&OFFSET);
    options.create(name.location(), SHAPE.f(), CHUNK, "painted by two").unwrap()
}

/// Starts a Python painter that has joined the buffer.
fn join(place: &Place, name: &Name) -> Peer {
    let mut python = Peer::start(place, "locks_peer.py");
    let ledger = python.ask(format!("join {} {}", place.directory().display(), name.as_str()));
    assert_eq!(ledger, "('<u2', 'F', (10, 9, 8), (4, 3, 5), (1, 0, 3), 'painted by two')");
    python
}

fn python_reads_the_ledger(place: &Place) {
    let name = place.location("painter-joins");
    let buffer = begin(place, &name);
    assert_eq!(buffer.grid().len(), CHUNKS);
    let mut python = join(place, &name);
    for index in 0..CHUNKS {
        let region = buffer.grid().region(index);
        let ranges: Vec<String> = region.iter().map(|range| format!("range({}, {})", range.start, range.end)).collect();
        python.expect(format!("claim {} {index}", name.as_str()), &format!("[{}]", ranges.join(", ")));
    }
}

fn python_and_rust_paint_one_buffer(place: &Place) {
    let name = place.location("painters");
    let buffer = begin(place, &name);
    let mut python = join(place, &name);
    // Claimed here, so that Python has to skip this chunk.
    let Claim::Chunk(ours) = buffer.claim(6).unwrap() else { panic!("free") };
    python.expect(format!("paint {} 1 3", name.as_str()), "8");
    assert_eq!(buffer.progress().done, 8);
    assert!(matches!(buffer.claim(3).unwrap(), Claim::Done));
    paint(ours, &SHAPE, 1);
    let mut painted = 0;
    while let NextClaim::Chunk(chunk) = buffer.claim_next().unwrap() {
        paint(chunk, &SHAPE, 1);
        painted += 1;
        if painted == 5 {
            break;
        }
    }
    python.expect(format!("paint {} 1 1", name.as_str()), &(CHUNKS - 8 - 1 - painted).to_string());
    python.expect(format!("paint {} 1 1", name.as_str()), "0");
    assert!(buffer.progress().is_complete());
    assert_same(&buffer.finish().unwrap(), 1);
    // `finish` has removed the name that Python painted under.
    python.expect_error(format!("paint {} 1 1", name.as_str()), "FileNotFoundError");
    python.finish();
}

fn chunk_claimed_by_python_is_busy_until_its_death(place: &Place) {
    let name = place.location("painter-killed");
    let buffer = begin(place, &name);
    let mut python = join(place, &name);
    assert!(python.ask(format!("claim {} 5", name.as_str())).starts_with("[range("));
    assert!(matches!(buffer.claim(5).unwrap(), Claim::Busy));
    assert!(matches!(buffer.claim(4).unwrap(), Claim::Chunk(_)));
    python.kill();
    let Claim::Chunk(claim) = buffer.claim(5).unwrap() else { panic!("its painter is dead") };
    paint(claim, &SHAPE, 1);
    assert_eq!(buffer.progress().done, 1);
}

fn chunk_claimed_here_is_busy_for_python(place: &Place) {
    let name = place.location("painter-ours");
    let buffer = begin(place, &name);
    let mut python = join(place, &name);
    let Claim::Chunk(claim) = buffer.claim(5).unwrap() else { panic!("free") };
    python.expect_error(format!("claim {} 5", name.as_str()), "BlockingIOError");
    drop(claim);
    assert!(python.ask(format!("claim {} 5", name.as_str())).starts_with("[range("));
}

fn buffer_begun_by_python_is_painted_here(place: &Place) {
    let name = place.location("painter-begins");
    // A payload without a ledger, as a killed discard leaves it, does not prevent a new buffer.
    std::fs::write(place.directory().join(format!(".ndshm-part-{}", name.as_str())), b"left").unwrap();
    let mut python = Peer::start(place, "locks_peer.py");
    let question = format!("begin {} {} on", place.directory().display(), name.as_str());
    python.expect(&question, "begun");
    python.expect_error(&question, "FileExistsError");
    let buffer = begin(place, &name);
    assert_eq!((buffer.grid().len(), buffer.progress().done), (CHUNKS, 0));
    while let NextClaim::Chunk(chunk) = buffer.claim_next().unwrap() {
        paint(chunk, &SHAPE, 1);
    }
    assert_same(&buffer.finish().unwrap(), 1);
}

fn unfinished_ledger_of_killed_python_is_replaced(place: &Place) {
    let name = place.location("painter-young");
    let mut python = Peer::start(place, "locks_peer.py");
    python.tell(format!("begin {} {} stop", place.directory().display(), name.as_str()));
    eventually("its ledger has a name", || !place.files_of(&name).is_empty());
    let options = place.render_options().timeout(Duration::from_millis(20));
    assert!(matches!(options.open::<u16, Ix3>(name.location()).unwrap_err().kind, ErrorKind::TimedOut { .. }));
    python.kill();
    assert_eq!(begin(place, &name).progress().done, 0);
}

fn python_refuses_a_damaged_ledger(place: &Place) {
    use std::os::unix::fs::FileExt;
    let name = place.location("painter-damage");
    let _buffer = begin(place, &name);
    let path = place.directory().join(format!(".ndshm-ledger-{}", name.as_str()));
    let ledger = std::fs::File::options().read(true).write(true).open(path).unwrap();
    let length = ledger.metadata().unwrap().len();
    let mut python = Peer::start(place, "locks_peer.py");
    let question = format!("join {} {}", place.directory().display(), name.as_str());
    // Damages the magic, then the footer, then the trailer.
    for at in [length - 64, length - 30, length - 100] {
        let mut byte = [0];
        ledger.read_exact_at(&mut byte, at).unwrap();
        ledger.write_all_at(&[byte[0] ^ 1], at).unwrap();
        python.expect_error(&question, "ValueError");
        ledger.write_all_at(&byte, at).unwrap();
    }
    assert!(python.ask(&question).starts_with("('<u2', 'F'"));
}
