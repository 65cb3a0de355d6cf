//! `ndshm doctor`: checks this machine for problems, and advises what to do.
//!
//! It changes nothing, except that it creates the emulated directory if that is in use. Probes leave no file. Warnings
//! do not change the exit code; a problem makes it 1.

use std::io::Write;
use std::path::Path;

use ndarray_shm::array::SealableDraft;
use ndarray_shm::backend::EntryKind;
use ndarray_shm::{Directory, Error, ErrorKind, Location, default_directory, stream};
use ndarray_shm_volume::Found;
use serde::Serialize;

use crate::args::DoctorArgs;
use crate::arrays::places::{self, EMULATE_SHM, NDSHM_EMULATED_DIR};
use crate::exit::{Exit, Failure};
use crate::machine::host::{self, FileSystemSpace};
use crate::machine::logind;
use crate::show::colour::{Colours, Tone};
use crate::show::{report, units};

/// Shared memory up to this size is a problem: Docker's default for /dev/shm, too small for nearly every volume.
const LITTLE_ROOM: u64 = 64 << 20;
/// If the disk of the emulated directory has less space left, `doctor` warns, as the library does.
const LITTLE_DISK: u64 = 1 << 30;
/// The kernel's default limit on mappings. `doctor` warns about a lower one: each attached array is a mapping.
const USUAL_MAPPINGS: u64 = 65_530;
/// `doctor` warns about fewer descriptors than this if every attached array keeps one.
const FEW_DESCRIPTORS: u64 = 1024;
/// Fewer descriptors than this are not enough for workers, guards and claims.
const TOO_FEW_DESCRIPTORS: u64 = 32;

/// Bytes of an array that gets huge pages if the kernel gives any.
const LARGE: usize = 4 << 20;

/// Characters in a line of text, without the margin.
const TEXT_WIDTH: usize = 90;

const MORE_SHARED_MEMORY: &str = "enlarge it: `docker run --shm-size=8g` (or --ipc=host), `shm_size: 8gb` in a compose \
     file; in Kubernetes mount an `emptyDir: {medium: Memory, sizeLimit: 8Gi}` at /dev/shm; elsewhere \
     `mount -o remount,size=8G /dev/shm`; or use files: EMULATE_SHM=1";

const READ_ONLY_SHARED_MEMORY: &str = "mount it for writing: `mount -o remount,rw /dev/shm`; in a container give it a tmpfs of \
     its own, `docker run --tmpfs /dev/shm:rw,size=8g`, or in Kubernetes an `emptyDir: {medium: Memory, sizeLimit: 8Gi}`; or use \
     files: EMULATE_SHM=1";

/// Result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum CheckStatus {
    Ok,
    Warning,
    Problem,
}

/// One check.
#[derive(Debug, Serialize)]
struct Check {
    /// Stable name of its subject.
    name: &'static str,
    status: CheckStatus,
    /// What was found.
    found: String,
    /// What to do, or `null`.
    advice: Option<String>,
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, status: CheckStatus::Ok, found: found.into(), advice: None }
    }

    fn warning(name: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { name, status: CheckStatus::Warning, found: found.into(), advice: Some(advice.into()) }
    }

    fn problem(name: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { name, status: CheckStatus::Problem, found: found.into(), advice: Some(advice.into()) }
    }

    /// Returns an error of the library as a problem.
    fn error(name: &'static str, error: Error, advice: impl Into<String>) -> Self {
        Self::problem(name, Failure::from(error).to_string(), advice)
    }
}

/// All checks, as `doctor --json` prints them.
#[derive(Debug, Serialize)]
struct Diagnosis {
    /// Whether no check found a problem.
    healthy: bool,
    checks: Vec<Check>,
}

/// Runs `ndshm doctor`.
pub(crate) fn run(args: &DoctorArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let checks = examine();
    let healthy = checks.iter().all(|check| check.status != CheckStatus::Problem);
    let diagnosis = Diagnosis { healthy, checks };
    if args.output.json {
        report::json(out, &diagnosis)?;
    } else {
        write(&diagnosis, out)?;
    }
    Ok(if healthy { Exit::Done } else { Exit::Failed })
}

fn write(diagnosis: &Diagnosis, out: &mut dyn Write) -> Result<(), Failure> {
    let width = diagnosis.checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    let colours = Colours::of_stdout();
    let mut warnings = 0;
    let mut problems = 0;
    for Check { name, status, found, advice } in &diagnosis.checks {
        let (word, tone) = match status {
            CheckStatus::Ok => ("ok", Tone::Good),
            CheckStatus::Warning => {
                warnings += 1;
                ("warning", Tone::Warning)
            }
            CheckStatus::Problem => {
                problems += 1;
                ("PROBLEM", Tone::Problem)
            }
        };
        let advice = advice.as_ref().map(|advice| format!("what to do: {advice}"));
        let mut margin = (word, *name);
        for text in [Some(found), advice.as_ref()].into_iter().flatten() {
            for line in report::wrapped(&units::printable(text), TEXT_WIDTH) {
                let word = colours.paint(tone, &format!("{:<7}", margin.0));
                writeln!(out, "{word}  {:<width$}  {line}", margin.1)?;
                margin = ("", "");
            }
        }
    }
    writeln!(out)?;
    match (problems, warnings) {
        (0, 0) => writeln!(out, "nothing is wrong")?,
        (0, _) => writeln!(out, "nothing is wrong; {}", units::count(warnings, "warning"))?,
        _ => writeln!(out, "{} and {}", units::count(problems, "problem"), units::count(warnings, "warning"))?,
    }
    Ok(())
}

fn examine() -> Vec<Check> {
    let default = default_directory();
    let default_name = default.as_ref().map_or("", |backend| backend.name()).to_owned();
    let mut checks = vec![selection(default)];
    let mut descriptors_kept = false;
    match Directory::shm() {
        Ok(shm) => {
            let matters = default_name == "shm";
            if shm.path().is_dir() {
                checks.push(shared_memory(&shm, matters));
                descriptors_kept |= probe("shm", &shm, matters, &mut checks);
            } else {
                let found = format!("{} does not exist", shm.path().display());
                let advice = "mount a tmpfs on it, or use files: unset EMULATE_SHM or set it to 1";
                let status = if matters { CheckStatus::Problem } else { CheckStatus::Warning };
                checks.push(Check { status, ..Check::warning("shm-room", found, advice) });
            }
        }
        Err(error) => checks.push(Check::ok("shm-room", error.to_string())),
    }
    descriptors_kept |= emulated(default_name == "emulated", &mut checks);
    checks.push(descriptors(descriptors_kept));
    checks.push(mappings());
    checks.push(huge_pages());
    checks.push(remove_ipc(default_name == "shm"));
    checks.push(manager());
    checks.push(leftovers());
    checks.push(orphans());
    checks
}

/// Checks which backend is used, and whether the settings are valid.
fn selection(default: Result<Directory, Error>) -> Check {
    let setting = std::env::var_os(EMULATE_SHM);
    let setting_is_missing = setting.is_none();
    let setting = match setting {
        Some(value) => format!("{EMULATE_SHM}={}", value.to_string_lossy()),
        None => format!("{EMULATE_SHM} is not set"),
    };
    match default {
        Ok(backend) => {
            let chosen = format!("{setting}: {} in {}", backend.name(), backend.path().display());
            let reason = match Directory::shm() {
                Ok(shm) if setting_is_missing && backend.name() == "emulated" => {
                    format!(", because no array can be created in {}", shm.path().display())
                }
                _ => String::new(),
            };
            Check::ok("backend", format!("{chosen}{reason}"))
        }
        Err(error) => Check::error(
            "backend",
            error,
            format!("correct or unset {EMULATE_SHM} and {NDSHM_EMULATED_DIR}; until then arrays cannot be created"),
        ),
    }
}

/// Checks the free space in /dev/shm, and the memory limit, against which shared memory counts too.
fn shared_memory(shm: &Directory, matters: bool) -> Check {
    let name = "shm-room";
    let path = shm.path();
    let Some(room) = host::room(path) else {
        return Check::ok(name, "this platform does not say");
    };
    let kind = host::file_system(path).unwrap_or_else(|| "unknown file system".to_owned());
    let available = match shm.available() {
        Ok(available) => available,
        Err(error) => return Check::error(name, error, MORE_SHARED_MEMORY),
    };
    let below = if available < room.free {
        format!(", {} left under the memory limit of the machine or container", units::size(available))
    } else {
        String::new()
    };
    let kind = if host::is_read_only(path) { format!("{kind}, read-only") } else { kind };
    let found =
        format!("{} free of {} in {} ({kind}){below}", units::size(room.free), units::size(room.total), path.display());
    let little = if room.total <= LITTLE_ROOM || room.free < LITTLE_ROOM {
        Some(MORE_SHARED_MEMORY)
    } else if available < LITTLE_ROOM {
        Some(
            "shared memory counts against the memory limit: raise it (`docker run --memory=..`, \
             `resources.limits.memory` in Kubernetes), unlink arrays (`ndshm ls`), or use files: EMULATE_SHM=1",
        )
    } else {
        None
    };
    match little {
        Some(advice) if matters => Check::problem(name, found, advice),
        Some(advice) => Check::warning(name, found, advice),
        None => inodes(name, found, &room),
    }
}

fn inodes(name: &'static str, found: String, room: &FileSystemSpace) -> Check {
    match room.free_inodes {
        Some(0) => Check::problem(
            name,
            format!("{found}, but no file can be created: its inodes are used up"),
            "remove files from it, or mount it with more (`mount -o remount,nr_inodes=..`)",
        ),
        _ => Check::ok(name, found),
    }
}

/// Checks the emulated directory, or its parent if it does not exist. Returns whether attachments there keep
/// descriptors.
fn emulated(matters: bool, checks: &mut Vec<Check>) -> bool {
    let name = "emulated-room";
    let backend = match emulated_or_parent() {
        Ok(backend) => backend,
        Err(error) => {
            checks.push(Check::error(
                name,
                error,
                format!(
                    "make it a directory that you own and no other user may write to (mode 0700), or set \
                     {NDSHM_EMULATED_DIR} to such a directory"
                ),
            ));
            return false;
        }
    };
    let path = backend.path();
    let kind = host::file_system(path).map(|kind| format!(" ({kind})")).unwrap_or_default();
    let place = match Directory::emulated_path() {
        Ok(made) if made != path => {
            format!("{}{kind}, where {} is created when it is needed", path.display(), made.display())
        }
        _ => format!("{}{kind}", path.display()),
    };
    checks.push(match backend.available() {
        Ok(available) => {
            let room = host::room(path);
            let total = room.map(|room| format!(" of {}", units::size(room.total))).unwrap_or_default();
            let limit = match Directory::emulated_limit() {
                Ok(Some(limit)) => format!(", as NDSHM_EMULATED_LIMIT allows {} in total", units::size(limit)),
                _ => String::new(),
            };
            let found = format!("{} free{total} in {place}{limit}", units::size(available));
            let advice = format!("free some of it, or set {NDSHM_EMULATED_DIR} to a directory with more space");
            match room {
                _ if available < LITTLE_ROOM && matters => Check::problem(name, found, advice),
                _ if available < LITTLE_ROOM => Check::warning(name, found, advice),
                Some(room) if room.free < LITTLE_DISK && matters => Check::warning(
                    name,
                    format!("{found}: little space is left on this disk, which other files use too"),
                    format!("{advice}; NDSHM_EMULATED_LIMIT=10G prevents arrays from filling the disk"),
                ),
                Some(room) => inodes(name, found, &room),
                None => Check::ok(name, found),
            }
        }
        Err(error @ Error { kind: ErrorKind::InvalidSetting { .. }, .. }) => {
            Check::error(name, error, "correct or unset it; until then arrays cannot be created here")
        }
        Err(error) => Check::error(name, error, format!("set {NDSHM_EMULATED_DIR} to another directory")),
    });
    probe("emulated", &backend, matters, checks)
}

/// Returns the emulated directory if it exists, else its parent. A check does not create the directory.
fn emulated_or_parent() -> Result<Directory, Error> {
    let path = Directory::emulated_path()?;
    if path.symlink_metadata().is_ok() {
        return Directory::emulated();
    }
    match path.parent().filter(|above| above.is_dir()) {
        Some(above) => Ok(Directory::new("emulated", above)),
        // There is nothing to check. The library returns the error, and creates nothing.
        None => Directory::emulated(),
    }
}

/// Checks what the file system of a directory supports. Returns whether attachments there keep descriptors.
fn probe(place: &str, backend: &Directory, matters: bool, checks: &mut Vec<Check>) -> bool {
    let (locks, drafts, descriptions) = match place {
        "shm" => ("shm-locks", "shm-drafts", "shm-descriptions"),
        _ => ("emulated-locks", "emulated-drafts", "emulated-descriptions"),
    };
    let path: &Path = backend.path();
    if !host::may_make_files(path) {
        let (found, advice) = match (host::is_read_only(path), place) {
            (true, "shm") => (
                format!("{} is mounted read-only: no array can be created in it", path.display()),
                READ_ONLY_SHARED_MEMORY,
            ),
            (true, _) => (
                format!(
                    "{} is on a file system that is mounted read-only: no array can be created in it",
                    path.display()
                ),
                "set NDSHM_EMULATED_DIR to a writable directory of yours",
            ),
            (false, _) => {
                (format!("this user may not create files in {}", path.display()), "check its permissions and its owner")
            }
        };
        checks.push(if matters { Check::problem(locks, found, advice) } else { Check::warning(locks, found, advice) });
        return true;
    }
    let (check, kept) = match backend.lock_survives_close() {
        Ok(true) => (Check::ok(locks, "locks live as long as the mapping: no descriptor is kept"), false),
        Ok(false) if !host::MAPPINGS_MAY_HOLD_LOCKS => {
            (Check::ok(locks, "locks live as long as a descriptor: every attached array keeps one"), true)
        }
        Ok(false) => {
            let found = "locks do not survive close (as on overlayfs): every attached array keeps a descriptor";
            let advice = format!(
                "nothing, unless you attach thousands: then put {NDSHM_EMULATED_DIR} on tmpfs, ext4 or xfs, \
                 or raise `ulimit -n`"
            );
            (if matters { Check::warning(locks, found, advice) } else { Check::ok(locks, found) }, true)
        }
        Err(error) => {
            let advice = format!("check that you can create files in {} and that it supports locks", path.display());
            let check = Check::error(locks, error, advice);
            (if matters { check } else { Check { status: CheckStatus::Warning, ..check } }, false)
        }
    };
    checks.push(check);
    checks.push(match host::makes_nameless_files(path) {
        Some(true) => Check::ok(drafts, "files without a name are supported (O_TMPFILE): a killed creator leaves nothing"),
        Some(false) => Check::ok(
            drafts,
            "files without a name are not supported (no O_TMPFILE): drafts have hidden names, which a killed creator leaves behind",
        ),
        None => Check::ok(drafts, "this platform has no files without a name: drafts have hidden names"),
    });
    checks.push(match backend.can_describe() {
        Ok(true) => Check::ok(descriptions, "arrays can have a description: type, shape and order"),
        // This is not a problem, and there is no advice beyond the text itself.
        Ok(false) => Check::ok(
            descriptions,
            "arrays cannot have a description (no extended attributes of `user.`, which tmpfs has since Linux 6.6): programs must \
             give type, shape and order when they open one",
        ),
        Err(error) => Check { status: CheckStatus::Warning, ..Check::error(descriptions, error, "see the checks above") },
    });
    kept
}

/// Checks how many descriptors this process may have.
fn descriptors(kept: bool) -> Check {
    let name = "open-files";
    let Some((soft, hard)) = host::descriptor_limits() else {
        return Check::ok(name, "this platform does not say");
    };
    let number = |limit: u64| if limit == u64::MAX { "unlimited".to_owned() } else { limit.to_string() };
    let found = match hard {
        _ if hard == soft => format!("{} descriptors", number(soft)),
        _ => format!("{} descriptors, up to {} on request", number(soft), number(hard)),
    };
    let advice = "raise it with `ulimit -n`, or LimitNOFILE= in a service";
    if soft < TOO_FEW_DESCRIPTORS {
        Check::problem(name, found, advice)
    } else if kept && soft < FEW_DESCRIPTORS {
        Check::warning(name, found, advice)
    } else {
        Check::ok(name, found)
    }
}

/// Checks how many mappings a process may have.
fn mappings() -> Check {
    let name = "mappings";
    match host::mapping_limit() {
        Some(limit) if limit < USUAL_MAPPINGS => Check::warning(
            name,
            format!("{limit} mappings for each process (vm.max_map_count); each attached array is one"),
            format!("`sysctl vm.max_map_count={USUAL_MAPPINGS}` or more"),
        ),
        Some(limit) => Check::ok(name, format!("{limit} mappings for each process (vm.max_map_count)")),
        None => Check::ok(name, "this platform does not say"),
    }
}

/// Checks whether large arrays in shared memory get huge pages, with an array without a name.
fn huge_pages() -> Check {
    let name = "huge-pages";
    match SealableDraft::<u8, _>::new(LARGE).and_then(|draft| draft.pages()) {
        Ok(pages) if pages.huge > 0 => Check::ok(name, "large arrays in shared memory are on huge pages"),
        Ok(_) => Check::warning(
            name,
            "the kernel gives shared memory no huge pages: large arrays take several times as long to create and to read",
            "huge pages need Linux 6.1, and `shmem_enabled` in /sys/kernel/mm/transparent_hugepage not set to `deny`; if \
             both are right, free memory may be fragmented: `echo 1 > /proc/sys/vm/compact_memory`",
        ),
        Err(Error { kind: ErrorKind::Unsupported { .. }, .. }) => {
            Check::ok(name, "pages cannot be chosen on this platform")
        }
        Err(error) => Check::warning(name, format!("the check failed: {error}"), "see the other checks"),
    }
}

/// Checks whether logging out removes a user's shared memory.
fn remove_ipc(matters: bool) -> Check {
    let name = "log-out";
    if !logind::is_running() {
        return Check::ok(name, "systemd does not run here: logging out removes nothing");
    }
    let user = host::user().unwrap_or(0);
    // systemd does not do that for system users, see RemoveIPC= in logind.conf(5).
    if user < 1000 {
        return Check::ok(name, "this is a system user: logging out removes nothing");
    }
    let setting = match logind::remove_ipc() {
        Some(false) => return Check::ok(name, "RemoveIPC=no: logging out removes nothing"),
        Some(true) => "RemoveIPC=yes",
        None => "RemoveIPC is not set, and yes by default",
    };
    if host::user_name(user).is_some_and(|user| logind::lingers(&user)) {
        return Check::ok(name, format!("{setting}, but this user lingers: logging out removes nothing"));
    }
    let found =
        format!("{setting}: when this user's last session ends, systemd removes the user's files from /dev/shm");
    let advice =
        "`loginctl enable-linger` keeps them, or RemoveIPC=no in /etc/systemd/logind.conf, or use files: EMULATE_SHM=1";
    if matters { Check::warning(name, found, advice) } else { Check::ok(name, found) }
}

/// Checks the manager, which reclaims counted arrays of killed processes. Everything works without it.
fn manager() -> Check {
    let name = "manager";
    match ndarray_shm::manager::status(None) {
        Ok(Some(status)) => {
            let clients = units::count(status.clients, "client");
            Check::ok(name, format!("process {} reclaims counted arrays, for {clients}", status.pid))
        }
        Ok(None) => Check::ok(name, "none is running; it is started when it is needed"),
        Err(error) if matches!(error.kind, ErrorKind::Unsupported { .. }) => {
            Check::ok(name, "there is none on this platform, and none is needed")
        }
        Err(error) => {
            let advice = "end the program that listens there, or set NDSHM_MANAGER_SOCKET to another path; until then arrays of \
                          killed processes are removed later";
            Check::warning(name, Failure::from(error).to_string(), advice)
        }
    }
}

/// Checks for unfinished renderbuffers that no process paints, and for streams with a killed writer.
fn leftovers() -> Check {
    let name = "leftovers";
    let (mut buffers, mut streams) = (Vec::new(), Vec::new());
    let mut bytes = 0;
    // A directory that cannot be read was reported above.
    for backend in places::existing(None).unwrap_or_default() {
        for entry in backend.list().unwrap_or_default() {
            let Some(location) = entry.location() else { continue };
            let left = match entry.kind {
                EntryKind::Partial if places::attached(&backend, &entry) == Some(false) => &mut buffers,
                EntryKind::Frames if is_left_behind(&backend, &location) => &mut streams,
                _ => continue,
            };
            bytes += entry.allocated;
            left.push(String::from(location));
        }
    }
    let (mut found, mut advice) = (Vec::new(), Vec::new());
    if !buffers.is_empty() {
        let names = buffers.join(" ");
        found.push(format!("{} left behind: {names}", units::count(buffers.len(), "unfinished renderbuffer")));
        advice.push(format!("repeat the download to finish it, or `ndshm unlink --partial {names}`"));
    }
    if !streams.is_empty() {
        let names = streams.join(" ");
        found.push(format!("{} left behind: {names}", units::count(streams.len(), "stream")));
        advice.push(format!("start a writer that resumes the stream, or `ndshm unlink --stream {names}`"));
    }
    if found.is_empty() {
        return Check::ok(name, "no unfinished renderbuffer and no stream was left behind");
    }
    let found = format!("{}; {} in total", found.join("; "), units::size(bytes));
    Check::warning(name, found, advice.join("; "))
}

/// Returns whether the writer of a stream was killed.
fn is_left_behind(backend: &Directory, location: &Location) -> bool {
    stream::inspect(backend, location).is_ok_and(|found| found.has_writer == Some(false) && !found.has_ended)
}

/// Checks for orphaned counted arrays and arenas.
fn orphans() -> Check {
    let name = "orphans";
    let (mut arrays, mut arenas, mut bytes) = (0, 0, 0);
    for backend in places::existing(None).unwrap_or_default() {
        for entry in backend.list().unwrap_or_default() {
            match Found::at(&backend, &entry) {
                Found::Counted(counted) if counted.is_orphaned() => arrays += 1,
                Found::Arena(arena) if arena.is_orphaned() => arenas += 1,
                _ => continue,
            }
            bytes += entry.allocated;
        }
    }
    if arrays + arenas == 0 {
        return Check::ok(name, "no counted array and no arena was left behind by killed processes");
    }
    let (arrays, arenas) = (units::count(arrays, "counted array"), units::count(arenas, "arena"));
    let found = format!("{arrays} and {arenas} left behind by killed processes, {} in total", units::size(bytes));
    Check::warning(name, found, "`ndshm gc` removes them; `ndshm ls` shows them")
}
