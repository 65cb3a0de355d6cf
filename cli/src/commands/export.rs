//! `ndshm export`: writes an array into a .npy file, block by block, without a copy in memory.

use std::io::Write;
use std::time::Instant;

use bytemuck::cast_slice;
use ndarray_shm::backend::EntryKind;
use ndarray_shm::{DType, Element, with_element};
use ndarray_shm_volume::StopFlag;
use serde::Serialize;

use crate::args::ExportArgs;
use crate::arrays::typed::{Described, named_axes};
use crate::exit::{Exit, Failure};
use crate::files::npy;
use crate::files::output::Output;
use crate::interrupt;
use crate::show::{report, units};
use crate::transfer::progress::Display;

/// Bytes to write between two checks for a signal.
const BLOCK: usize = 1 << 22;

/// A file that was written, as `export --json` prints it.
#[derive(Debug, Serialize)]
struct Exported {
    location: String,
    file: String,
    /// The element type as `NumPy` writes it: "<u2".
    dtype: String,
    shape: Vec<usize>,
    /// A word for each axis, its name or its number; empty if no axis has a name.
    axes: Vec<String>,
    /// "C" or "F".
    order: String,
    /// Bytes of the elements.
    bytes: u64,
    /// Python lines that read the file.
    python: Vec<String>,
}

/// Runs `ndshm export`.
pub(crate) fn run(args: &ExportArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let stop = interrupt::flag()?;
    let array = Described::find(&args.location, &args.layout, &[EntryKind::Array])?;
    let mut file = Output::begin(&args.file, args.replace)?;
    let header = npy::header(array.dtype, array.order, &array.shape);
    file.reserve(header.len() as u64 + array.bytes())?;
    file.put(&header)?;
    let display = Display::new(array.location.as_str(), "block", args.report.quiet);
    with_element!(array.dtype, T => write::<T>(&array, &mut file, &stop, &display)?, else => {
        return Err(Failure::no_elements(array.dtype));
    });
    display.clear();
    file.finish()?;
    let name = serde_json::Value::from(args.file.display().to_string());
    let mut python = vec!["import numpy as np".to_owned(), format!("a = np.load({name}, mmap_mode=\"r\")")];
    if array.dtype == DType::Bf16 {
        python.insert(1, "import ml_dtypes".to_owned());
        python.push("a = a.view(ml_dtypes.bfloat16)".to_owned());
    }
    let exported = Exported {
        location: array.location.to_string(),
        file: args.file.display().to_string(),
        dtype: array.dtype.to_string(),
        bytes: array.bytes(),
        order: array.order.to_string(),
        axes: named_axes(&array.notes),
        shape: array.shape,
        python,
    };
    if args.report.json {
        report::json(out, &exported)?;
        return Ok(Exit::Done);
    }
    let Exported { location, file, dtype, shape, axes, order, bytes, python } = &exported;
    writeln!(out, "exported {location}")?;
    report::facts(
        out,
        &[
            ("file", units::printable(file)),
            ("dtype", dtype.clone()),
            ("shape", units::named_shape_in_order(shape, axes, order)),
            ("size", units::size(*bytes)),
        ],
    )?;
    report::python(out, python)?;
    Ok(Exit::Done)
}

fn write<T: Element>(array: &Described, file: &mut Output, stop: &StopFlag, display: &Display) -> Result<(), Failure> {
    array.read::<T, _>(|view| {
        let elements = view.as_slice_memory_order().ok_or_else(Failure::not_contiguous)?;
        let (begin, mut done) = (Instant::now(), 0);
        for block in cast_slice::<T, u8>(elements).chunks(BLOCK) {
            interrupt::check(stop)?;
            file.put(block)?;
            done += block.len() as u64;
            display.blocks(done, array.bytes(), BLOCK, begin);
        }
        Ok(())
    })
}
