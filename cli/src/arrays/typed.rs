//! Arrays of known type and shape, from their own description or from the command line.
//!
//! Elements are read only under a guard or a held reader, and never written.

use std::fmt::Display;
use std::io::Write as _;
use std::mem;

use ndarray::{ArrayViewD, IxDyn, ShapeBuilder as _};
use ndarray_shm::array::Description;
use ndarray_shm::backend::EntryKind;
use ndarray_shm::{Access, DType, Directory, Element, Location, OpenOptions, Order, render};
use ndarray_shm_volume::{Found, VolumeNotes};

use super::places::{self, NameMatch, Search};
use crate::args::LayoutArgs;
use crate::args::words::PerAxis;
use crate::exit::{Exit, Failure};
use crate::show::units;

/// The kind of an array. It decides how the array is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ArrayKind {
    /// An array of elements only.
    Plain,
    /// An array that describes itself and counts its users.
    Counted {
        /// Whether no process uses it any more.
        orphaned: bool,
    },
    /// An unfinished renderbuffer.
    Partial,
}

/// An array of known type and shape.
#[derive(Debug)]
pub(crate) struct Described {
    pub(crate) backend: Directory,
    pub(crate) location: Location,
    pub(crate) kind: ArrayKind,
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
    pub(crate) order: Order,
    /// Where its elements came from, as its description says.
    pub(crate) notes: VolumeNotes,
    /// Whether to ignore a plain array's own description.
    reinterpret: bool,
}

/// Returns the words of the axes for reports; none if no axis has a name.
pub(crate) fn named_axes(notes: &VolumeNotes) -> Vec<String> {
    notes.axis_words(notes.axes.len())
}

impl Described {
    /// Finds an array. Its own description decides, and `args` must not contradict it. A plain array's description can
    /// be ignored.
    pub(crate) fn find(location: &Location, args: &LayoutArgs, wanted: &[EntryKind]) -> Result<Self, Failure> {
        let found = Search::new(args.backend)?.find(location, wanted).map_err(|failure| {
            match Search::new(args.backend).and_then(|search| search.find(location, &[EntryKind::Partial])) {
                Ok(_) => failure.advice(
                    "there is only an unfinished renderbuffer: repeat the `download` that began it to finish it",
                ),
                Err(_) => failure,
            }
        })?;
        let NameMatch { backend, array, partial, .. } = found;
        let mut said = None;
        let (kind, dtype, shape, order) = match (array, partial) {
            (Some(entry), _) => match Found::at(&backend, &entry) {
                Found::Counted(counted) => {
                    let kind = ArrayKind::Counted { orphaned: counted.is_orphaned() };
                    (kind, counted.dtype, counted.shape, counted.order)
                }
                Found::Damaged(error) | Found::Unknown(error) => {
                    let said = Failure::from(error).to_string();
                    return Err(
                        Failure::new(Exit::Failed, said).while_doing(format!("cannot tell what `{location}` is"))
                    );
                }
                Found::Arena(arena) => {
                    let kind = if arena.is_counters { "a file of counters" } else { "an arena" };
                    return Err(Failure::new(Exit::Failed, format!("`{location}` is {kind}, not an array")).advice(
                        format!("`ndshm info {location}` shows it; a program opens it and receives its arrays"),
                    ));
                }
                Found::Plain(found) => {
                    said = found.filter(|_| !args.ignore_description);
                    let (dtype, shape, order) =
                        plain_layout(location, entry.len, args.dtype, args.shape.as_ref(), args.order, said.as_ref())?;
                    refuse_other(location, said.as_ref(), dtype, &shape, order)?;
                    (ArrayKind::Plain, dtype, shape, order)
                }
                _ => return Err(Failure::new(Exit::NotFound, format!("nothing is called `{location}`"))),
            },
            (None, Some(entry)) => {
                let ledger = places::ledger(&backend, &entry)?;
                said = render::description(&backend, location).ok().flatten(); // it only names axes
                (ArrayKind::Partial, ledger.dtype, ledger.shape, ledger.order)
            }
            (None, None) => return Err(Failure::new(Exit::NotFound, format!("nothing is called `{location}`"))),
        };
        let notes = said.map(|said| VolumeNotes::read(&said, &shape)).unwrap_or_default();
        let reinterpret = args.ignore_description;
        let described = Self { backend, location: location.clone(), kind, dtype, shape, order, notes, reinterpret };
        if described.kind != ArrayKind::Plain {
            described.agree(args)?;
        }
        Ok(described)
    }

    /// Fails if `args` contradict the array's own type, shape or order.
    fn agree(&self, args: &LayoutArgs) -> Result<(), Failure> {
        let shape = args
            .shape
            .as_ref()
            .is_none_or(|shape| shape.0.iter().copied().eq(self.shape.iter().map(|length| *length as u64)));
        if shape
            && args.dtype.is_none_or(|dtype| dtype == self.dtype)
            && args.order.is_none_or(|order| order == self.order)
        {
            return Ok(());
        }
        let message = format!(
            "`{}`: the array describes itself as {} of {}, {} order: --shape, --dtype or --order contradicts this",
            self.location,
            units::shape(&self.shape),
            self.dtype,
            self.order
        );
        Err(Failure::new(Exit::Usage, message).advice("omit these options"))
    }

    /// Returns the size of its elements in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.shape.iter().map(|length| *length as u64).product::<u64>() * self.dtype.size() as u64
    }

    /// Calls `look` with the elements of a finished array, while no process writes to them.
    pub(crate) fn read<T: Element, R>(
        &self,
        look: impl FnOnce(ArrayViewD<'_, T>) -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        if let ArrayKind::Counted { orphaned } = self.kind {
            let options = OpenOptions::new().directory(self.backend.clone());
            let reader = options.open_counted_reader::<T, IxDyn>(&self.location)?;
            let result = look(reader.view());
            if orphaned {
                // Dropping the last handle removes the name, which a reading command must not do. It leaves as if it
                // were killed.
                mem::forget(reader);
            }
            return result;
        }
        let shape = IxDyn(&self.shape).set_f(self.order == Order::F);
        let options = OpenOptions::new().directory(self.backend.clone());
        let options = options.reinterpret(self.reinterpret);
        let array = options.access(Access::Read).open(&self.location, shape)?;
        let guard = match array.try_read() {
            Err(error) if error.kind == ndarray_shm::ErrorKind::WouldBlock => {
                let _ = writeln!(std::io::stderr(), "{}: waiting for a process that writes to it", self.location);
                array.read()?
            }
            other => other?,
        };
        look(guard.view())
    }
}

/// Returns the memory order of a plain array: `order`, or an error without one. If at most one axis is longer than 1,
/// both orders are the same and none is needed.
pub(crate) fn plain_order(
    name: impl Display,
    order: Option<Order>,
    shape: impl IntoIterator<Item = u64>,
) -> Result<Order, Failure> {
    match order {
        Some(order) => Ok(order),
        None if shape.into_iter().filter(|length| *length > 1).count() <= 1 => Ok(Order::C),
        None => Err(Failure::new(Exit::Usage, format!("`{name}` has no known memory order: give --order")).advice(
            "use the order with which it was created, --order c (last axis contiguous) or --order f (first axis contiguous): the \
             other order would permute its elements",
        )),
    }
}

/// Returns type, shape and order of a plain array, each from the command line, or else from the array's description.
pub(crate) fn plain_layout(
    location: &Location,
    bytes: u64,
    dtype: Option<DType>,
    shape: Option<&PerAxis<u64>>,
    order: Option<Order>,
    said: Option<&Description>,
) -> Result<(DType, Vec<usize>, Order), Failure> {
    let found_shape = || said.map(|said| said.shape().iter().map(|length| *length as u64).collect());
    let (found_dtype, shape) = (dtype.or(said.map(Description::dtype)), shape.map(|shape| shape.0.clone()));
    let (dtype, shape) = match (found_dtype, shape.or_else(found_shape)) {
        (Some(dtype), Some(shape)) => (dtype, shape),
        (dtype, shape) => {
            let missing = match (dtype, shape) {
                (None, None) => "--dtype and --shape",
                (None, _) => "--dtype",
                _ => "--shape",
            };
            let message = format!("`{location}` has no known layout: give {missing}");
            return Err(Failure::new(Exit::Usage, message).advice(format!(
                "use the values with which it was created, as in --dtype uint16 --shape 64,64,32 --order c; `ndshm describe \
                 {location}` with the same options stores them as its description"
            )));
        }
    };
    let needed = shape.iter().try_fold(dtype.size() as u64, |bytes, length| bytes.checked_mul(*length));
    if needed != Some(bytes) {
        let lengths: Vec<usize> = shape.iter().map(|length| usize::try_from(*length).unwrap_or(usize::MAX)).collect();
        let needed = needed.map_or_else(|| "more than can be counted".to_owned(), |bytes| format!("{bytes} bytes"));
        let says = said.map(|said| format!(" (it describes itself as {said})")).unwrap_or_default();
        let message = format!(
            "`{location}` has {bytes} bytes, but {} elements of type {dtype} have {needed}{says}",
            units::shape(&lengths)
        );
        return Err(Failure::new(Exit::Usage, message).advice("--dtype and --shape must fit its bytes"));
    }
    let order = plain_order(location, order.or(said.map(Description::order)), shape.iter().copied())?;
    // A length beyond the address space is possible only if another one is 0, as the bytes agree.
    Ok((dtype, shape.iter().map(|length| usize::try_from(*length).unwrap_or(usize::MAX)).collect(), order))
}

/// Fails if type, shape or order contradict the array's description.
pub(crate) fn refuse_other(
    name: impl Display,
    said: Option<&Description>,
    dtype: DType,
    shape: &[usize],
    order: Order,
) -> Result<(), Failure> {
    match said {
        Some(said) if !said.agrees_with(dtype, shape, order) => {
            let expected = Description::new(dtype, shape, order)?.to_string();
            let found = said.to_string();
            Err(Failure::from(ndarray_shm::ErrorKind::DescriptionMismatch { expected, found }.at(name)).usage())
        }
        _ => Ok(()),
    }
}
