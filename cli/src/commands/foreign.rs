//! Files of other programs: `ndshm ls --foreign`, `ndshm gc --foreign` and `ndshm gc --entrypoint`.
//!
//! The library decides what is removed. The holders are searched only for the report; they may have changed by then.

use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, SystemTime};

use glob::Pattern;
use ndarray_shm::Directory;
use ndarray_shm::foreign::{self, Family, Finding, ForeignFile, Sweep};
use serde::{Serialize, Serializer};

use crate::args::words::BackendChoice;
use crate::args::{GcArgs, ListArgs};
use crate::arrays::places;
use crate::exit::{Exit, Failure};
use crate::machine::holders::Holders;
use crate::machine::host;
use crate::show::report::{self, Column, Table};
use crate::show::units;

/// A file of another program, as `--json` prints it.
#[derive(Debug, Serialize)]
struct ForeignItem {
    name: String,
    backend: String,
    path: String,
    family: &'static str,
    /// Whether it is a joblib folder.
    folder: bool,
    size: u64,
    /// Bytes of memory that it occupies.
    bytes: u64,
    age_seconds: u64,
    owner: u32,
    /// Whether it is proven that no process uses it.
    proven: bool,
    /// One of the names of [`finding_name`].
    #[serde(serialize_with = "write_finding")]
    finding: Finding,
    #[serde(flatten)]
    holders: Holders,
}

/// The result of a run, as `gc --foreign --json` prints it.
#[derive(Debug, Default, Serialize)]
struct SweepReport {
    dry_run: bool,
    /// Whether nothing was chosen, so that the files are only listed, as kept.
    listed: bool,
    removed: Vec<ForeignItem>,
    /// Bytes of all removed files.
    bytes: u64,
    kept: Vec<ForeignItem>,
    failed: Vec<FailedItem>,
    /// Chosen names of no known family that are left alone, because this kernel cannot tell them from plain arrays of
    /// this library.
    #[serde(skip)]
    untold: usize,
    /// Names that a pattern has, but not one that begins as they do.
    #[serde(skip)]
    on_purpose: usize,
}

#[derive(Debug, Serialize)]
struct FailedItem {
    #[serde(flatten)]
    file: ForeignItem,
    error: String,
}

/// Runs `ndshm ls --foreign`.
pub(crate) fn list(args: &ListArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let items = find(args.backend, |file| is_match(&args.patterns, &file.name))?;
    if items.is_empty() && !args.patterns.is_empty() {
        let patterns: Vec<String> =
            args.patterns.iter().map(|pattern| format!("`{}`", units::printable(pattern.as_str()))).collect();
        return Err(Failure::new(Exit::NotFound, format!("nothing matches {}", patterns.join(" or "))));
    }
    if args.output.json {
        report::json(out, &items)?;
    } else {
        write_table(&items, out)?;
    }
    Ok(Exit::Done)
}

/// Runs `ndshm gc --foreign` and `ndshm gc --entrypoint`.
pub(crate) fn remove(args: &GcArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let chosen = args.entrypoint || !args.patterns.is_empty() || !args.family.is_empty();
    let mut swept = SweepReport { dry_run: args.dry_run, listed: !chosen, ..SweepReport::default() };
    if chosen {
        for directory in directories(args.backend)? {
            swept.sweep(&directory, args)?;
        }
        swept.bytes = swept.removed.iter().map(|file| file.bytes).sum();
    } else {
        swept.kept = find(args.backend, |_| true)?;
    }
    let unproven = [Finding::NotPermitted, Finding::UnknownCreator, Finding::Unsupported];
    // A container must start even so.
    let asked_in_vain = chosen && !args.entrypoint && swept.kept.iter().any(|file| unproven.contains(&file.finding));
    if args.output.json {
        report::json(out, &swept)?;
    } else {
        swept.write(args, out)?;
    }
    for FailedItem { file, error } in &swept.failed {
        let failure =
            Failure::new(Exit::Failed, error).while_doing(format!("not removed: {}", units::printable(&file.path)));
        failure.print(&mut io::stderr());
    }
    let asked_in_vain = asked_in_vain || swept.untold > 0;
    Ok(if asked_in_vain || !swept.failed.is_empty() { Exit::Failed } else { Exit::Done })
}

impl SweepReport {
    /// Removes the chosen files of one directory.
    fn sweep(&mut self, directory: &Directory, args: &GcArgs) -> Result<(), Failure> {
        let mut sweep = Sweep::new().dry_run(args.dry_run).ours(args.ours);
        if let Some(age) = args.older_than {
            sweep = sweep.older_than(age);
        }
        if let Some(user) = args.user {
            if host::user() != Some(0) && host::user() != Some(user) {
                return Err(Failure::new(Exit::Usage, format!("only root can remove files of user {user}"))
                    .advice("leave out --user, or run the command as that user or as root"));
            }
            sweep = sweep.user(user);
        }
        let swept = if args.entrypoint {
            if !args.shared_mount {
                refuse_machine(directory)?;
            }
            let sweep = sweep.older_than(Duration::ZERO).before(foreign::start_of_container()?);
            // Other names may be what an init container has put there.
            sweep.run(directory, |_, family| !family.lives_unheld && !is_other(family))?
        } else {
            // Where plain arrays of this library look like any other file, they are not touched.
            let can_tell_ours = foreign::can_tell_ours(directory)?;
            let (mut untold, mut on_purpose) = (0, 0);
            let swept = sweep.run(directory, |name, family| {
                let is_meant = is_chosen(args, name, family);
                let may_be_ours = is_other(family) && !can_tell_ours;
                untold += usize::from(is_meant && may_be_ours);
                on_purpose +=
                    usize::from(!is_meant && family.lives_unheld && args.patterns.iter().any(|it| it.matches(name)));
                is_meant && !may_be_ours
            })?;
            self.untold += untold;
            self.on_purpose += on_purpose;
            swept
        };
        let (failed, errors): (Vec<ForeignFile>, Vec<_>) = swept.failed.into_iter().unzip();
        self.removed.extend(items(directory, swept.removed));
        self.kept.extend(items(directory, swept.kept).into_iter().filter(|file| file.finding != Finding::Ours));
        self.failed.extend(items(directory, failed).into_iter().zip(errors).map(|(file, error)| {
            let error = Failure::from(error).to_string();
            FailedItem { file: ForeignItem { proven: false, ..file }, error }
        }));
        Ok(())
    }

    /// Writes the report as text.
    fn write(&self, args: &GcArgs, out: &mut dyn Write) -> Result<(), Failure> {
        if self.listed {
            write_table(&self.kept, out)?;
            if !self.kept.is_empty() {
                writeln!(
                    out,
                    "\nnothing was removed: choose names by patterns or by --family, such as `ndshm gc --foreign --dry-run --family {}`",
                    self.kept.iter().map(|file| file.family).find(|family| may_choose(family)).unwrap_or("python")
                )?;
            }
            return Ok(());
        }
        let done = if self.dry_run { "would remove" } else { "removed" };
        for ForeignItem { name, family, bytes, .. } in &self.removed {
            writeln!(out, "{done} {} ({family}, {})", units::printable(name), units::size(*bytes))?;
        }
        // These can be many, and there is nothing to do about them.
        let young = match args.older_than {
            _ if args.entrypoint => "changed since process 1 was started".to_owned(),
            None => "changed within 10 minutes (--older-than)".to_owned(),
            Some(age) => format!("changed within {} (--older-than)", units::left(age)),
        };
        let counted = [(Finding::Young, young.as_str()), (Finding::OtherUser, "of other users")];
        for file in self.kept.iter().filter(|file| counted.iter().all(|(finding, _)| file.finding != *finding)) {
            let size = units::size(file.bytes);
            writeln!(out, "kept {} ({}, {size}): {}", units::printable(&file.name), file.family, file.describe())?;
        }
        for (finding, why) in counted {
            let count = self.kept.iter().filter(|file| file.finding == finding).count();
            if count > 0 {
                writeln!(out, "kept {}, {why}", units::count(count, "name"))?;
            }
        }
        if self.on_purpose > 0 {
            let names = units::count(self.on_purpose, "name");
            writeln!(
                out,
                "kept {names} that may live without a process: a pattern that begins like them removes them (sem.*)"
            )?;
        }
        if self.untold > 0 {
            let names = units::count(self.untold, "name");
            writeln!(out, "kept {names} of no known family: before Linux 6.6 they may be arrays of this library")?;
        }
        match self.removed.len() {
            0 => writeln!(out, "nothing to remove")?,
            count => writeln!(out, "{done} {}, {}", units::count(count, "name"), units::size(self.bytes))?,
        }
        Ok(())
    }
}

impl ForeignItem {
    /// Returns what was found, in words.
    fn describe(&self) -> String {
        let owner = self.owner;
        match self.finding {
            Finding::Unused => "unused".to_owned(),
            Finding::InUse if self.folder => "files are left in it".to_owned(),
            Finding::CreatorAlive => "its process is alive".to_owned(),
            Finding::InUse => format!("in use: {}", self.holders.describe_known()),
            Finding::NotPermitted => {
                format!(
                    "not proven: owner {owner} (only this user, or root with CAP_LEASE of the machine, can prove it)"
                )
            }
            Finding::UnknownCreator => "not proven: its process may be in another pid namespace".to_owned(),
            Finding::Unsupported => "not proven: the file system or the kernel has no leases that prove it".to_owned(),
            Finding::Changed => "it changed, or a process opened it, or it has a second name".to_owned(),
            Finding::Young => "too young".to_owned(),
            Finding::OtherUser => format!("owner {owner}"),
            other => finding_name(other).to_owned(),
        }
    }
}

/// Returns the name of a finding for JSON.
fn finding_name(finding: Finding) -> &'static str {
    match finding {
        Finding::Unused => "unused",
        Finding::InUse => "in_use",
        Finding::CreatorAlive => "creator_alive",
        Finding::NotPermitted => "not_permitted",
        Finding::UnknownCreator => "unknown_creator",
        Finding::Unsupported => "unsupported",
        Finding::Ours => "ours",
        Finding::OtherUser => "other_user",
        Finding::Young => "young",
        _ => "changed",
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it")]
fn write_finding<S: Serializer>(finding: &Finding, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(finding_name(*finding))
}

/// Refuses a directory that processes outside this container may use.
fn refuse_machine(directory: &Directory) -> Result<(), Failure> {
    let Some(reason) = foreign::not_the_containers(directory)? else { return Ok(()) };
    let what = format!("{} may be used outside this container: {reason}", directory.path().display());
    Err(Failure::new(Exit::Failed, what).advice(
        "a process outside may be about to open a file again. If none is, give --shared-mount; or choose names by \
         `ndshm gc --foreign`",
    ))
}

/// Returns the files of other programs that `is_meant` accepts.
fn find(backend: Option<BackendChoice>, is_meant: impl Fn(&ForeignFile) -> bool) -> Result<Vec<ForeignItem>, Failure> {
    let mut found = Vec::new();
    for directory in directories(backend)? {
        let files = foreign::list(&directory)?.into_iter();
        found.extend(items(&directory, files.filter(|file| file.finding != Finding::Ours && is_meant(file)).collect()));
    }
    Ok(found)
}

/// Returns the directories to search: shared memory, where other programs have their files, if no other is chosen.
fn directories(backend: Option<BackendChoice>) -> Result<Vec<Directory>, Failure> {
    places::existing(Some(backend.unwrap_or(BackendChoice::Shm)))
}

fn is_match(patterns: &[Pattern], name: &str) -> bool {
    patterns.is_empty() || patterns.iter().any(|pattern| pattern.matches(name))
}

/// Whether a name is to be removed. Names that live without a holder on purpose are, if a pattern begins as they do.
fn is_chosen(args: &GcArgs, name: &str, family: &Family) -> bool {
    let begins = |pattern: &Pattern| {
        let starts = family.patterns.iter().map(|own| own.split(['*', '?', '#']).next().unwrap_or_default());
        starts.into_iter().any(|start| !start.is_empty() && pattern.as_str().starts_with(start))
    };
    let mut meant = args.patterns.iter().filter(|pattern| pattern.matches(name));
    let by_pattern =
        if family.lives_unheld { meant.any(begins) } else { args.patterns.is_empty() || meant.next().is_some() };
    by_pattern && (args.family.is_empty() || args.family.contains(&family))
}

fn is_other(family: &Family) -> bool {
    foreign::families().last() == Some(family)
}

fn may_choose(name: &str) -> bool {
    foreign::families().iter().any(|family| family.name == name && !family.lives_unheld && !is_other(family))
}

/// Adds what only the report needs: the holders of files that are kept because of them.
fn items(directory: &Directory, files: Vec<ForeignFile>) -> Vec<ForeignItem> {
    let is_searched =
        |file: &&ForeignFile| matches!(file.finding, Finding::InUse | Finding::NotPermitted) && !file.is_folder;
    let searched: Vec<(&Path, _)> =
        files.iter().filter(is_searched).map(|file| (file.path.as_path(), file.id)).collect();
    let mut holders = Holders::of_each(&searched).into_iter();
    let holders: Vec<Holders> = files
        .iter()
        .map(|file| if is_searched(&file) { holders.next() } else { None })
        .map(Option::unwrap_or_default)
        .collect();
    let item = |(file, holders): (ForeignFile, Holders)| ForeignItem {
        backend: directory.name().to_owned(),
        path: file.path.display().to_string(),
        family: file.family.name,
        folder: file.is_folder,
        size: file.len,
        bytes: file.allocated,
        age_seconds: SystemTime::now().duration_since(file.changed).unwrap_or_default().as_secs(),
        owner: file.owner,
        proven: file.finding == Finding::Unused,
        finding: file.finding,
        name: file.name,
        holders,
    };
    files.into_iter().zip(holders).map(item).collect()
}

fn write_table(items: &[ForeignItem], out: &mut dyn Write) -> Result<(), Failure> {
    let mut table = Table::new(&[
        Column::Left("NAME"),
        Column::Left("FAMILY"),
        Column::Right("SIZE"),
        Column::Right("AGE"),
        Column::Left("OWNER"),
        Column::Left("USERS"),
    ]);
    for item in items {
        table.row([
            units::printable(&item.name),
            item.family.to_owned(),
            units::size(item.size),
            units::age(Duration::from_secs(item.age_seconds)),
            host::user_name(item.owner).unwrap_or_else(|| item.owner.to_string()),
            item.describe(),
        ]);
    }
    if table.is_empty() {
        writeln!(out, "no files of other programs")?;
    } else {
        table.write(out)?;
        if items.iter().any(|item| item.proven) {
            writeln!(
                out,
                "\nunused: no process on this machine has it open or mapped, the kernel says. A program may still open it by its name."
            )?;
        }
    }
    Ok(())
}
