//! Renderbuffers of several users: files of another user are refused unless that user was chosen, and a group paints together.

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::process::Command;
use std::time::Duration;

use libtest_mimic::Trial;
use ndarray::Ix1;
use ndarray_shm::render::{RenderOptions, SharedWith};
use ndarray_shm::{Directory, Error, Location, NextClaim, RenderBuffer};

use super::sandbox::unless;
use crate::support::child::{self, Child, ROLE, Role, hear, say};
use crate::support::{Name, Place};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    let root = place.trials(
        "linux",
        "users",
        tests![
            files_of_another_user_are_refused_unless_chosen,
            payload_or_ledger_of_another_user_is_refused,
            world_writable_files_are_refused,
            two_users_of_one_group_paint_one_buffer,
            group_of_a_world_writable_directory_proves_nothing,
        ],
    );
    let namespace = place.trials("linux", "users", tests![unmapped_users_of_a_namespace_are_not_this_user]);
    let is_root = rustix::process::geteuid().is_root();
    let can_unshare = Command::new("unshare").args(["--user", "true"]).output().is_ok_and(|out| out.status.success());
    let mut trials = unless("only root can be two users", is_root, root);
    trials.extend(unless("this user may make no user namespace", can_unshare, namespace));
    trials
}

pub const ROLES: &[(&str, Role)] = &[("paint-with-others", paint_with_others)];

const ALICE: u32 = 41_001;
const BOB: u32 = 41_002;
const GROUP: u32 = 42_000;

fn begin(options: RenderOptions, location: &Location) -> ndarray_shm::Result<RenderBuffer<u8, Ix1>> {
    options.create(location, 1 << 14, 1 << 12, "users")
}

/// Begins or joins a buffer that is shared with the users named by the argument, and paints one chunk per "paint" request.
fn paint_with_others(arguments: &[String]) {
    // A umask that takes every right from the group.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let [location, directory, shared, mode] = arguments else { panic!("{arguments:?}") };
    let options = RenderOptions::new()
        .backend(Directory::new("given", directory))
        .permissions(u32::from_str_radix(mode, 8).unwrap())
        .shared_with(shared.parse().unwrap())
        .timeout(Duration::from_secs(60));
    let buffer = match begin(options, &location.parse().unwrap()) {
        Ok(buffer) => buffer,
        Err(Error::ForeignOwner { owner, user, .. }) => return say(format!("foreign {owner} for {user}")),
        Err(error) => return say(error),
    };
    say("begun");
    while hear() == "paint" {
        let NextClaim::Chunk(mut chunk) = buffer.claim_next().unwrap() else { panic!("there are free chunks") };
        chunk.view_mut().fill(1);
        chunk.commit().unwrap();
        say("painted");
    }
    say(buffer.finish().map_or_else(|error| error.to_string(), |_| "finished".to_owned()));
}

/// A directory in which every user can create files, and a copy of this program.
struct Stage {
    place: Place,
    directory: tempfile::TempDir,
    name: Name,
}

impl Stage {
    fn new(place: &Place, mode: u32) -> Self {
        let place = place.private();
        let directory = tempfile::tempdir_in(place.directory()).unwrap();
        for (path, mode) in [(place.directory(), 0o755), (directory.path(), mode)] {
            std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        }
        child::copy_program(&place.directory().join("it"));
        let name = place.location("users");
        Self { place, directory, name }
    }

    fn backend(&self) -> Directory {
        Directory::new("given", self.directory.path())
    }

    fn options(&self) -> RenderOptions {
        RenderOptions::new().backend(self.backend())
    }

    fn path(&self, kind: &str) -> std::path::PathBuf {
        self.directory.path().join(format!(".ndshm-{kind}-{}", self.name.as_str()))
    }

    /// Starts a painter as this user, in the group of all tests.
    fn painter(&self, user: u32, shared: &str, mode: &str) -> Child {
        let (uid, gid) = (format!("--reuid={user}"), format!("--regid={user}"));
        let mut command = Command::new("setpriv");
        command.args([uid, gid, format!("--groups={GROUP}")]).arg(self.place.directory().join("it"));
        self.run(command, shared, mode)
    }

    fn run(&self, mut command: Command, shared: &str, mode: &str) -> Child {
        let directory = self.directory.path().display().to_string();
        command.env(ROLE, "paint-with-others").args([self.name.as_str(), &directory, shared, mode]);
        Child::spawn(command)
    }
}

fn files_of_another_user_are_refused_unless_chosen(place: &Place) {
    let stage = Stage::new(place, 0o1777);
    let mut planted = stage.painter(ALICE, "me", "600");
    planted.expect("begun");
    let refused = |outcome: ndarray_shm::Result<RenderBuffer<u8, Ix1>>| match outcome {
        Err(error @ Error::ForeignOwner { owner: ALICE, user: 0, .. }) => {
            let text = error.to_string();
            assert!(
                [ALICE.to_string().as_str(), "user 0", "--share users:UID"].iter().all(|word| text.contains(word)),
                "{text}"
            );
        }
        other => panic!("{other:?}"),
    };
    refused(begin(stage.options(), stage.name.location()));
    refused(stage.options().open(stage.name.location()));
    refused(begin(stage.options().shared_with(SharedWith::Users(vec![BOB])), stage.name.location()));
    refused(begin(stage.options().shared_with(SharedWith::Group(GROUP)), stage.name.location()));
    assert!(stage.path("ledger").exists() && stage.path("part").exists(), "what was refused stays");
    let joined =
        begin(stage.options().shared_with(SharedWith::Users(vec![BOB, ALICE])), stage.name.location()).unwrap();
    planted.tell("paint");
    planted.expect("painted");
    assert_eq!(joined.progress().done, 1);
}

fn payload_or_ledger_of_another_user_is_refused(place: &Place) {
    let stage = Stage::new(place, 0o1777);
    for kind in ["part", "ledger"] {
        let buffer = begin(stage.options(), stage.name.location()).unwrap();
        chown(stage.path(kind), Some(ALICE), None).unwrap();
        assert!(begin(stage.options(), stage.name.location()).unwrap_err().is_foreign_owner(), "{kind}");
        buffer.discard().unwrap();
    }
}

fn world_writable_files_are_refused(place: &Place) {
    let stage = Stage::new(place, 0o1777);
    stage.painter(ALICE, "me", "666").expect("begun");
    let mut bob = stage.painter(BOB, &format!("users:{ALICE}"), "600");
    let said = bob.line();
    assert!(said.contains("every user may write to it"), "{said}");
    stage.painter(BOB, "me", "666").expect(&format!("foreign {ALICE} for {BOB}"));
    // Both users allowed every user to write, so that Bob may join.
    stage.painter(BOB, &format!("users:{ALICE}"), "666").expect("begun");
}

fn two_users_of_one_group_paint_one_buffer(place: &Place) {
    let stage = Stage::new(place, 0o1777);
    let group = format!("group:{GROUP}");
    let mut alice = stage.painter(ALICE, &group, "600");
    alice.expect("begun");
    for kind in ["part", "ledger"] {
        let facts = std::fs::metadata(stage.path(kind)).unwrap();
        assert_eq!((facts.uid(), facts.gid(), facts.mode() & 0o7777), (ALICE, GROUP, 0o660));
    }
    stage.painter(BOB, "me", "600").expect(&format!("foreign {ALICE} for {BOB}"));
    let mut bob = stage.painter(BOB, &group, "600");
    bob.expect("begun");
    for _ in 0..2 {
        for painter in [&mut alice, &mut bob] {
            painter.tell("paint");
            painter.expect("painted");
        }
    }
    // In a sticky directory only the file's owner can rename the payload. The other user's `finish` waits for that.
    bob.tell("finish");
    assert_eq!(bob.line_within(Duration::from_millis(20)), None);
    alice.tell("finish");
    alice.expect("finished");
    bob.expect("finished");
    let files = stage.backend().list().unwrap();
    assert_eq!(files.iter().map(|file| file.name.as_str()).collect::<Vec<_>>(), [stage.name.as_str()]);
    assert!(std::fs::read(stage.directory.path().join(stage.name.as_str())).unwrap().iter().all(|byte| *byte == 1));
    // A group that this user is not in cannot be given away.
    std::fs::remove_file(stage.directory.path().join(stage.name.as_str())).unwrap();
    let said = stage.painter(BOB, &format!("group:{}", GROUP + 1), "600").line();
    assert!(said.contains("not in the group"), "{said}");
    assert!(stage.backend().list().unwrap().is_empty());
}

fn group_of_a_world_writable_directory_proves_nothing(place: &Place) {
    let stage = Stage::new(place, 0o1777);
    chown(stage.directory.path(), None, Some(GROUP)).unwrap();
    // The set-group-ID bit gives every new file this group, even if its creator is not a member.
    std::fs::set_permissions(stage.directory.path(), Permissions::from_mode(0o3777)).unwrap();
    let group = format!("group:{GROUP}");
    stage.painter(ALICE, &group, "600").expect("begun");
    stage.painter(BOB, &group, "600").expect(&format!("foreign {ALICE} for {BOB}"));
}

fn unmapped_users_of_a_namespace_are_not_this_user(place: &Place) {
    let stage = Stage::new(place, 0o1777);
    let painter = |shared: &str| {
        let mut command = Command::new("unshare");
        command.arg("--user").arg(stage.place.directory().join("it"));
        stage.run(command, shared, "600")
    };
    // In the namespace every file and the process itself appear to belong to 65534.
    painter("me").expect("foreign 65534 for 65534");
    assert!(stage.backend().list().unwrap().is_empty());
    painter("users:65534").expect("begun");
}
