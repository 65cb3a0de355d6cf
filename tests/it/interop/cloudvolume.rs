//! `cloudvolume.sharedmemory`: each side opens the other's arrays, in both orders, in shared memory and in files.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use libtest_mimic::Trial;
use ndarray::{Ix3, IxDyn, ShapeBuilder};
use ndarray_shm::{Access, DType, Error, ErrorKind, Order, SharedArray, unlink, with_element};

use super::peer::{About, Peer, path};
use super::sample::{Sample, assert_same, create, element, fill, open};
use crate::support::Place;
use crate::support::child::{Child, ROLE, hear, program, say};
use crate::tests;

const SHAPE: [usize; 3] = [5, 6, 7];

/// CloudVolume's default directory for emulated shared memory.
const ITS_DIRECTORY: &str = "/tmp/cloudvolume-shm";

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials("interop", "cloudvolume", tests![arrays_are_the_same_in_both])
}

/// Tests of the emulated backend, which keeps arrays in files.
pub fn emulation_trials(place: &Place) -> Vec<Trial> {
    place.trials("interop", "cloudvolume", tests![cloudvolume_directory_serves_the_emulated_backend])
}

/// Runs all tests in one Python process: importing CloudVolume takes longer than the tests.
fn arrays_are_the_same_in_both(place: &Place) {
    let mut cloudvolume = Peer::start(place, "cloudvolume_peer.py");
    let tests: [fn(&Place, &mut Peer); 6] = [
        cloudvolume_changes_only_elements_of_our_arrays,
        arrays_made_by_cloudvolume_open,
        unlink_is_seen_on_both_sides,
        array_resized_by_cloudvolume_is_refused,
        empty_array_survives_failed_mapping_by_cloudvolume,
        a_leading_slash_means_the_same_array,
    ];
    tests.iter().for_each(|test| test(place, &mut cloudvolume));
    cloudvolume.finish();
}

fn cloudvolume_changes_only_elements_of_our_arrays(place: &Place, cloudvolume: &mut Peer) {
    fn exchange<T: Sample>(place: &Place, cloudvolume: &mut Peer, order: Order) {
        let (name, about) = (place.location("cv"), About::new(T::DTYPE, &SHAPE, order));
        let array = create::<T>(place, &name, &SHAPE, order, 1);
        let facts = || {
            let file = std::fs::metadata(path(place, &name)).unwrap();
            (file.ino(), file.len(), file.permissions().mode())
        };
        let before = facts();
        assert_eq!(before.1, 210 * size_of::<T>() as u64);
        cloudvolume.expect(about.with("check", name.as_str(), 1), "same");
        cloudvolume.expect(about.with("fill", name.as_str(), 2), "done");
        assert_same(&array, 2);
        cloudvolume.expect(about.of("hold", name.as_str()), "done");
        fill(&array, 3);
        cloudvolume.expect(format!("check_held {} {} 3", name.as_str(), T::DTYPE), "same");
        assert_eq!(facts(), before);
    }
    for dtype in [DType::U8, DType::U16, DType::U64, DType::I32, DType::F32] {
        for order in [Order::F, Order::C] {
            with_element!(dtype, T => exchange::<T>(place, cloudvolume, order), else => unreachable!("{dtype}"));
        }
    }
}

fn arrays_made_by_cloudvolume_open(place: &Place, cloudvolume: &mut Peer) {
    for order in [Order::F, Order::C] {
        let (name, about) = (place.location("cv-made"), About::new(DType::U32, &SHAPE, order));
        cloudvolume.expect(about.of("hold", name.as_str()), "done");
        let looking = place
            .open_options()
            .leave_holes(true)
            .access(Access::Read)
            .open::<u32, _>(name.location(), IxDyn(&SHAPE))
            .unwrap();
        assert!(looking.is_sparse().unwrap(), "it takes no room before a write");
        let array = open::<u32>(place, &name, &SHAPE, order);
        assert!(!array.is_sparse().unwrap());
        assert!(array.read().unwrap().iter().all(|value| *value == 0));
        cloudvolume.expect(format!("fill_held {} <u4 4", name.as_str()), "done");
        assert_same(&array, 4);
        fill(&array, 5);
        cloudvolume.expect(format!("check_held {} <u4 5", name.as_str()), "same");
        assert_eq!(std::fs::metadata(path(place, &name)).unwrap().len(), 840);
    }
}

fn unlink_is_seen_on_both_sides(place: &Place, cloudvolume: &mut Peer) {
    let (ours, its) = (place.location("cv-unlink"), place.location("cv-unlinked"));
    let about = About::new(DType::U8, &SHAPE, Order::F);
    let array = create::<u8>(place, &ours, &SHAPE, Order::F, 1);
    cloudvolume.expect(format!("unlink {}", ours.as_str()), "True");
    cloudvolume.expect(format!("unlink {}", ours.as_str()), "False");
    assert_eq!(array.read().unwrap_err().kind, ErrorKind::Unlinked);
    assert!(!place.backend.unlink(ours.location()).unwrap());

    cloudvolume.expect(about.with("fill", its.as_str(), 1), "done");
    assert!(place.backend.unlink(its.location()).unwrap());
    cloudvolume.expect(format!("unlink {}", its.as_str()), "False");
    cloudvolume.expect_error(about.with("check", its.as_str(), 1), "SharedMemoryReadError");
}

fn array_resized_by_cloudvolume_is_refused(place: &Place, cloudvolume: &mut Peer) {
    let larger = About::new(DType::U8, &[5, 6, 8], Order::F);
    let smaller = About::new(DType::U8, &[5, 6, 6], Order::F);
    for (about, size) in [(larger, 240), (smaller, 180)] {
        let name = place.location("cv-resize");
        let array = create::<u8>(place, &name, &SHAPE, Order::F, 1);
        // CloudVolume checks the size when it opens read-only. When it opens for writing, it resizes the file.
        cloudvolume.expect_error(about.with("check", name.as_str(), 1), "SharedMemoryReadError");
        assert_same(&array, 1);
        cloudvolume.expect(about.of("allocate", name.as_str()), "done");
        let error = place.open_options().open::<u8, _>(name.location(), IxDyn(&SHAPE).f()).unwrap_err();
        assert!(
            matches!(error, Error { kind: ErrorKind::SizeMismatch { expected: 210, found, .. }, .. } if found == size),
            "{error}"
        );
        assert_eq!(open::<u8>(place, &name, &about.shape, Order::F).len() as u64, size);
    }
}

fn empty_array_survives_failed_mapping_by_cloudvolume(place: &Place, cloudvolume: &mut Peer) {
    let (ours, its) = (place.location("cv-empty"), place.location("cv-made-empty"));
    let about = About::new(DType::U8, &[0, 4, 4], Order::F);
    let array = create::<u8>(place, &ours, &[0, 4, 4], Order::F, 1);
    cloudvolume.expect_error(about.with("check", ours.as_str(), 1), "ValueError");
    assert_eq!(array.read().unwrap().shape(), [0, 4, 4]);
    assert_eq!(open::<u8>(place, &ours, &[0, 4, 4], Order::F).len(), 0);

    // CloudVolume also fails to create an empty array, and leaves its file behind.
    cloudvolume.expect_error(about.of("allocate", its.as_str()), "ValueError");
    assert_eq!(open::<u8>(place, &its, &[0, 4, 4], Order::F).len(), 0);
    let error = place.open_options().open::<u8, _>(its.location(), IxDyn(&[1])).unwrap_err();
    assert!(matches!(error.kind, ErrorKind::SizeMismatch { expected: 1, found: 0, .. }), "{error}");
}

fn a_leading_slash_means_the_same_array(place: &Place, cloudvolume: &mut Peer) {
    let (name, about) = (place.location("cv-slash"), About::new(DType::U8, &SHAPE, Order::F));
    let with_slash = format!("/{}", name.as_str());
    let created = place.options().create::<u8, _>(with_slash.as_str(), IxDyn(&SHAPE).f()).unwrap();
    assert_eq!(place.files_of(&name), [name.as_str()]);
    cloudvolume.expect(about.with("fill", name.as_str(), 1), "done");
    assert_same(&created, 1);
    // With files, CloudVolume takes the slash for the root of the file system, so this part is for shared memory only.
    if place.name == "shm" {
        cloudvolume.expect(about.with("fill", &with_slash, 2), "done");
        assert_same(&created, 2);
        assert_same(&place.open_options().open::<u8, _>(with_slash.as_str(), IxDyn(&SHAPE).f()).unwrap(), 2);
        cloudvolume.expect(format!("unlink {with_slash}"), "True");
        assert_eq!(created.read().unwrap_err().kind, ErrorKind::Unlinked);
    }
}

/// A child that creates one array on the environment's default backend, and opens another that CloudVolume created.
pub fn use_default_directory(arguments: &[String]) {
    let [ours, its] = [arguments[0].as_str(), arguments[1].as_str()];
    let fill = |mut view: ndarray::ArrayViewMut<'_, u16, Ix3>| {
        view.indexed_iter_mut().for_each(|((i, j, k), value)| *value = element(&SHAPE, &[i, j, k], 1));
    };
    match SharedArray::<u16, Ix3>::create_with(ours, SHAPE.f(), fill) {
        Ok(array) => {
            say("created");
            hear();
            assert_same(&array, 2);
            say("seen");
        }
        Err(Error { kind: ErrorKind::PermissionDenied { .. }, .. }) => return say("refused"),
        Err(error) => panic!("{error}"),
    }
    hear();
    assert_same(&SharedArray::<u16, Ix3>::open(its, SHAPE.f()).unwrap(), 3);
    assert!(unlink(ours).unwrap());
    assert!(unlink(its).unwrap());
    say("unlinked");
}

/// Removes the test's files from CloudVolume's directory, and the directory itself if the test created it.
struct Leave {
    files: [String; 2],
    was_there: bool,
}

impl Drop for Leave {
    fn drop(&mut self) {
        for file in &self.files {
            let _ = std::fs::remove_file(Path::new(ITS_DIRECTORY).join(file)); // the test may have unlinked it
        }
        if !self.was_there {
            let _ = std::fs::remove_dir(ITS_DIRECTORY); // fails if another process has put files there
        }
    }
}

fn cloudvolume_directory_serves_the_emulated_backend(place: &Place) {
    let before = std::fs::symlink_metadata(ITS_DIRECTORY).ok();
    let names = [place.location("cv-ours"), place.location("cv-its")];
    let files = [names[0].as_str().to_owned(), names[1].as_str().to_owned()];
    let leave = Leave { files: files.clone(), was_there: before.is_some() };

    let environment = [("EMULATE_SHM", "1".to_owned()), ("NDSHM_EMULATED_DIR", ITS_DIRECTORY.to_owned())];
    let mut command = Command::new(program());
    command.env(ROLE, "use-default-directory").envs(environment.clone()).args(&files);
    let mut child = Child::spawn(command);
    let answer = child.line();
    if answer == "refused" {
        // Refusing is right for another user's directory, and for one that other users can write to.
        let own = std::fs::metadata(place.directory()).unwrap().uid();
        let found = before.expect("a directory that was just made is not refused");
        assert!(!found.is_dir() || found.uid() != own || found.mode() & 0o022 != 0, "mode {:o}", found.mode());
        return;
    }
    assert_eq!(answer, "created");
    let about = About::new(DType::U16, &SHAPE, Order::F);
    let mut cloudvolume = Peer::with_environment("cloudvolume_peer.py", &environment[..1]);
    cloudvolume.expect(about.with("check", &files[0], 1), "same");
    cloudvolume.expect(about.with("fill", &files[0], 2), "done");
    child.tell("look");
    child.expect("seen");
    cloudvolume.expect(about.with("fill", &files[1], 3), "done");
    child.tell("open the other");
    child.expect("unlinked");
    cloudvolume.expect(format!("unlink {}", files[0]), "False");
    child.finish();
    drop(leave);
    assert_eq!(std::fs::symlink_metadata(ITS_DIRECTORY).is_ok(), before.is_some());
}
