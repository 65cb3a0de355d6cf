//! Damaged and malicious attributes and blocks: an error must name the file, nothing may panic, and memory stays
//! bounded.

use std::fs;
use std::path::Path;

use ndarray_shm_volume::{Error, Result, Scratch, SourceFailure};
use serde_json::{Value, json};

use super::{attributes, block, dataset, elements, header, open, packings};
use crate::place::Place;
use crate::refused::{chain, with_slashes};

/// Opens a volume and reads its first chunk, if it has any.
fn read_first(path: &Path) -> Result<()> {
    let source = open(path)?;
    let Some(region) = source.meta().chunks(&source.meta().domain()).next() else { return Ok(()) };
    source.read(&region, &mut Scratch::new())
}

#[test]
fn bombs_and_wrong_shapes_are_errors_in_every_codec() {
    let place = Place::new();
    let zeros = vec![0; 16 << 20];
    for (name, compression, pack) in packings() {
        let path = place.path(name);
        attributes(&path, &dataset(&[64, 64], &[32, 32], &compression));
        let file = with_slashes(&path.join("0/0").display().to_string());
        let good = pack(&elements(&[0, 0], &[32, 32]));
        block(&path, "0/0", &[header(0, &[32, 32]), good.clone()].concat());
        read_first(&path).expect("a block");
        for (what, bytes) in [
            ("a bomb", [header(0, &[32, 32]), pack(&zeros)].concat()),
            ("fewer elements than there are", [header(0, &[32, 31]), good.clone()].concat()),
            ("more than a block has", [header(0, &[33, 32]), good.clone()].concat()),
            ("more than there are", [header(0, &[32, 32]), pack(&elements(&[0, 0], &[32, 31]))].concat()),
            ("more than memory", [header(0, &[u32::MAX, u32::MAX]), good.clone()].concat()),
            ("no axes", [header(0, &[]), good.clone()].concat()),
            ("no elements", header(0, &[32, 0])),
            ("nothing", Vec::new()),
            ("half of it", [header(0, &[32, 32]), good[..good.len() / 2].to_vec()].concat()),
            ("an object", [header(2, &[32, 32]), good.clone()].concat()),
            ("another number of elements", [header(1, &[32, 32]), vec![0; 4], good.clone()].concat()),
        ] {
            block(&path, "0/0", &bytes);
            let error = read_first(&path).expect_err(what);
            let text = chain(&error);
            assert!(matches!(error, Error::Chunk { .. } | Error::Store { .. }), "{name}, {what}: {text}");
            assert!(text.contains(&file), "{name}, {what}: {text} without {file}");
        }
    }
}

#[test]
fn claimed_block_size_beyond_the_file_is_an_error() {
    let place = Place::new();
    for (name, compression, _) in packings() {
        let path = place.path(name);
        // The header claims 1 GiB; the file has a few bytes.
        attributes(&path, &dataset(&[1 << 29], &[1 << 29], &compression));
        block(&path, "0", &[header(0, &[1 << 29]), b"not that much".to_vec()].concat());
        assert!(matches!(read_first(&path), Err(Error::Chunk { .. })), "{name}");
    }
}

#[test]
fn oversized_block_file_is_refused_before_it_is_read() {
    let place = Place::new();
    let path = place.path("volume");
    attributes(&path, &dataset(&[8, 8], &[8, 8], &json!({"type": "gzip"})));
    block(&path, "0/0", b"");
    fs::File::options().write(true).open(path.join("0/0")).and_then(|file| file.set_len(256 << 20)).expect("a hole");
    let text = chain(&read_first(&path).expect_err("too long"));
    assert!(text.contains("268435456 bytes are more than there can be in it"), "{text}");
}

#[test]
fn error_for_invalid_attributes_names_their_file() {
    let place = Place::new();
    let path = place.path("volume");
    let good = dataset(&[8, 8], &[4, 4], &json!({"type": "raw"}));
    let changed = |name: &str, value: Value| {
        let mut json = good.clone();
        json[name] = value;
        json.to_string()
    };
    for (text, kind, said) in [
        (String::new(), SourceFailure::Damaged, "no JSON document"),
        ("[]".to_owned(), SourceFailure::Damaged, "no JSON object"),
        (good.to_string()[..40].to_owned(), SourceFailure::Damaged, "no JSON document"),
        (changed("dimensions", json!([])), SourceFailure::Damaged, "`dimensions`"),
        (changed("dimensions", json!([8])), SourceFailure::Damaged, "`blockSize` has 2"),
        (changed("dimensions", json!([8, -1])), SourceFailure::Damaged, "`dimensions`"),
        (changed("dimensions", json!([8, u64::MAX])), SourceFailure::Damaged, "`dimensions`"),
        (changed("dimensions", json!("8")), SourceFailure::Damaged, "`dimensions`"),
        (changed("blockSize", json!([4, 0])), SourceFailure::Damaged, "`blockSize`"),
        (changed("blockSize", json!([4, 1.5])), SourceFailure::Damaged, "`blockSize`"),
        (changed("blockSize", json!(null)), SourceFailure::Damaged, "`blockSize`"),
        (changed("dataType", json!(null)), SourceFailure::Damaged, "`dataType`"),
        (changed("dataType", json!("string")), SourceFailure::Unsupported, "string"),
        (changed("dataType", json!("complex64")), SourceFailure::Unsupported, "complex64"),
        (changed("compression", json!(null)), SourceFailure::Damaged, "`compression`"),
        (changed("compression", json!({})), SourceFailure::Damaged, "`compression`"),
        (changed("compression", json!({"type": "jpeg"})), SourceFailure::Unsupported, "`jpeg`"),
        (changed("isLabelMultiset", json!(true)), SourceFailure::Unsupported, "label multisets"),
        (
            json!({"dimensions": vec![1; 99], "blockSize": vec![1; 99], "dataType": "uint8"}).to_string(),
            SourceFailure::Unsupported,
            "99 axes",
        ),
        (
            dataset(&[1 << 40, 1 << 40], &[1 << 20, 1 << 20], &json!({"type": "raw"})).to_string(),
            SourceFailure::Unsupported,
            "`blockSize`",
        ),
    ] {
        fs::create_dir_all(&path).expect("a directory");
        fs::write(path.join("attributes.json"), &text).expect("the attributes");
        let error = open(&path).expect_err(&text);
        assert_eq!(error.source_failure(), Some(kind), "{text}: {}", chain(&error));
        assert!(chain(&error).contains(said) && chain(&error).contains("volume"), "{text}: {}", chain(&error));
    }
    // A block size larger than the volume is valid: one block then holds the whole volume.
    let large = dataset(&[8, 8], &[1 << 31, 1 << 31], &json!({"type": "raw"}));
    attributes(&path, &large);
    block(&path, "0/0", &[header(0, &[8, 8]), elements(&[0, 0], &[8, 8])].concat());
    read_first(&path).expect("a block");
}

/// Returns pseudorandom numbers that are the same in every run.
fn random(state: &mut u64) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    usize::try_from(*state >> 33).expect("31 bits")
}

#[test]
fn damaged_blocks_and_documents_never_panic() {
    let place = Place::new();
    let mut state = 5;
    for (name, compression, pack) in packings() {
        let path = place.path(name);
        let document = dataset(&[8, 8], &[4, 4], &compression);
        let good = [header(0, &[4, 4]), pack(&elements(&[0, 0], &[4, 4]))].concat();
        for _ in 0..crate::rounds(200) {
            attributes(&path, &document);
            let mut damaged = good.clone();
            for _ in 0..=random(&mut state) % 4 {
                let at = random(&mut state) % damaged.len();
                damaged[at] = u8::try_from(random(&mut state) % 256).expect("a byte");
            }
            damaged.truncate(random(&mut state) % (damaged.len() * 2));
            block(&path, "0/0", &damaged);
            let _ = read_first(&path); // damage may go undetected, but must not panic
            let mut text = document.to_string().into_bytes();
            let at = random(&mut state) % text.len();
            text[at] = b"0123456789-{}[],\"e"[random(&mut state) % 18];
            fs::write(path.join("attributes.json"), text).expect("the attributes");
            let _ = read_first(&path);
        }
    }
}
