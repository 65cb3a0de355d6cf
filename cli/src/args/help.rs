//! The text of `--help` below the arguments: exit codes, environment, and the fields of `--json`.
//!
//! The fields are an interface for programs: a minor version may add fields, but renames and removes none.

/// The last line of every help text.
macro_rules! codes {
    () => {
        "`ndshm help environment` lists exit codes and environment variables."
    };
}

/// For `-h`, and for commands without a longer text.
pub(crate) const CODES: &str = codes!();

/// The text of `ndshm help environment`.
pub(crate) const ENVIRONMENT: &str = "\
Exit codes:
  0    done
  1    failed; for `doctor`: there is a problem
  2    the command line, the bounding box or a setting is invalid, or does not fit the array, the volume or its format: a
       scale that does not exist, another size, an encoding that the format does not support
  3    nothing has this name; for `manager status` and `manager stop`: no manager is running
  130  interrupted (Ctrl-C, Ctrl-Break, SIGTERM, SIGHUP); a second signal ends the program at once, without cleaning up
With --json, failures and interruptions (also by a second signal) are JSON documents too: error, because (a list of
causes), advice (or null). The exception is a command line that cannot be parsed.

Environment:
  EMULATE_SHM         1, true or yes: use files in the emulated directory instead of /dev/shm; 0, false or no: never
  NDSHM_CHUNK_CACHE   the size of this user's cache of decoded chunks, such as 16G, through which volumes are read (default:
                      none)
  NDSHM_EMULATED_DIR  the emulated directory (default: ndarray-shm-<user id> in the directory for temporary files)
  NDSHM_EMULATED_LIMIT
                      most bytes that all files of that directory may take, such as 10G (default: no limit)
  NDSHM_MANAGER       the program that counted arrays start as their manager (default: ndshm beside the program or in
                      PATH); off, no, false or 0: start none
  NDSHM_MANAGER_SOCKET
                      where the manager listens (default: ndshm-manager.sock in XDG_RUNTIME_DIR, or in
                      ndshm-manager-<user id> in the directory for temporary files)
  NDSHM_PICKLE_GRACE  seconds for which a pickle of an array keeps it, in Python (default: 600)
  NDSHM_RETRY_SECONDS
                      how long a request to a server is retried (default: 120); 0: never. Without it, an unknown host and a
                      refused connection are retried for 3 seconds only while that server has never answered, except by
                      worker processes and with --shard
  NDSHM_SHARING_STRATEGY
                      how counted arrays of programs, also in Python, reach other processes: file_descriptor or
                      file_system (default: file_descriptor where the platform has it)
  AWS_*, GOOGLE_*, AZURE_*
                      credentials and settings of servers, as for the tools of these providers (docs/stores.md)
  HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY
                      proxies for requests to servers, and hosts that need none; also in lower case
  SLURM_ARRAY_TASK_*, JOB_COMPLETION_INDEX
                      which part this process is, for --shard auto
  XDG_RUNTIME_DIR, TMPDIR
                      directories for the manager's socket and for temporary files (Windows: TMP)
  PATH                where a program looks for ndshm, to start it as its manager
  COLUMNS             the width of help texts, where it is not the terminal's
  COLORTERM           truecolor or 24bit: `view` draws on a terminal with all colours
  NO_COLOR            not empty: no colours. Otherwise errors and `doctor` have colours on a terminal
";

/// Paths and URLs of volumes.
macro_rules! sources {
    () => {
        "\
Volumes are paths or URLs: volume.zarr, precomputed://file:///data/em, zarr://s3://bucket/key, n5://em.n5/raw,
https://host/path. Without a format prefix, the format of an existing volume is detected. N5 volumes cannot be written.
http, https, s3, gs and az need a program that was built with the features `remote`, `gcs` or `azure`."
    };
}

/// How several machines divide a transfer.
macro_rules! parts {
    () => {
        "\
Several machines: each processes one part (--shard 0/4 .. 3/4; `ndshm plan` shows them), in any order, and can repeat it
after a failure. --shard auto reads SLURM_ARRAY_TASK_ID, _MIN, _MAX, _COUNT and _STEP, or JOB_COMPLETION_INDEX with
--shards N. With --markers, a marker is written after the data of a part, and parts with a marker are skipped. A part that
contains no chunks is finished at once."
    };
}

/// JSON fields of parts that had nothing to do.
macro_rules! idle {
    () => {
        "\
A part with nothing to do has: shard, bbox (or null), state (\"already done\" or \"nothing\") and path (or null)."
    };
}

pub(crate) const COMPLETIONS: &str = concat!(
    "\
Where shells look for the script:
  bash   ndshm completions bash > ~/.local/share/bash-completion/completions/ndshm
  zsh    ndshm completions zsh > DIRECTORY/_ndshm, for a directory in $fpath
  fish   ndshm completions fish > ~/.config/fish/completions/ndshm.fish

",
    codes!()
);

pub(crate) const MAN: &str = concat!(
    "\
The page is in roff, the format of man(1):
  ndshm man > ~/.local/share/man/man1/ndshm.1
  ndshm man download > ~/.local/share/man/man1/ndshm-download.1

",
    codes!()
);

pub(crate) const DOWNLOAD: &str = concat!(
    "\
The array gets its name after every chunk is painted, that is, copied into it. A killed run leaves its chunks under a
reserved name (`ndshm ls` shows it); the same command resumes it, `ndshm unlink --partial NAME` removes it. Ctrl-C removes
it too, unless --keep-partial is given; a second Ctrl-C does not wait for a silent server, and removes nothing. With --file
the same holds for the files in that directory.

Several users can paint one array: each gives --share group:GID, with a group that contains all of them (`id -g` prints
yours); the files get that group and the mode 0660, and the user that began them must be in the group (`id USER`).
--share users:UID,.. accepts files that those users began; it is for root, for containers that do not know the users, and
for directories with access control lists. Those users can read and change the elements, and can crash this
program by truncating the files. In a directory with the sticky bit, such as /dev/shm, only the user that began the array
can finish it: the others wait for that.

",
    sources!(),
    "

",
    parts!(),
    " Each
part becomes a separate array; on one machine each needs its own name. A marker counts only while the array that it stands
for exists, so a part is painted again after its machine was restarted; with --replace, also if another array has the name.

Progress goes to standard error, the result to standard output. Fields of --json:
  location, backend, path    where the array is
  dtype, shape, order        NumPy's name of the type (\"<u2\"), elements per axis, \"C\" or \"F\"
  axes                       a word for each axis, its name or its number; empty if the volume names none
  bbox, shard                region of the volume; which part of a larger region it is, or null
  bytes                      size of the array
  chunks, painted, resumed   number of chunks; painted by this run; by earlier runs. Other processes painted the rest
  filled                     chunks of this run that are not stored; a warning is given if all are missing
  seconds, bytes_per_second  duration of this run, and bytes it painted per second
  fetched                    stored bytes that were fetched; 0 for volumes that are fetched while they are decoded
  spent                      seconds spent, summed over all workers: making (the array), claiming, fetching, decoding,
                             copying, waiting
  warnings                   problems that did not stop the download, such as the loss of a worker process
  python                     Python lines that open the array
",
    idle!(),
    "

",
    codes!()
);

pub(crate) const UPLOAD: &str = concat!(
    "\
The array is only read, and only while no process writes to it. It must have the shape of --bbox and the volume's element
type. Its memory order is in its description; --order is for an array without one (`ndshm describe` shows it). Each object is
replaced in one step; after a failure the same command stores all of them again.

An array that was downloaded from this volume and scale goes back to its region without --bbox, however the volume is named:
./em, file:///data/em and a symbolic link are one place. From another scale it needs --bbox. An array with the shape of the
whole volume is written to all of it.

--create takes from the array's description what no option says: where the array begins (a Zarr volume begins at 0), the
resolution, the names of the axes (zarr3), the chunks, their encoding, the fill value (Zarr), and --type. An encoding that
does not fit becomes raw, in Zarr zstd. So does jpeg, which would change the elements once more, unless --encoding jpeg is
given. What the format cannot keep is a warning. Without a description, a Precomputed volume gets a resolution of 1 nm, which
the output says.

--create creates a volume, or uses an existing one with the same properties, so the same command can be repeated, and run on
many machines. The metadata of a Precomputed volume does not tell whether its chunks are compressed by gzip: give --create
--encoding gzip (for labels: compressed_segmentation_gzip) each time. Without it, new chunks are stored like the existing ones,
or uncompressed in a directory without chunks. In directories only CloudVolume and this program find compressed chunks.

Downsampling programs average the elements of a Precomputed volume of --type image. The average of labels would be another
label, so a volume of labels needs --type segmentation. Elements of uint32 and uint64 can be either: give the type.

Axes are stored in the order of --shape. A Zarr array of z, y, x in C order has the same bytes as an array of x, y, z in F
order: for a Precomputed volume give --order f --ignore-description, --dtype, and --shape, --chunk and --resolution from x to z.

",
    sources!(),
    "

",
    parts!(),
    "

Fields of --json:
  source, destination        the array or file, and the volume
  bbox, shard                region that was written; which part of a larger region it is, or null
  dtype, order               NumPy's name of the type (\"<u2\"); memory order of the array, \"C\" or \"F\"
  type                       \"image\" or \"segmentation\", or null where the volume does not say it
  created                    with --create: format, origin, chunk_shape, encoding, axes, resolution, unit, is_resolution_assumed; or null
  stored, background         objects that were stored; objects of only background that were not stored
  bytes, stored_bytes        bytes of the array that were written, and their size as stored
  seconds, bytes_per_second  duration, and bytes of the array per second
  warnings                   problems that did not stop the upload, and what a new volume does not keep
",
    idle!(),
    "

",
    codes!()
);

pub(crate) const PLAN: &str = concat!(
    "\
The division is the same on every machine: `download` and `upload` with --shard i/N and the same region process the parts
shown here. No stored object is in two parts. Uploads divide the region of --cutout.

",
    sources!(),
    "

Fields of --json: volume (and its state), bbox, dtype, shards, and parts, each with:
  shard, index     value for --shard, and number of the part
  bbox, shape      region of the part; null for a part without chunks, if there are more parts than stored objects
  chunks, objects  chunks, and objects that are stored as one: chunks, or shards of many
  bytes            size of the elements

",
    codes!()
);

/// JSON fields of both `ls` and `info`.
macro_rules! item_fields {
    () => {
        "  \
  name, backend, path        name, backend (\"shm\", \"emulated\") and file
  kind                       \"array\", \"counted\" (an array that counts its users), \"arena\", \"counters\", \"partial\" (a
                             renderbuffer that is not finished), \"ledger\", \"stream\", \"keeper\" (of a stream),
                             \"cache\" (of chunks), \"draft\", \"lock\" (a file that uploads lock) or \"semaphore\" (of the C library)
  size, allocated            length in bytes, and bytes of memory or disk that are allocated
  attached                   whether a process is attached, that is, holds a lease (NumPy alone takes none); of a stream,
                             whether its writer lives; null if this user may not ask, or the kernel does not tell
  age_seconds                since it was created, or last changed other than through a mapping
  owner, owner_name, mode    number and name of the owner, permission bits in octal (\"0600\"); null where unknown
  chunks_done, chunks_total  progress of a renderbuffer; null for everything else
  counted                    facts of a counted array, see below; null for everything else, and if they cannot be read
  counted_error              why these facts cannot be read, or why it is unknown whether it is a counted array; or null
  description                description of a plain array: dtype, shape, order, notes (an object of texts); null for
                             everything else, and without a valid description
  arena                      facts of an arena or counters: capacity, queues, queue_capacity, members, most_members, kept,
                             orphaned, creator; null for everything else
  stream                     facts of a stream, see below; null for everything else, and if they cannot be read
  stream_error               why these facts cannot be read, or null
  cache                      facts of a cache of chunks, see below; null for everything else, and if they cannot be read
  cache_error                why these facts cannot be read, or null

Fields of counted:
  dtype, shape, order        NumPy's name of the type (\"<u2\"), elements per axis, \"C\" or \"F\"
  strategy                   \"file_system\": an array with a name is shared by name
  bytes                      size without the trailer
  refcount                   number of handles, including those of killed processes
  in_flight                  number of handles that were sent and not yet attached
  protected_seconds          how much longer handles in flight keep the array without other handles
  kept                       whether the name outlives all handles
  frozen                     whether no process can write to it any more
  orphaned                   whether no process uses it and none will: `ndshm gc` removes it
  creator, created           number of the process that created it, and when, in seconds since 1970

Fields of stream:
  dtype, shape, order        of a frame, as above
  slots, frames              number of slots, and of frames that are there
  copied                     whether readers copy frames instead of holding them
  head                       number of the newest frame, 0 before the first
  rate                       frames per second of those that are there, or null if they are fewer than two
  epoch                      number of writers so far
  writer                     \"alive\", \"ended\" (it has ended a stream that is kept), \"dead\", or \"unknown\" if the kernel
                             does not tell
  held, held_by              slots that readers hold or the writer is writing to, and numbers of the processes that hold
                             frames, as far as they are known
  cursors                    name, acknowledged (a frame's number), behind (head - acknowledged), policy (\"overwrite\",
                             \"wait-while-alive\" or \"wait\") and has_reader of each; null if this user may not look
  meta                       name, dtype and count of the values that each frame has beside its elements

Fields of cache:
  bytes, filled              bytes of chunks that fit, and bytes that hold some
  keep_seconds               how long it stays after its last use, or null: until it is unlinked
  unused_seconds             since a process last looked for a chunk
  hits, fills, waits         chunks that were found, that were decoded into it, and waits for a process that did so
  evictions, stale           chunks that made way for others, and that were out of date
  bypasses                   chunks that were not kept: too_long, held (readers held their places), no_space, late (another
                             process took too long), unversioned (it was not certain which version of the object they are)"
    };
}

/// The fields of a file of another program.
macro_rules! foreign_fields {
    () => {
        "\
Fields of each file of --foreign --json:
  name, backend, path        where it is; a file in a joblib folder is called folder/name
  family                     torch, python (SharedMemory, vLLM's rings), cloudvolume, vllm, sglang, deepspeed, triton, mosaicml,
                             ray, nccl, boost, joblib, semaphore or other
  folder                     whether it is a joblib folder
  size, bytes                length, and bytes of memory
  age_seconds, owner         since it was last changed; number of the user
  proven                     whether it is proven that no process uses it
  finding                    \"unused\", \"in_use\", \"creator_alive\" (the process that a joblib folder is named after),
                             \"unknown_creator\" (that may be in another pid namespace), \"not_permitted\",
                             \"unsupported\" (no tmpfs, or no leases); of gc also \"other_user\", \"young\" or \"changed\"
  holders, holders_hidden    as those of `info`; null if they were not searched"
    };
}

pub(crate) const LS: &str = concat!(
    "\
Quote patterns, or the shell expands them to file names: ndshm ls 'em-*'. If nothing matches, the exit code is 3.

USERS of a counted array: \"2\" for two handles; \"2+1 in flight\" for one more that was sent and not yet attached; \"kept\" if
the name stays without handles; \"orphaned\" if no process uses it and none will. Of an arena: its members. Of a stream:
\"writer\" if its writer lives, \"ended\" or \"dead writer\", and the cursors that a process reads with. Of everything else:
whether a process is attached.

Fields of each item of --json:
",
    item_fields!(),
    "

Fields of each item of --by --json: group (name or number of the user, or the kind), names, attached (names with a process, as
far as this user may ask), size and allocated (bytes).

--metrics writes gauges with the prefix ndshm_: names, attached_names, orphaned_names and allocated_bytes by backend and kind;
handles, handles_in_flight, free_bytes and total_bytes by backend. For the text file collector of Prometheus' node exporter, run
every minute: ndshm ls --metrics=/var/lib/node_exporter/ndshm.prom

With --foreign, the files of other programs are listed (Linux, /dev/shm), and USERS says whether it is proven that no
process uses them:
  unused      the kernel has just granted a write lease on the file, as it does only while no process has it open or mapped
  in use      a process has it open or mapped; named are those that this user may see
  not proven  the write lease needs the owner of the file, or root with CAP_LEASE of the machine, which root of a container lacks

",
    foreign_fields!(),
    "

",
    codes!()
);

pub(crate) const INFO: &str = concat!(
    "\
A text with / or :// is a volume. Any other is a name in shared memory, or, if nothing has this name, a volume in this directory;
./volume is the volume in any case. A stream is shown if no array has its name, or with --stream.

The file of a plain array holds only its elements. Its description is in an extended attribute, which any program that may
write to the file can change, and which many copies lack. A counted array stores its own description and number of users.

Fields of --json: name, backend, array, partial, stream and cache. `array` has the name, `partial` is the renderbuffer that will
get it, `stream` is shown instead of both, `cache` if there is nothing else; each may be null. Each has:
  holders                    processes that use the file, with a lock or without (Linux; elsewhere null): pid, program,
                             mapped, and open (whether it has a descriptor)
  holders_hidden             number of processes that this user may not inspect, without those of other containers
",
    item_fields!(),
    "
\n`array` also has:
  sparse                     whether fewer bytes of memory or disk are allocated than it has. If not, a few may be missing
                             all the same: on disks, attributes count as allocated
\n`partial` also has:
  ledger                     dtype, order, shape, axes (names or numbers, or none), chunk_shape, chunk_offset (elements
                             of the first chunk that lie before the array), chunks_done, chunks_total, fingerprint
                             (identity of what is painted); or null
  ledger_error               why the ledger cannot be read, or null

Of a volume: volume, type (\"image\", \"segmentation\", or null where it does not say it), and scales, each with mip (the value
for --mip), key, dtype, axes (names or numbers, or none), origin, shape, chunk_shape, stored_shape (of one stored object),
resolution and unit (of an element; or none), encoding, bytes.

",
    codes!()
);

/// The options for arrays without a description.
macro_rules! layout {
    () => {
        "\
An array has a description of its type, shape and order. --dtype, --shape and --order are needed only for an array without
one: made by another program, a copy, or on a file system without extended attributes. They must agree with the description,
unless --ignore-description is given; `ndshm describe` corrects a description."
    };
}

pub(crate) const DESCRIBE: &str = concat!(
    "\
Without options, shows the description of a plain array: type, shape, order, and notes such as where it was downloaded from.
--dtype, --shape, --order and --note write the description of an array that another program made or changed; other values
stay as they are. The elements are not touched. The description is in the extended attribute user.ndshm: on tmpfs since
Linux 6.6, on ext4, xfs and many more; not on Windows. `cp --preserve=xattr`, `tar --xattrs` and `rsync -X` copy it.

Fields of --json: dtype, shape, order and notes (an object of texts); or null if the array has no description.

",
    codes!()
);

pub(crate) const VIEW: &str = concat!(
    "\
The picture shows two axes. Every other axis is cut at one index: by --slice, else in the middle (channels: the first). An
index counts from 0 within the array; the line below the picture also says which coordinate of the volume that is.

A downloaded array has the names of its volume's axes, which `ndshm info` shows: \"z\" of the volume is \"z\" here. --axes gives
other names, a letter for each axis. An axis without a name has a number, from 0 on in the order of the shape: --slice 0=20.
x goes to the right, y down; without these names, the axis that is contiguous in memory goes to the right, the next one down.
An axis of length 1 is no side of the picture where another is left, nor is one of channels where two others are.

",
    layout!(),
    " The array is
only read, and only while no process writes to it. Missing chunks of an unfinished renderbuffer are shown as 0. A stream is
drawn with --live: a frame is held while its plane is copied, and its writer never waits.

Fields of --json:
  location, dtype, shape  the array
  axes                    a word for each axis, its name or its number
  slice                   where the other axes are cut: \"z=10\"
  slice_in_volume         the same in the volume's coordinates: \"z=110\"; or null if they are unknown
  width, height           pixels of the picture
  right, down, every      the axes that go to the right and down (null if there is only one); every Nth element of both
                          is shown
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
only read, and only while no process writes to it. The file gets its name after it is complete, and has the array's order.

Fields of --json:
  location            the array
  file                the file
  dtype, shape, order NumPy's name of the type (\"<u2\"), elements per axis, \"C\" or \"F\"
  axes                a word for each axis, its name or its number; empty if no axis has a name
  bytes               size of the elements
  python              Python lines that read the file

",
    codes!()
);

pub(crate) const IMPORT: &str = concat!(
    "\
The array gets its name after the whole file is read, and has the order of the file. Its memory is reserved first. Elements
with the other byte order are converted. Python objects, texts and records are refused.

Fields of --json:
  file                    the file
  location, backend, path where the array is
  dtype, shape, order     NumPy's name of the type (\"<u2\"), elements per axis, \"C\" or \"F\"
  bytes                   size of the array
  python                  Python lines that open the array

",
    codes!()
);

pub(crate) const RECORD: &str = concat!(
    "\
The Zarr group has the arrays frames, number, time (nanoseconds since 1970), uptime (nanoseconds since the machine was
started) and one for each named value, meta_NAME, which grow along their first axis. Frames are acknowledged when their chunk
is on the disk. After a kill or Ctrl-C, the same command goes on behind the last frame; with --policy wait, or with enough
slots for the pause, without a gap. The cursor is removed when the recording has all frames, or the stream ends.

Fields of --json:
  name     the stream
  place    the Zarr group
  frames   frames in it, those of earlier runs included
  last     number of the last one; 0 if there is none
  missing  first and last number of each gap between frames
  python   Python lines that open the frames

",
    codes!()
);

pub(crate) const REPLAY: &str = concat!(
    "\
The new stream has the frames, their named values and the order of elements. It gives them numbers from 1 on and the time of
the replay. The stream ends with the last frame. The writer waits for readers only when they hold all slots.

Fields of --json:
  place    the recording
  name     the stream
  frames   frames that were written
  seconds  how long it took

",
    codes!()
);

pub(crate) const UNLINK: &str = concat!(
    "\
An array, a renderbuffer and a stream may have the same name: --partial and --stream choose which of them is removed. The
writer of a stream that is removed goes on, but no process finds the stream any more. A cursor is removed only if no process
reads with it.

Fields of each item of --json:
  name, backend  the name and its backend (null if not found)
  unlinked       whether the name existed and was removed
  cursor         with --cursor: the cursor that was to be removed instead; or null
  attached       whether a process was attached, which keeps the memory until it detaches; of a stream, whether its writer
                 lives; null if that is unknown
  in_flight      number of handles in flight of a counted array, which cannot be attached now; null for everything else
  error          why it was not removed, or null

",
    codes!()
);

pub(crate) const GC: &str = concat!(
    "\
Removes:
  - counted arrays, arenas and counters that no process is attached to, unless they are kept or a handle is in flight
    (--in-flight: unless they are kept)
  - caches of chunks that no process has open and that were not used for an hour, or for as long as their program has chosen
    (--caches: at once)
  - drafts of dead creators, if older than a minute
  - renderbuffers that a killed process left without ledger or without payload, so that they cannot be resumed
  - frames without their keeper and keepers without their frames, which a killed creation or removal of a stream left
  - locks that killed uploads left behind, and what killed downloads without a name had painted
It is safe at any time: it never touches what is in use, plain arrays, renderbuffers and streams that can be resumed, or
other programs' files. A program that takes no lock, such as NumPy alone, does not count as attached; it keeps the bytes even
so. Nothing to do is a success. Files of other users that this user may not inspect or remove are not failures.

Fields of --json:
  dry_run            whether this was a dry run, which removes nothing
  removed            name, backend, path, kind (\"counted\", \"arena\", \"counters\", \"partial\", \"ledger\", \"frames\",
                     \"keeper\", \"cache\", \"draft\", \"lock\" or \"download\") and bytes of each file that was removed, or would be
  bytes              sum of these bytes
  in_use             number of counted arrays, arenas and caches with attached processes
  kept               number of those without attached processes that are kept
  in_flight          number of those that only handles in flight protect
  protected_seconds  time until the first of these is no longer protected, or null
  young              number of orphans that are too young for --older-than
  skipped, failed    name, backend, path, owner (a number, or null) and error of files that could not be inspected or
                     removed: skipped are files of other users, failed all the rest

With --foreign (Linux, /dev/shm), files of other programs that no process uses are removed instead: those that match a
PATTERN and are of a --family, of whichever is given. Without either they are only listed. Examples:
  ndshm gc --foreign --family python,torch
  ndshm gc --foreign 'vllm_offload_*' --older-than 1h --dry-run
A file is removed only while the kernel grants this program a write lease on it, which proves that no process has it open
or mapped, in any namespace. A process that opens it at this moment waits some microseconds, and then finds no file. Kept are:
  - what was changed within ten minutes (--older-than), because a process may be about to open it again
  - files of other users; root removes those of one with --user
  - semaphores (sem.*, mp-*) and names of CloudVolume (cloudvolume-*), PostgreSQL (PostgreSQL.*) and boost, unless a PATTERN
    begins like that: they live on purpose while no process has them open
  - joblib folders and their files while the process in the name is alive, or may be in another pid namespace
  - symbolic links, files with two names, and the arrays of this library
If it cannot be proven that a file is unused, although it was asked for, the exit code is 1.

With --entrypoint, the same is done for a container that starts again: with files that are older than process 1 and of a
family, but for semaphores, names of CloudVolume, PostgreSQL and boost, and folders of joblib. This library's own arrays stay,
unless --ours is given. It is refused where processes outside the container may use the directory (--ipc=host, hostPath):
--shared-mount removes unused files even so. Nothing to do is a success. docs/guide/containers.md has lines for a Dockerfile,
Kubernetes and SLURM.

Fields of --foreign --json and --entrypoint --json:
  dry_run, listed    whether nothing was removed because of --dry-run, or because nothing was chosen
  removed, kept      the files, with the fields below
  bytes              sum of the bytes of those that were removed
  failed             files that could not be removed, with the fields below and error

",
    foreign_fields!(),
    "

",
    codes!()
);

pub(crate) const DOCTOR: &str = concat!(
    "\
Fields of --json: healthy (false if there is a problem; warnings do not count) and checks, each with:
  name    subject of the check: backend, shm-room, shm-locks, shm-drafts, shm-descriptions, emulated-room, emulated-locks,
          emulated-drafts, emulated-descriptions, open-files, mappings, huge-pages, log-out, manager, leftovers, orphans
  status  \"ok\", \"warning\" or \"problem\"
  found   what was found
  advice  what to do, or null

",
    codes!()
);

pub(crate) const DEMO: &str = concat!(
    "\
Fields of --json: cleaned (whether the array was removed again) and downloads, one for each volume, each with the fields of
`download --json` and volume (its name), format, chunk_shape, verified (always true: a difference ends the demo).

",
    codes!()
);

pub(crate) const MANAGER: &str = concat!(
    "\
Each user has one manager. Programs that use counted arrays tell it which directories they use. When such a program ends or
is killed, the manager at once reclaims the arrays there that no process holds any more. Nothing depends on the manager:
without it, the next process that looks reclaims them, only later.

It exits cleanly on Ctrl-C, SIGTERM and SIGHUP. If a manager is running already, `ndshm manager` says so and exits with 0.

Fields of `manager status --json`:
  running, socket        whether a manager is running, and its socket; the other fields only if one is running
  pid, version           of its process and program
  uptime_seconds         how long it has been running
  clients, directories   number of processes that it watches, and of directories that it searches
  sweeps, reclaimed      number of searches of one directory, and of arrays removed

",
    codes!()
);
