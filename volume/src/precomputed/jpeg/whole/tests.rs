//! Tests that complete pictures of every kind are accepted, and incomplete ones refused.

use jpeg_encoder::{ColorType, Encoder, SamplingFactor};

use super::check;

/// Returns pictures of every kind: baseline and progressive, gray and coloured, with and without restart markers, all
/// unit sizes.
fn pictures() -> Vec<(String, Vec<u8>)> {
    let mut pictures = Vec::new();
    for (scans, restart) in [(0, 0), (0, 3), (2, 0), (4, 5)] {
        for (colours, sampling) in [
            (ColorType::Luma, SamplingFactor::R_4_4_4),
            (ColorType::Rgb, SamplingFactor::R_4_4_4),
            (ColorType::Rgb, SamplingFactor::R_4_2_0),
            (ColorType::Rgb, SamplingFactor::R_4_1_1),
        ] {
            for (width, height, optimized) in [(64, 48, false), (33, 21, true), (1, 1, false), (8, 130, true)] {
                let mut packed = Vec::new();
                let mut encoder = Encoder::new(&mut packed, 80);
                encoder.set_sampling_factor(sampling);
                // The encoder's optimized tables lack codes that occur after a restart marker.
                encoder.set_optimized_huffman_tables(optimized && restart == 0);
                encoder.set_restart_interval(restart);
                if scans > 0 {
                    encoder.set_progressive_scans(scans);
                }
                let count = usize::from(width) * usize::from(height) * if colours == ColorType::Rgb { 3 } else { 1 };
                let mut seed = 1_u32;
                let noise = |at: usize| {
                    seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (at / 7 % 150).to_le_bytes()[0] + (seed >> 26).to_le_bytes()[0]
                };
                let elements: Vec<u8> = (0..count).map(noise).collect();
                encoder.encode(&elements, width, height, colours).expect("encoded");
                pictures.push((format!("{scans} {restart} {colours:?} {sampling:?} {width} {height}"), packed));
            }
        }
    }
    pictures
}

#[test]
fn complete_pictures_of_every_kind_are_accepted() {
    for (name, picture) in pictures() {
        assert_eq!(check(&picture), Ok(()), "{name}");
        let followed = [&picture[..], b"what follows is no part of it"].concat();
        assert_eq!(check(&followed), Ok(()), "{name}");
    }
}

#[test]
fn cut_pictures_are_refused() {
    for (name, picture) in pictures() {
        for length in (0..picture.len()).rev().step_by(3) {
            assert!(check(&picture[..length]).is_err(), "{name}: {length} of {}", picture.len());
        }
        // An appended end marker does not help. The picture's own is in its last two bytes.
        for length in (2..picture.len() - 2).rev().step_by(7) {
            let ended = [&picture[..length], &[0xFF, 0xD9]].concat();
            assert!(check(&ended).is_err(), "{name}: {length} of {}, and an end", picture.len());
        }
    }
}

#[test]
fn missing_and_repeated_scans_are_noticed() {
    let is_progressive = |name: &str| !name.starts_with('0');
    for (name, picture) in pictures().into_iter().filter(|(name, _)| is_progressive(name)) {
        let scans: Vec<usize> = (0..picture.len()).filter(|at| picture[*at..].starts_with(&[0xFF, 0xDA])).collect();
        assert!(scans.len() > 1, "{name}");
        let (first, last) = (scans[scans.len() - 2], scans[scans.len() - 1]);
        let without = [&picture[..first], &picture[last..]].concat();
        assert!(check(&without).is_err(), "{name}: without its last but one scan");
        let twice = [&picture[..last], &picture[first..]].concat();
        assert!(check(&twice).is_err(), "{name}: with one scan twice");
    }
}

#[test]
fn accepted_pictures_are_decoded() {
    let (mut tried, mut passed, mut seed) = (0, 0, 7_u64);
    let mut random = |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below
    };
    for (name, picture) in pictures() {
        let is_coloured = name.contains("Rgb");
        let mut elements = vec![0; 64 * 130 * 3];
        let mut decode =
            |bytes: &[u8]| crate::precomputed::jpeg::decode(bytes, is_coloured, |_, _, _| Ok(()), &mut elements);
        decode(&picture).expect("whole");
        // Damage only behind the headers: their sizes and colours are compared before decoding.
        let begin = (0..picture.len()).find(|at| picture[*at..].starts_with(&[0xFF, 0xDA])).expect("a scan");
        for turn in 0..60 {
            let mut damaged = picture.clone();
            let at = begin + random(picture.len() - begin);
            let end = picture.len().min(at + 1 + random(9));
            if turn % 2 == 0 {
                damaged.drain(at..end);
            } else {
                damaged[at..end].iter_mut().for_each(|byte| *byte = random(256).to_le_bytes()[0]);
            }
            let (is_whole, decoded) = (check(&damaged), decode(&damaged));
            assert!(is_whole.is_err() || decoded.is_ok(), "{name}, {turn}: {decoded:?}");
            tried += 1;
            passed += usize::from(is_whole.is_ok());
        }
    }
    // Changed bits may decode to as many other elements, which no check can detect.
    assert!(passed > 0 && passed * 2 < tried, "{passed} of {tried}");
}
