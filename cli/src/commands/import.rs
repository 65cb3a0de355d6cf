//! `ndshm import`: copies a .npy file into an array in shared memory. The array gets its name when it is complete.

use std::fs::File;
use std::io::{self, BufReader, Read as _, Write};
use std::path::Path;
use std::time::Instant;

use bytemuck::cast_slice_mut;
use ndarray::{ArrayViewMutD, IxDyn, ShapeBuilder as _};
use ndarray_shm::{CreateOptions, CreationMode, DType, Directory, Element, Order, with_element};
use ndarray_shm_volume::StopFlag;
use serde::Serialize;

use crate::args::ImportArgs;
use crate::exit::{Exit, Failure};
use crate::files::npy::{Header, NpyElements};
use crate::interrupt;
use crate::show::{python, report, units};
use crate::transfer::destination;
use crate::transfer::progress::Display;

/// Bytes to read at a time; a multiple of every element size.
const BLOCK: usize = 1 << 22;

/// An imported array, as `import --json` prints it.
#[derive(Debug, Serialize)]
struct Imported {
    file: String,
    location: String,
    backend: String,
    path: String,
    /// The element type as `NumPy` writes it: "<u2".
    dtype: String,
    shape: Vec<usize>,
    /// "C" or "F".
    order: String,
    bytes: u64,
    /// Lines that open the array.
    python: Vec<String>,
}

/// Runs `ndshm import`.
pub(crate) fn run(args: &ImportArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let stop = interrupt::flag()?;
    let backend = destination::backend(args.emulate)?;
    let source = NpyFile::open(&args.file, args.dtype)?;
    let dtype = source.stored.dtype;
    let (shape, order) = (source.shape.clone(), source.header.order);
    with_element!(dtype, T => source.import::<T>(args, &backend, &stop)?, else => {
        return Err(Failure::no_elements(dtype));
    });
    let path = backend.path().join(args.location.as_str()).display().to_string();
    let imported = Imported {
        file: args.file.display().to_string(),
        location: args.location.to_string(),
        backend: backend.name().to_owned(),
        python: python::lines(&path, dtype, &shape, order),
        path,
        dtype: dtype.to_string(),
        bytes: shape.iter().map(|length| *length as u64).product::<u64>() * dtype.size() as u64,
        shape,
        order: order.to_string(),
    };
    if args.report.json {
        report::json(out, &imported)?;
        return Ok(Exit::Done);
    }
    let Imported { file, location, backend, path, dtype, shape, order, bytes, python } = &imported;
    writeln!(out, "imported {}", units::printable(file))?;
    report::facts(
        out,
        &[
            ("array", format!("{location} ({backend}: {})", units::printable(path))),
            ("dtype", dtype.clone()),
            ("shape", units::shape_in_order(shape, order)),
            ("size", units::size(*bytes)),
        ],
    )?;
    report::python(out, python)?;
    Ok(Exit::Done)
}

/// An open .npy file. Its header was read and agrees with its length.
struct NpyFile<'a> {
    path: &'a Path,
    file: BufReader<File>,
    header: Header,
    stored: NpyElements,
    shape: Vec<usize>,
}

impl<'a> NpyFile<'a> {
    fn open(path: &'a Path, taken_for: Option<DType>) -> Result<Self, Failure> {
        let cannot = |error: &io::Error| cannot_read(path, error);
        // Opening a pipe or a device may block forever.
        let is_file = path.metadata().map_err(|error| cannot(&error))?.is_file();
        if !is_file {
            return Err(Failure::new(Exit::Failed, format!("`{}` is not a file", path.display())));
        }
        let file = File::open(path).map_err(|error| cannot(&error))?;
        let length = file.metadata().map_err(|error| cannot(&error))?.len();
        let mut file = BufReader::new(file);
        let refused = |reason: String| Failure::new(Exit::Failed, format!("`{}`: {reason}", path.display()));
        let header = Header::read(&mut file).map_err(|error| cannot(&error))?.map_err(refused)?;
        let stored = header.elements(taken_for).map_err(refused)?;
        let needed = header.bytes(stored.dtype).and_then(|bytes| bytes.checked_add(header.offset));
        let lengths: Option<Vec<usize>> = header.shape.iter().map(|length| usize::try_from(*length).ok()).collect();
        match (needed, lengths) {
            (Some(needed), Some(shape)) if needed == length => Ok(Self { path, file, header, stored, shape }),
            (Some(needed), Some(_)) if needed > length => Err(refused(format!(
                "its header promises {needed} bytes, but it ends after {length}: it was cut off, or is still being written"
            ))),
            (Some(needed), Some(_)) => Err(refused(format!(
                "its header promises {needed} bytes, but it has {length}: only one array is read from a file"
            ))),
            _ => Err(refused(format!("no memory is large enough for its shape {:?}", header.shape))),
        }
    }

    fn import<T: Element>(mut self, args: &ImportArgs, backend: &Directory, stop: &StopFlag) -> Result<(), Failure> {
        let shape = IxDyn(&self.shape).set_f(self.header.order == Order::F);
        let mode = if args.replace { CreationMode::Replace } else { CreationMode::CreateNew };
        let options = CreateOptions::new().directory(backend.clone()).mode(mode);
        let display = Display::new(args.location.as_str(), "block", args.report.quiet);
        let filled = options.try_create_with::<T, IxDyn, _>(&args.location, shape, |view| {
            self.fill(view, stop, &display).map_err(Torn)
        });
        display.clear();
        filled.map(drop).map_err(|Torn(failure)| failure)
    }

    fn fill<T: Element>(
        &mut self,
        mut view: ArrayViewMutD<'_, T>,
        stop: &StopFlag,
        display: &Display,
    ) -> Result<(), Failure> {
        let elements = view.as_slice_memory_order_mut().ok_or_else(Failure::not_contiguous)?;
        let (begin, mut done, total) = (Instant::now(), 0, size_of_val(elements) as u64);
        for block in cast_slice_mut::<T, u8>(elements).chunks_mut(BLOCK) {
            interrupt::check(stop)?;
            self.file.read_exact(block).map_err(|error| cannot_read(self.path, &error))?;
            if let Some(width) = self.stored.turned {
                block.chunks_exact_mut(width).for_each(<[u8]>::reverse);
            }
            done += block.len() as u64;
            display.blocks(done, total, BLOCK, begin);
        }
        Ok(())
    }
}

/// A failure that the core passes on from a closure. The core's own errors convert to it.
struct Torn(Failure);

impl From<ndarray_shm::Error> for Torn {
    fn from(error: ndarray_shm::Error) -> Self {
        let is_taken = error.kind == ndarray_shm::ErrorKind::AlreadyExists;
        let failure = Failure::from(error);
        Self(if is_taken { failure.advice("--replace replaces it; or choose another name") } else { failure })
    }
}

fn cannot_read(path: &Path, error: &io::Error) -> Failure {
    let exit = if error.kind() == io::ErrorKind::NotFound { Exit::NotFound } else { Exit::Failed };
    Failure::new(exit, error).while_doing(format!("cannot read `{}`", path.display()))
}
