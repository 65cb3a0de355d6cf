//! What `--help` says below the arguments: exit codes, environment, and the fields of `--json`.
//!
//! The fields are a promise to programs: they may grow, but none is renamed or removed within a major version.

/// What ends every help text.
macro_rules! codes {
    () => {
        "\
Exit codes:
  0    done
  1    failed; for `doctor`: something is wrong
  2    the command line, the bounding box or a setting makes no sense
  3    nothing has this name; for `manager status` and `manager stop`: there is none
  130  interrupted (Ctrl-C, Ctrl-Break, SIGTERM, SIGHUP)

Environment:
  EMULATE_SHM         1, true or yes: use files in the emulated directory instead of /dev/shm; 0, false or no: never
  NDSHM_EMULATED_DIR  the emulated directory (default: ndarray-shm-<user id> in the directory for temporary files)
  NDSHM_MANAGER       the program that arrays start as their manager (default: ndshm beside the program or in PATH); off,
                      no, false or 0: none
  NDSHM_MANAGER_SOCKET
                      where the manager listens (default: ndshm-manager.sock in XDG_RUNTIME_DIR, or in
                      ndshm-manager-<user id> in the directory for temporary files)"
    };
}

/// For `-h`, and for commands with nothing more to say.
pub(crate) const CODES: &str = codes!();

pub(crate) const DOWNLOAD: &str = concat!(
    "\
The array has its name only when every chunk is painted. A run that was killed leaves what it painted under a reserved
name (`ndshm ls` shows it); the same command continues it, `ndshm unlink --partial NAME` removes it. Ctrl-C removes it
too, unless --keep-partial is given.

Progress goes to the standard error, the result to the standard output. Fields of --json:
  location, backend, path    where the array is
  dtype, shape, order        what it is: NumPy's name of the type (\"<u2\"), elements per axis, \"C\" or \"F\"
  bytes                      its size
  chunks, painted, resumed   chunks in all; painted since this run began, by it or by others at the same work; painted
                             before
  seconds, bytes_per_second  how long this run took, and what was painted by that
  warnings                   what went wrong without stopping the work, such as the loss of a worker process
  python                     lines that open the array

",
    codes!()
);

/// The fields that `ls` and `info` share.
macro_rules! item_fields {
    () => {
        "  \
  name, backend, path        the name, where it is (\"shm\", \"emulated\"), and the file
  kind                       \"array\", \"partial\" (a renderbuffer that is not finished), \"ledger\" or \"draft\"
  size, allocated            bytes, and for how many of them room is taken
  attached                   whether a process has it mapped and says so by a lease, which NumPy alone does not; null if
                             this user may not ask
  age_seconds                since it was made, or changed by other means than a mapping
  owner, owner_name, mode    number and name of the owner, permission bits in octal (\"0600\"); null where unknown
  chunks_done, chunks_total  how far a renderbuffer is; null for everything else"
    };
}

pub(crate) const LS: &str = concat!("Fields of each item of --json:\n", item_fields!(), "\n\n", codes!());

pub(crate) const INFO: &str = concat!(
    "\
A finished array is nothing but the bytes of its elements: its type and shape are known only to those who use it.

Fields of --json: name, backend, array and partial. `array` is what has the name, `partial` the renderbuffer that is to
have it; one of them may be null. Both have:
",
    item_fields!(),
    "
\n`array` also has:
  sparse                     whether room is missing for some of its bytes
\n`partial` also has:
  ledger                     dtype, order, shape, chunk_shape, chunk_offset (elements of the first chunk that lie
                             before the array), chunks_done, chunks_total, fingerprint (what is painted); or null
  ledger_error               why the ledger cannot be read, or null

",
    codes!()
);

pub(crate) const UNLINK: &str = concat!(
    "\
Fields of each item of --json:
  name, backend  the name and where it was (null if nowhere)
  unlinked       whether it was there and is gone
  attached       whether a process still had it mapped; null if nobody can say
  error          why it was not removed, or null

",
    codes!()
);

pub(crate) const DOCTOR: &str = concat!(
    "\
Fields of --json: healthy (false if there is a problem; warnings do not count) and checks, each with:
  name    what was looked at: backend, shm-room, shm-locks, shm-drafts, emulated-room, emulated-locks,
          emulated-drafts, open-files, mappings, log-out, manager, leftovers
  status  \"ok\", \"warning\" or \"problem\"
  found   what was found
  advice  what to do, or null

",
    codes!()
);

pub(crate) const DEMO: &str = concat!(
    "\
Fields of --json: cleaned (whether the array is gone again) and downloads, one for each volume, each with the fields of
`download --json` and volume (its name), format, chunk_shape, verified (always true: anything else ends the demo).

",
    codes!()
);

pub(crate) const MANAGER: &str = concat!(
    "\
There is one manager for each user. Programs that use counted arrays tell it which directories they use; when one of them
dies, however it ends, the manager removes the arrays there that nobody holds any more. Nothing depends on it: the same is
done by whoever looks next, only later.

It ends in good order on Ctrl-C, SIGTERM and SIGHUP. If there is one already, `ndshm manager` says so and ends with 0.

Fields of `manager status --json`:
  running, socket        whether there is one, and where it listens; the others only if there is
  pid, version           of its process and program
  uptime_seconds         how long it has been running
  clients, directories   processes whose death it waits for, and directories that it looks through
  sweeps, reclaimed      how often it looked through one of them, and how many arrays it removed

",
    codes!()
);
