//! Renderbuffers and caches of several users: files of another user are refused unless that user was chosen, and a
//! group paints, and fills, together.

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use libtest_mimic::Trial;
use ndarray::Ix1;
use ndarray_shm::cache::{self, CacheOptions, Lookup};
use ndarray_shm::render::{RenderOptions, SharedWith};
use ndarray_shm::{Directory, Error, ErrorKind, Location, NextClaim, RenderBuffer};

use super::sandbox::{has_private_mounts, in_mounts, unless};
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
            stale_ledger_of_another_user_is_no_buffer,
            caches_of_another_user_are_refused_unless_chosen,
        ],
    );
    let members = place.trials(
        "linux",
        "users",
        tests![
            two_users_of_one_group_paint_one_buffer,
            strangers_file_with_the_group_is_refused,
            primary_group_counts_as_membership,
            owner_without_user_data_is_refused,
            two_users_of_one_group_fill_one_cache,
        ],
    );
    let namespace = place.trials("linux", "users", tests![unmapped_users_of_a_namespace_are_not_this_user]);
    let is_root = rustix::process::geteuid().is_root();
    let can_unshare = Command::new("unshare").args(["--user", "true"]).output().is_ok_and(|out| out.status.success());
    let mut trials = unless("only root can be two users", is_root, root);
    trials.extend(unless(
        "only root with private mounts can show its own user data to two users",
        is_root && has_private_mounts(),
        members,
    ));
    trials.extend(unless("this user may make no user namespace", can_unshare, namespace));
    trials
}

pub const ROLES: &[(&str, Role)] =
    &[("paint-with-others", paint_with_others), ("cache-with-others", cache_with_others)];

const ALICE: u32 = 41_001;
const BOB: u32 = 41_002;
const CAROL: u32 = 41_003;
const MALLORY: u32 = 41_004;
const UNKNOWN: u32 = 41_005;
const GROUP: u32 = 42_000;

/// User data: Alice and Bob are listed as members of the group, Carol has it as her primary group, Mallory is no
/// member.
const USERS: &str = "root:x:0:0::/:/bin/sh
alice:x:41001:41001::/:/bin/sh
bob:x:41002:41002::/:/bin/sh
carol:x:41003:42000::/:/bin/sh
mallory:x:41004:41004::/:/bin/sh
";
const GROUPS: &str = "root:x:0:\npainters:x:42000:alice,bob\n";

fn begin(options: RenderOptions, location: &Location) -> ndarray_shm::Result<RenderBuffer<u8, Ix1>> {
    options.create(location, 1 << 14, 1 << 12, "users")
}

/// Begins or joins a buffer that is shared with the users named by the argument (only joins it if the mode is "open"),
/// and paints one chunk per "paint" request.
fn paint_with_others(arguments: &[String]) {
    // A umask that takes every right from the group.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let [location, directory, shared, mode] = arguments else { panic!("{arguments:?}") };
    let options = RenderOptions::new()
        .directory(Directory::new("given", directory))
        .permissions(u32::from_str_radix(mode, 8).unwrap_or(0o666))
        .shared_with(shared.parse().unwrap())
        .timeout(Duration::from_secs(60));
    if mode == "open" {
        let opened: ndarray_shm::Result<RenderBuffer<u8, Ix1>> = options.open(location.as_str());
        return say(opened.map_or_else(
            |error| if error.is_not_found() { "not found".into() } else { error.to_string() },
            |_| "opened".into(),
        ));
    }
    let buffer = match begin(options, &location.parse().unwrap()) {
        Ok(buffer) => buffer,
        Err(Error { kind: ErrorKind::ForeignOwner { owner, user, reason, .. }, .. }) => {
            say(format!("foreign {owner} for {user}"));
            return say(reason);
        }
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

/// Opens or creates a cache that is shared with the users named by the argument. For each number that it hears, it says
/// whether the chunk of this key was there or is filled.
fn cache_with_others(arguments: &[String]) {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let [location, directory, shared, _] = arguments else { panic!("{arguments:?}") };
    let directory = Directory::new("given", directory);
    let options = CacheOptions::new().directory(directory.clone()).shared_with(shared.parse().unwrap());
    let cache = match options.open_or_create(location.as_str(), 1 << 20) {
        Ok(cache) => cache,
        Err(Error { kind: ErrorKind::ForeignOwner { owner, user, .. }, .. }) => {
            return say(format!("foreign {owner} for {user}"));
        }
        Err(error) => return say(error),
    };
    say("begun");
    loop {
        let heard = hear();
        if heard == "unlink" {
            say(cache::unlink(&directory, cache.location()).map_or_else(|_| "refused".to_owned(), |it| it.to_string()));
            continue;
        }
        let Ok(key) = heard.parse() else { return };
        match cache.look(key, 9, 0, Duration::from_secs(5)).unwrap() {
            Lookup::Found(chunk) => say(String::from_utf8_lossy(chunk.bytes().unwrap())),
            Lookup::Claimed(mut claim) => {
                let mut chunk = claim.room().unwrap().unwrap();
                chunk
                    .bytes_mut()
                    .unwrap()
                    .copy_from_slice(format!("by {:06}", rustix::process::geteuid().as_raw()).as_bytes());
                chunk.publish(1, cache.now()).unwrap();
                say("filled");
            }
            other => panic!("{other:?}"),
        }
    }
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
        std::fs::write(place.directory().join("users"), USERS).unwrap();
        std::fs::write(place.directory().join("groups"), GROUPS).unwrap();
        let directory = tempfile::tempdir_in(place.directory()).unwrap();
        for (path, mode) in [(place.directory(), 0o755), (directory.path(), mode)] {
            std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        }
        child::copy_program(&place.directory().join("it"));
        let name = place.location("users");
        Self { place, directory, name }
    }

    fn directory(&self) -> Directory {
        Directory::new("given", self.directory.path())
    }

    fn options(&self) -> RenderOptions {
        RenderOptions::new().directory(self.directory())
    }

    fn path(&self, kind: &str) -> PathBuf {
        self.directory.path().join(format!(".ndshm-{kind}-{}", self.name.as_str()))
    }

    /// Starts a painter as this user, in the group of all tests.
    fn painter(&self, user: u32, shared: &str, mode: &str) -> Child {
        let mut command = Command::new("setpriv");
        command.args(as_user(user)).arg(self.program());
        self.run(command, self.directory.path(), shared, mode)
    }

    /// Starts a painter as this user, in the group of all tests, with the user data of the tests instead of the
    /// machine's.
    fn member(&self, user: u32) -> Child {
        self.run(self.as_member(user), self.directory.path(), &format!("group:{GROUP}"), "600")
    }

    /// This program as this user, with the user data of the tests.
    fn as_member(&self, user: u32) -> Command {
        let mut command = in_mounts(&format!(
            "cd '{}'
             mount --bind users /etc/passwd
             mount --bind groups /etc/group
             # nscd would answer with the machine's data.
             if test -d /var/run/nscd; then mount -t tmpfs none /var/run/nscd; fi",
            self.place.directory().display()
        ));
        command.arg("setpriv").args(as_user(user)).arg(self.program());
        command
    }

    /// Starts a user of the cache as this user, in the group of all tests.
    fn filler(&self, user: u32, shared: &str) -> Child {
        let mut command = Command::new("setpriv");
        command.args(as_user(user)).arg(self.program());
        self.start("cache-with-others", command, self.directory.path(), shared, "")
    }

    fn program(&self) -> PathBuf {
        self.place.directory().join("it")
    }

    fn run(&self, command: Command, directory: &Path, shared: &str, mode: &str) -> Child {
        self.start("paint-with-others", command, directory, shared, mode)
    }

    fn start(&self, role: &str, mut command: Command, directory: &Path, shared: &str, mode: &str) -> Child {
        let directory = directory.display().to_string();
        command.env(ROLE, role).args([self.name.as_str(), &directory, shared, mode]);
        Child::spawn(command)
    }
}

/// Arguments of setpriv.
fn as_user(user: u32) -> [String; 3] {
    [format!("--reuid={user}"), format!("--regid={user}"), format!("--groups={GROUP}")]
}

fn files_of_another_user_are_refused_unless_chosen(place: &Place) {
    let stage = Stage::new(place, 0o1777);
    let mut planted = stage.painter(ALICE, "me", "600");
    planted.expect("begun");
    let refused = |outcome: ndarray_shm::Result<RenderBuffer<u8, Ix1>>| match outcome {
        Err(error @ Error { kind: ErrorKind::ForeignOwner { owner: ALICE, user: 0, .. }, .. }) => {
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
        assert!(
            matches!(begin(stage.options(), stage.name.location()).unwrap_err().kind, ErrorKind::ForeignOwner { .. }),
            "{kind}"
        );
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
    let mut alice = stage.member(ALICE);
    alice.expect("begun");
    for kind in ["part", "ledger"] {
        let facts = std::fs::metadata(stage.path(kind)).unwrap();
        assert_eq!((facts.uid(), facts.gid(), facts.mode() & 0o7777), (ALICE, GROUP, 0o660));
    }
    stage.painter(BOB, "me", "600").expect(&format!("foreign {ALICE} for {BOB}"));
    let mut bob = stage.member(BOB);
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
    let files = stage.directory().list().unwrap();
    assert_eq!(files.iter().map(|file| file.name.as_str()).collect::<Vec<_>>(), [stage.name.as_str()]);
    assert!(std::fs::read(stage.directory.path().join(stage.name.as_str())).unwrap().iter().all(|byte| *byte == 1));
    // A group that this user is not in cannot be given away.
    std::fs::remove_file(stage.directory.path().join(stage.name.as_str())).unwrap();
    let said = stage.painter(BOB, &format!("group:{}", GROUP + 1), "600").line();
    assert!(said.contains("not in the group"), "{said}");
    assert!(stage.directory().list().unwrap().is_empty());
}

fn stale_ledger_of_another_user_is_no_buffer(place: &Place) {
    let trusted = format!("users:{ALICE}");
    for (mode, said) in [(0o777, "begun"), (0o1777, "sticky bit")] {
        let stage = Stage::new(place, mode);
        // As a process leaves it that is killed after it has finished or discarded the buffer, before it removes the
        // ledger.
        let mut alice = stage.painter(ALICE, "me", "666");
        alice.expect("begun");
        alice.kill();
        std::fs::remove_file(stage.path("part")).unwrap();
        // A process that looks for a buffer finds none, whether or not the ledger can be removed.
        stage.painter(BOB, &trusted, "open").expect("not found");
        assert_eq!(stage.path("ledger").exists(), mode == 0o1777);
        let line = stage.painter(BOB, &trusted, "666").line();
        assert!(line.contains(said), "{line}");
        // A finished array is an array.
        if mode == 0o1777 {
            std::fs::write(stage.directory.path().join(stage.name.as_str()), [1u8; 1 << 14]).unwrap();
            let line = stage.painter(BOB, &trusted, "666").line();
            assert!(line.contains("exists already"), "{line}");
        }
    }
}

/// The set-group-ID bit of a directory gives every new file the group, and the files keep it wherever they are moved.
fn strangers_file_with_the_group_is_refused(place: &Place) {
    let stage = Stage::new(place, 0o1777);
    let trap = stage.place.directory().join("trap");
    std::fs::create_dir(&trap).unwrap();
    chown(&trap, None, Some(GROUP)).unwrap();
    std::fs::set_permissions(&trap, Permissions::from_mode(0o3777)).unwrap();
    let as_mallory = || {
        let mut command = Command::new("setpriv");
        command.args([format!("--reuid={MALLORY}"), format!("--regid={MALLORY}"), "--clear-groups".to_owned()]);
        command
    };
    let mut begin = as_mallory();
    begin.arg(stage.program());
    stage.run(begin, &trap, "me", "660").expect("begun");
    for kind in ["part", "ledger"] {
        let hidden = stage.path(kind);
        let planted = trap.join(hidden.file_name().unwrap());
        let facts = std::fs::metadata(&planted).unwrap();
        assert_eq!((facts.uid(), facts.gid(), facts.mode() & 0o7777), (MALLORY, GROUP, 0o660), "as a member's file");
        assert!(as_mallory().arg("mv").arg(planted).arg(hidden).status().unwrap().success());
    }
    let mut bob = stage.member(BOB);
    bob.expect(&format!("foreign {MALLORY} for {BOB}"));
    let reason = bob.line();
    assert!(reason.contains("not a member") && reason.contains("--share users:UID"), "{reason}");
    stage.painter(BOB, &format!("users:{MALLORY}"), "600").expect("begun");
}

fn primary_group_counts_as_membership(place: &Place) {
    let stage = Stage::new(place, 0o1777);
    let mut carol = stage.member(CAROL);
    carol.expect("begun");
    stage.member(BOB).expect("begun");
}

fn owner_without_user_data_is_refused(place: &Place) {
    let stage = Stage::new(place, 0o1777);
    stage.member(UNKNOWN).expect("begun"); // its own files need no proof
    let mut bob = stage.member(BOB);
    bob.expect(&format!("foreign {UNKNOWN} for {BOB}"));
    let reason = bob.line();
    assert!(reason.contains("do not know that user") && reason.contains("--share users:UID"), "{reason}");
    stage.painter(BOB, &format!("users:{UNKNOWN}"), "600").expect("begun");
}

fn caches_of_another_user_are_refused_unless_chosen(place: &Place) {
    let stage = Stage::new(place, 0o1777);
    let mut planted = stage.filler(ALICE, "me");
    planted.expect("begun");
    planted.tell("1");
    planted.expect("filled");
    let open = |users| {
        let options = CacheOptions::new().directory(stage.directory()).shared_with(users);
        options.open(stage.name.as_str()).map(|cache| cache.inspect().unwrap().fills)
    };
    for users in [SharedWith::OnlyMe, SharedWith::Users(vec![BOB]), SharedWith::Group(GROUP)] {
        let refused = open(users).unwrap_err();
        assert!(matches!(refused.kind, ErrorKind::ForeignOwner { owner: ALICE, user: 0, .. }), "{refused}");
    }
    assert_eq!(open(SharedWith::Users(vec![BOB, ALICE])).unwrap(), 1);
    // Its mode keeps other users out, whatever they choose.
    let said = stage.filler(BOB, &format!("users:{ALICE}")).line();
    assert!(said.contains("owner uid 41001"), "{said}");
    std::fs::set_permissions(stage.path("cache"), Permissions::from_mode(0o666)).unwrap();
    let said = stage.filler(BOB, &format!("users:{ALICE}")).line();
    assert!(said.contains("every user may write to it"), "{said}");
}

fn two_users_of_one_group_fill_one_cache(place: &Place) {
    let stage = Stage::new(place, 0o1777);
    let group = format!("group:{GROUP}");
    let member = |user| stage.start("cache-with-others", stage.as_member(user), stage.directory.path(), &group, "");
    let mut alice = member(ALICE);
    alice.expect("begun");
    let facts = std::fs::metadata(stage.path("cache")).unwrap();
    assert_eq!((facts.uid(), facts.gid(), facts.mode() & 0o7777), (ALICE, GROUP, 0o660));
    stage.filler(BOB, "me").expect(&format!("foreign {ALICE} for {BOB}"));
    let mut bob = member(BOB);
    bob.expect("begun");
    for (filler, reader, key, bytes) in [(0, 1, "1", "by 041001"), (1, 0, "2", "by 041002")] {
        let both = [&mut alice, &mut bob];
        both[filler].tell(key);
        both[filler].expect("filled");
        both[reader].tell(key);
        both[reader].expect(bytes);
    }
    // A killed member holds nothing up, and only the owner removes it from a sticky directory.
    bob.tell("unlink");
    bob.expect("refused");
    bob.kill();
    alice.tell("2");
    alice.expect("by 041002");
    alice.tell("unlink");
    alice.expect("true");
    assert!(stage.directory().list().unwrap().is_empty());
}

fn unmapped_users_of_a_namespace_are_not_this_user(place: &Place) {
    let stage = Stage::new(place, 0o1777);
    let painter = |shared: &str| {
        let mut command = Command::new("unshare");
        command.arg("--user").arg(stage.program());
        stage.run(command, stage.directory.path(), shared, "600")
    };
    // In the namespace every file and the process itself appear to belong to 65534.
    painter("me").expect("foreign 65534 for 65534");
    assert!(stage.directory().list().unwrap().is_empty());
    painter("users:65534").expect("begun");
}
