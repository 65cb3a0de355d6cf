//! Counted arrays: shared with other processes by a handle, and removed by their last user.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ndarray::{IxDyn, ShapeBuilder};
use ndarray_shm::array::with_element;
use ndarray_shm::counted::{Handle, HandleOptions, SharingStrategy};
use ndarray_shm::manager::Program;
use ndarray_shm::{
    CreateOptions, Directory, Element, Error, ErrorKind, Location, OpenOptions, Order, RefcountedArray, Result,
};
use pyo3::prelude::*;

use crate::arguments::{lengths_of, order_of, seconds};
use crate::attachment::Attachment;
use crate::copying::Source;
use crate::errors::exception;
use crate::memory::{Attached, Counted, ElementType, Memory, Settle, Shape};
use crate::signals::interruptibly;

/// Attaches to a counted array and leaves it: the last handle to leave removes an array that no process has.
fn settle<T: Element>(directory: &Directory, location: &Location, id: u128) -> Result<bool> {
    let gone = |error: &Error| error.is_not_found() || error.kind == ErrorKind::NotCounted;
    match OpenOptions::new().directory(directory.clone()).open_counted::<T, IxDyn>(location.clone()) {
        Ok(same) if same.id() == id => drop(same),
        Ok(_) => return Ok(true), // another array has the name by now
        Err(error) if gone(&error) => return Ok(true),
        Err(error) => return Err(error),
    }
    match directory.attached(location.clone()) {
        Err(error) if gone(&error) => Ok(true),
        attached => attached.map(|attached| !attached),
    }
}

impl<T: Element> Memory for RefcountedArray<T, IxDyn> {
    fn attached(&self) -> &(dyn Attached + 'static) {
        &**self
    }

    fn name(&self) -> &str {
        self.location().map_or("", |location| location.as_str())
    }

    fn unlink(&self) -> Result<bool> {
        if self.location().is_none() {
            return Ok(false);
        }
        let what = "the last process that has it removes its name".into();
        Err(ErrorKind::Unsupported { what }.at(self.name()))
    }

    fn counted(&self) -> Option<&dyn Counted> {
        Some(self)
    }

    fn counted_mut(&mut self) -> Option<&mut dyn Counted> {
        Some(self)
    }
}

impl<T: Element> Counted for RefcountedArray<T, IxDyn> {
    fn id(&self) -> u128 {
        RefcountedArray::id(self)
    }

    fn refcount(&self) -> u32 {
        RefcountedArray::refcount(self)
    }

    fn in_flight(&self) -> usize {
        RefcountedArray::in_flight(self)
    }

    fn issue(&self, options: HandleOptions) -> Result<Handle> {
        if self.location().is_none() {
            self.publish()?;
        }
        self.handle_with(options)
    }

    fn renew(&self, handle: &Handle, grace: Duration) -> bool {
        RefcountedArray::renew(self, handle, grace)
    }

    fn is_protected_by(&self, handle: &Handle) -> bool {
        self.prolong(handle, Duration::ZERO)
    }

    fn redeem(&self, handle: &Handle) -> bool {
        RefcountedArray::redeem(self, handle)
    }

    fn count_out(&self) -> Result<()> {
        RefcountedArray::count_out(self)
    }

    fn recycle(&mut self) -> Result<bool> {
        RefcountedArray::recycle(self)
    }

    fn freeze(&self) -> Result<()> {
        RefcountedArray::freeze(self)
    }

    fn is_frozen(&self) -> bool {
        RefcountedArray::is_frozen(self)
    }

    fn again(&self) -> Result<Arc<dyn Memory>> {
        Ok(Arc::new(self.try_clone()?))
    }

    fn private(&self) -> Result<Arc<dyn Memory>> {
        if self.location().is_none() {
            self.publish()?;
        }
        let gone = || ErrorKind::Unlinked.at(self.name());
        let location = self.location().ok_or_else(gone)?;
        let options = OpenOptions::new().directory(self.directory().clone()).copy_on_write();
        match options.open_counted::<T, IxDyn>(location.clone()) {
            Ok(same) if same.id() == self.id() => Ok(Arc::new(same)),
            Err(error) if !error.is_not_found() => Err(error),
            _ => Err(gone()),
        }
    }

    fn loan(&self) -> Settle {
        // Also of an array without a name: it may get one while it is lent.
        let (directory, location, id) = (self.directory().clone(), self.name_if_published().clone(), self.id());
        Box::new(move || settle::<T>(&directory, &location, id))
    }
}

fn strategy_of(py: Python<'_>, strategy: &str) -> PyResult<SharingStrategy> {
    strategy.parse().map_err(|error| exception(py, &error))
}

/// Returns the names of the strategies that this platform supports.
#[pyfunction]
pub(crate) fn strategies() -> Vec<&'static str> {
    SharingStrategy::ALL.into_iter().filter(|one| one.is_supported()).map(SharingStrategy::as_str).collect()
}

/// Creates a counted array, of zeros or of copied elements.
#[pyfunction]
#[pyo3(signature = (lengths, dtype, order, strategy, *, source=None, notes=BTreeMap::new()))]
#[allow(clippy::needless_pass_by_value)] // Python gives an object of its own
pub(crate) fn share(
    py: Python<'_>,
    lengths: Vec<usize>,
    dtype: &str,
    order: &str,
    strategy: &str,
    source: Option<Source>,
    notes: BTreeMap<String, String>,
) -> PyResult<Attachment> {
    let element = ElementType::parse(dtype).map_err(|error| exception(py, &error))?;
    let shape = Shape { element, lengths: lengths_of(py, lengths)?, order: order_of(order)? };
    let description = shape.noted(&notes).map_err(|error| exception(py, &error))?;
    let strategy = strategy_of(py, strategy)?;
    let memory = interruptibly(py, || {
        let mut copied = Ok(());
        let memory = create(&shape, strategy, false, |bytes| {
            if let Some(source) = &source {
                copied = source.copy_to(bytes, &shape);
            }
        })?;
        copied?;
        Ok(memory)
    })?;
    Ok(Attachment::described(memory, shape, description))
}

/// Creates a counted array. With `keep_fd` its memory can be recycled.
pub(crate) fn create(
    shape: &Shape,
    strategy: SharingStrategy,
    keep_fd: bool,
    fill: impl FnOnce(&mut [u8]),
) -> Result<Arc<dyn Memory>> {
    let lengths = IxDyn(&shape.lengths).set_f(shape.order == Order::F);
    with_element!(shape.element.dtype, T => {
        let options = CreateOptions::new().keep_fd(keep_fd);
        let array = options.share_with::<T, IxDyn>(strategy, lengths, |mut view| {
            if let Some(elements) = view.as_slice_memory_order_mut() {
                fill(bytemuck::cast_slice_mut(elements)); // a new array is always contiguous
            }
        })?;
        Ok(Arc::new(array))
    }, else => unreachable!("all features of elements are enabled"))
}

/// Attaches to the counted array of this name.
#[pyfunction]
pub(crate) fn open_counted(py: Python<'_>, name: &str, directory: PathBuf, dtype: &str) -> PyResult<Attachment> {
    let directory = Directory::new(directory.display().to_string(), directory);
    let opened = || -> Result<Attachment> {
        let element = ElementType::parse(dtype)?;
        with_element!(element.dtype, T => {
            let array = OpenOptions::new().directory(directory).open_counted::<T, IxDyn>(name)?;
            let shape = Shape { element, lengths: array.shape().to_vec(), order: array.order() };
            Ok(Attachment::new(Arc::new(array), shape))
        }, else => unreachable!("all features of elements are enabled"))
    };
    py.detach(opened).map_err(|error| exception(py, &error))
}

/// Attaches to the array of a handle, which uses up one of its uses. The notes are those that its sender had: a counted
/// array keeps none.
#[pyfunction]
#[allow(clippy::needless_pass_by_value)] // as above
pub(crate) fn receive(
    py: Python<'_>,
    handle: &str,
    dtype: &str,
    notes: BTreeMap<String, String>,
) -> PyResult<Attachment> {
    let received = || -> Result<Attachment> {
        let (handle, element) = (handle.parse::<Handle>()?, ElementType::parse(dtype)?);
        with_element!(element.dtype, T => {
            let array = handle.attach::<T, IxDyn>()?;
            let shape = Shape { element, lengths: array.shape().to_vec(), order: array.order() };
            let description = shape.noted(&notes)?;
            Ok(Attachment::described(Arc::new(array), shape, description))
        }, else => unreachable!("all features of elements are enabled"))
    };
    py.detach(received).map_err(|error| exception(py, &error))
}

/// Shortens the time for which a handle protects its array. Returns whether the handle was still good.
#[pyfunction]
pub(crate) fn expire(py: Python<'_>, handle: &str, grace: f64) -> PyResult<bool> {
    let grace = seconds(grace)?;
    py.detach(|| handle.parse::<Handle>()?.expire(grace)).map_err(|error: Error| exception(py, &error))
}

/// Chooses the program that is started as the manager; without one there is none.
#[pyfunction]
#[pyo3(signature = (path))]
pub(crate) fn set_manager(path: Option<PathBuf>) {
    ndarray_shm::manager::set_program(path.map_or(Program::Off, Program::At));
}

/// Makes a handle useless, and returns whether it was still good.
#[pyfunction]
pub(crate) fn revoke(py: Python<'_>, handle: &str) -> PyResult<bool> {
    py.detach(|| handle.parse::<Handle>()?.revoke()).map_err(|error: Error| exception(py, &error))
}

/// Lets a handle protect its array for at least this time from now. Returns whether it was still good.
#[pyfunction]
pub(crate) fn prolong(py: Python<'_>, handle: &str, grace: f64) -> PyResult<bool> {
    let grace = seconds(grace)?;
    py.detach(|| handle.parse::<Handle>()?.prolong(grace)).map_err(|error: Error| exception(py, &error))
}

/// Uses up one use of a handle without attaching, and returns whether it was still good.
#[pyfunction]
pub(crate) fn redeem(py: Python<'_>, handle: &str) -> PyResult<bool> {
    py.detach(|| handle.parse::<Handle>()?.redeem()).map_err(|error: Error| exception(py, &error))
}
