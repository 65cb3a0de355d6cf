//! What `--help` says below the arguments: exit codes, environment, and the fields of `--json`.
//!
//! The fields are a promise to programs: they may grow, but none is renamed or removed within a major version.

/// What ends every help text.
macro_rules! codes {
    () => {
        "`ndshm help environment` lists exit codes and environment variables."
    };
}

/// For `-h`, and for commands with nothing more to say.
pub(crate) const CODES: &str = codes!();

/// What `ndshm help environment` says.
pub(crate) const ENVIRONMENT: &str = "\
Exit codes:
  0    done
  1    failed; for `doctor`: something is wrong
  2    the command line, the bounding box or a setting makes no sense, or asks for what does not fit the array, the volume
       or its format: a scale that is not there, another size, an encoding that the format does not have
  3    nothing has this name; for `manager status` and `manager stop`: there is none
  130  interrupted (Ctrl-C, Ctrl-Break, SIGTERM, SIGHUP); a second signal ends the program where it stands
With --json a failure is a JSON document too, unless the command line cannot be read: error, because (a list of causes),
advice (or null). So is an interruption, also by a second signal.

Environment:
  EMULATE_SHM         1, true or yes: use files in the emulated directory instead of /dev/shm; 0, false or no: never
  NDSHM_EMULATED_DIR  the emulated directory (default: ndarray-shm-<user id> in the directory for temporary files)
  NDSHM_EMULATED_LIMIT
                      how many bytes the files of that directory may take together, such as 10G (default: no limit)
  NDSHM_MANAGER       the program that arrays start as their manager (default: ndshm beside the program or in PATH); off,
                      no, false or 0: none
  NDSHM_MANAGER_SOCKET
                      where the manager listens (default: ndshm-manager.sock in XDG_RUNTIME_DIR, or in
                      ndshm-manager-<user id> in the directory for temporary files)
  NO_COLOR            not empty: no colours. Otherwise errors and `doctor` have some where they go to a terminal
";

/// How volumes are named.
macro_rules! sources {
    () => {
        "\
Volumes are paths or URLs: volume.zarr, precomputed://file:///data/em, zarr://s3://bucket/key, n5://em.n5/raw,
https://host/path. The format in front is needed only where it is not clear; N5 is only read. http, https, s3, gs and az
need a program that was built with the features `remote`, `gcs` or `azure`."
    };
}

/// What several machines do together.
macro_rules! parts {
    () => {
        "\
Several machines: each does one part (--shard 0/4 .. 3/4; `ndshm plan` shows them), in any order, and again after a failure.
--shard auto reads SLURM_ARRAY_TASK_ID, _MIN, _MAX, _COUNT and _STEP, or JOB_COMPLETION_INDEX with --shards N. With --markers
a part is marked after its data; one that is marked is not done again. A part for which nothing is left is done at once."
    };
}

/// Fields of parts for which there was nothing to do.
macro_rules! idle {
    () => {
        "\
Of a part with nothing to do: shard, bbox (or null), state (\"already done\" or \"nothing\") and path (or null)."
    };
}

pub(crate) const COMPLETIONS: &str = concat!(
    "\
Where shells look for it:
  bash   ndshm completions bash > ~/.local/share/bash-completion/completions/ndshm
  zsh    ndshm completions zsh > DIRECTORY/_ndshm, for a directory in $fpath
  fish   ndshm completions fish > ~/.config/fish/completions/ndshm.fish

",
    codes!()
);

pub(crate) const MAN: &str = concat!(
    "\
The page is in roff, as man(1) reads it:
  ndshm man > ~/.local/share/man/man1/ndshm.1
  ndshm man download > ~/.local/share/man/man1/ndshm-download.1

",
    codes!()
);

pub(crate) const DOWNLOAD: &str = concat!(
    "\
The array has its name only when every chunk is painted. A run that was killed leaves what it painted under a reserved
name (`ndshm ls` shows it); the same command continues it, `ndshm unlink --partial NAME` removes it. Ctrl-C removes it
too, unless --keep-partial is given; a second Ctrl-C does not wait for a server that says nothing, and removes nothing. With
--file the same holds for the files in that directory.

Several users can paint one array: each says --share group:GID, with a group that all are in (`id -g` prints yours); the
files get that group and the mode 0660. --share users:UID,.. takes files that those users began, and is for root, and for
directories with access control lists. Those users can read and change what is painted, and end this program by shortening
the files. In a directory with the sticky bit, such as /dev/shm, only the user who began the array can finish it: the
others wait for that.

",
    sources!(),
    "

",
    parts!(),
    " Each
part becomes an array of its own; on one machine each needs another name. A mark counts only if the very array is there too,
so a part whose machine was restarted is painted again; with --replace also where another array has the name.

Progress goes to the standard error, the result to the standard output. Fields of --json:
  location, backend, path    where the array is
  dtype, shape, order        what it is: NumPy's name of the type (\"<u2\"), elements per axis, \"C\" or \"F\"
  bbox, shard                its region of the volume, and which part that is, or null
  bytes                      its size
  chunks, painted, resumed   chunks in all; painted by this run; painted before. Others at the same work painted the rest
  filled                     chunks among those painted by this run that are not stored; if all are missing, a warning says so
  seconds, bytes_per_second  how long this run took, and what was painted by that
  fetched                    bytes that were fetched, as they are stored; 0 where the volume is fetched while it is decoded
  spent                      where the time went, in seconds, summed over all workers: making (the array), claiming,
                             fetching, decoding, copying, waiting
  warnings                   what went wrong without stopping the work, such as the loss of a worker process
  python                     lines that open the array
",
    idle!(),
    "

",
    codes!()
);

pub(crate) const UPLOAD: &str = concat!(
    "\
The array is only read, while no process writes to it. It has the shape of --bbox and the volume's element type. Its order is
what it says itself; --order is for an array that does not say it (`ndshm describe` shows that). Objects are replaced in one
step each; after a failure the same command stores all of them again.

--create makes a volume, or goes on with one just like it: the same command may be given again, and by many machines. Chunks
of a Precomputed volume do not say beforehand whether they are packed by gzip: --create --encoding gzip (of labels:
compressed_segmentation_gzip) says so each time, and without it new chunks are as those that are there, or plain in a directory
that has none. In directories only CloudVolume and this program find packed chunks.

Programs that downsample average a Precomputed volume of --type image; of labels that would make other labels, so that a volume
of them is of --type segmentation. Elements of uint32 and uint64 may be either, and the type must be said.

Axes are stored in the order of --shape. A Zarr array of z, y, x in C order is, byte by byte, an array of x, y, z in F order:
for a Precomputed volume say --order f --ignore-description, and --shape, --chunk and --resolution from x to z.

",
    sources!(),
    "

",
    parts!(),
    "

Fields of --json:
  source, destination        what was written where
  bbox, shard                the region that was written, and which part that is, or null
  dtype, order               NumPy's name of the type (\"<u2\"); memory order of the array, \"C\" or \"F\"
  type                       \"image\" or \"segmentation\", or null where the volume does not say it
  stored, background         objects that were stored; that hold nothing but background and were left out
  bytes, stored_bytes        bytes of the array that were written, and as what they were stored
  seconds, bytes_per_second  how long it took, and bytes of the array by that
  warnings                   what went wrong without stopping the work
",
    idle!(),
    "

",
    codes!()
);

pub(crate) const PLAN: &str = concat!(
    "\
The same question has the same answer on every machine: `download` and `upload` with --shard i/N and the same region do
the parts that are shown. No stored object is in two parts. Uploads divide the cutout.

",
    sources!(),
    "

Fields of --json: volume (and in which state), bbox, dtype, shards, and parts, each with:
  shard, index     what --shard takes, and its number
  bbox, shape      its region; null if there are more parts than stored objects and nothing is left for it
  chunks, objects  chunks, and objects that are stored as one: chunks, or shards of many
  bytes            size of its elements

",
    codes!()
);

/// The fields that `ls` and `info` share.
macro_rules! item_fields {
    () => {
        "  \
  name, backend, path        the name, where it is (\"shm\", \"emulated\"), and the file
  kind                       \"array\", \"counted\" (an array that counts its users), \"arena\", \"counters\", \"partial\" (a
                             renderbuffer that is not finished), \"ledger\", \"draft\" or \"lock\" (what uploads into a
                             volume lock)
  size, allocated            bytes, and for how many of them room is taken
  attached                   whether a process has it mapped and says so by a lease, which NumPy alone does not; null if
                             this user may not ask
  age_seconds                since it was made, or changed by other means than a mapping
  owner, owner_name, mode    number and name of the owner, permission bits in octal (\"0600\"); null where unknown
  chunks_done, chunks_total  how far a renderbuffer is; null for everything else
  counted                    what a counted array says about itself, see below; null for everything else, and if it
                             cannot be read
  counted_error              why it cannot, or why it is unknown whether it is one; or null
  description                what a plain array says about itself: dtype, shape, order, notes (an object of texts); null
                             for everything else, and if it says nothing that could be true
  arena                      of an arena or counters: capacity, queues, queue_capacity, members, most_members, kept,
                             orphaned, creator; null for everything else

Fields of counted:
  dtype, shape, order        what it is: NumPy's name of the type (\"<u2\"), elements per axis, \"C\" or \"F\"
  strategy                   \"file_system\": what has a name is shared by name
  bytes                      its size, without the page that counts
  refcount                   how many handles are counted, those of killed processes included
  in_flight                  how many handles are in flight
  protected_seconds          how much longer these keep the array by themselves
  kept                       whether the name outlives all handles
  frozen                     whether no process can write to it any more
  orphaned                   whether no process uses it and none will: `ndshm gc` removes it
  creator, created           number of the process that made it, and when, in seconds since 1970"
    };
}

pub(crate) const LS: &str = concat!(
    "\
Patterns stand between quotes, or the shell looks for files: ndshm ls 'em-*'. What matches none has the exit code 3.

USERS of a counted array: \"2\" handles; \"2+1 in flight\", with one on its way; \"kept\", if its name stays without any;
\"orphaned\", if no process uses it and none will. Of an arena: its members. Of everything else: whether a process says that
it has it.

Fields of each item of --json:
",
    item_fields!(),
    "\n\n",
    codes!()
);

pub(crate) const INFO: &str = concat!(
    "\
What has a / or a :// is a volume: ./volume is one in this directory, and volume a name in shared memory.

The file of a plain array is nothing but its elements. What it says about itself stands in an extended attribute, which any
program that may write to it can change; many copies lack it. A counted array says what it is and how many use it.

Fields of --json: name, backend, array and partial. `array` is what has the name, `partial` the renderbuffer that is to
have it; one of them may be null. Both have:
  holders                    the processes that have it, locks or not (Linux; elsewhere null): pid, program, mapped, and
                             open (whether it has a descriptor)
  holders_hidden             how many processes this user may not look at; those of other containers are not counted
",
    item_fields!(),
    "
\n`array` also has:
  sparse                     whether room is missing for some of its bytes
\n`partial` also has:
  ledger                     dtype, order, shape, chunk_shape, chunk_offset (elements of the first chunk that lie
                             before the array), chunks_done, chunks_total, fingerprint (what is painted); or null
  ledger_error               why the ledger cannot be read, or null

Of a volume: volume, type (\"image\", \"segmentation\", or null where it does not say it), and scales, each with mip (what --mip
takes), key, dtype, axes (their names, or none), origin, shape, chunk_shape, stored_shape (of what is stored as one object),
resolution and unit (of an element; or none), encoding, bytes.

",
    codes!()
);

/// How arrays are described that do not describe themselves.
macro_rules! layout {
    () => {
        "\
An array says itself what it is; --dtype, --shape and --order must only be given for one that does not: one that another
program made, a copy, or one on a file system without extended attributes. What they say must agree with what the array
says, unless --ignore-description is given; `ndshm describe` corrects what it says."
    };
}

pub(crate) const DESCRIBE: &str = concat!(
    "\
Without options it shows what a plain array says about itself: type, shape, order, and notes such as where it was downloaded
from. --dtype, --shape, --order and --note write that down, for an array that another program made or changed; what is not
given stays as it is. The elements are not touched. It is kept in the extended attribute user.ndshm: on tmpfs since Linux
6.6, on ext4, xfs and many more; not on Windows. `cp --preserve=xattr`, `tar --xattrs` and `rsync -X` take it along.

Fields of --json: dtype, shape, order and notes (an object of texts); or null if the array does not describe itself.

",
    codes!()
);

pub(crate) const VIEW: &str = concat!(
    "\
Two axes make the picture, the others are cut at one index: by --slice, else in the middle (channels: the first). Axes
are called by number, or by letter: x is the one that is contiguous in memory (the last one in C order, the first one in F
order), then y, z and c; --axes names them otherwise, as in --axes zyx. x goes to the right, y down.

",
    layout!(),
    " The array is
only read, while no process writes to it; of a renderbuffer that is not finished, chunks that are missing are 0.

Fields of --json:
  location, dtype, shape  the array
  slice                   where the other axes are cut: \"z=10\"
  width, height           pixels of the picture
  right, down, every      the axes that go to the right and down (null if there is only one), of which every Nth
                          element is shown
  range                   the values that are black and white; null for labels
  partial                 whether the array is a renderbuffer that is not finished
  file                    the PNG file

",
    codes!()
);

pub(crate) const EXPORT: &str = concat!(
    "\
",
    layout!(),
    " The array is
only read, while no process writes to it; the file has its name when all of it is written, and its order is the array's.

Fields of --json:
  location            the array
  file                the file
  dtype, shape, order what it is: NumPy's name of the type (\"<u2\"), elements per axis, \"C\" or \"F\"
  bytes               size of the elements
  python              lines that read the file

",
    codes!()
);

pub(crate) const IMPORT: &str = concat!(
    "\
The array has its name when all of the file is read, and the order of the file. Room for all of it is taken first. Elements
with the other byte order are turned round. Python objects, texts and records are refused.

Fields of --json:
  file                    the file
  location, backend, path where the array is
  dtype, shape, order     what it is: NumPy's name of the type (\"<u2\"), elements per axis, \"C\" or \"F\"
  bytes                   its size
  python                  lines that open the array

",
    codes!()
);

pub(crate) const UNLINK: &str = concat!(
    "\
Fields of each item of --json:
  name, backend  the name and where it was (null if nowhere)
  unlinked       whether it was there and is gone
  attached       whether a process still had it mapped, and has it still; null if that is unknown
  in_flight      how many handles of a counted array were on their way, and lead nowhere now; null for everything else
  error          why it was not removed, or null

",
    codes!()
);

pub(crate) const GC: &str = concat!(
    "\
Removes counted arrays, arenas and counters that no process is attached to, if they are not kept and no handle is on its way,
drafts older than a minute of creators that are dead, halves of renderbuffers that cannot be resumed because a killed process left them
without ledger or without payload, and locks that killed uploads have left. It is safe at any time: what is in use is never
touched, nor are plain arrays, renderbuffers that can be resumed, and other programs' files. Programs that take no lock, such as
NumPy alone, do not count; they keep the bytes even so. Nothing to do is a success. Other users' files that this user may
not look at or remove are not failures.

Fields of --json:
  dry_run            whether nothing was really removed
  removed            name, backend, path, kind (\"counted\", \"arena\", \"counters\", \"partial\", \"ledger\", \"draft\" or
                     \"lock\") and bytes of what was removed, or would be
  bytes              the sum
  in_use             how many counted arrays and arenas a process is attached to
  kept               how many are kept although none is
  in_flight          how many are protected only by handles on their way
  protected_seconds  how much longer the first of these is protected, or null
  young              how many are orphaned, but too young for --older-than
  skipped, failed    name, backend, path, owner (a number, or null) and error of what could not be looked at or removed:
                     other users' files, and all others

",
    codes!()
);

pub(crate) const DOCTOR: &str = concat!(
    "\
Fields of --json: healthy (false if there is a problem; warnings do not count) and checks, each with:
  name    what was looked at: backend, shm-room, shm-locks, shm-drafts, shm-descriptions, emulated-room, emulated-locks,
          emulated-drafts, emulated-descriptions, open-files, mappings, log-out, manager, leftovers, orphans
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
dies, however it ends, the manager removes the arrays there that no process holds any more. Nothing depends on it: the same is
done by the next process that looks, only later.

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
