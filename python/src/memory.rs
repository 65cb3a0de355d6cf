//! An attached array with an element type that is known at run time.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::fs::File;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use ndarray::{Dimension, IxDyn, ShapeBuilder};
use ndarray_shm::array::{ArrayLock, Description, with_element};
use ndarray_shm::backend::FileId;
use ndarray_shm::counted::{Handle, HandleOptions};
use ndarray_shm::{
    Access, CreateOptions, CreationMode, DType, Directory, Element, Error, ErrorKind, OpenOptions, Order, Pages,
    Result, SharedArray, default_directory,
};

/// What an attached array of any kind can do, whatever its element type. Every method is that of [`SharedArray`].
pub(crate) trait Attached: Send + Sync {
    /// Returns the address of the first element.
    fn pointer(&self) -> *mut u8;
    fn directory(&self) -> &Directory;
    fn is_readonly(&self) -> bool;
    fn file_id(&self) -> FileId;
    /// Opens a descriptor that keeps the array attached.
    ///
    /// What Python code does with it is that code's promise, as with every view without a lock.
    fn leased_descriptor(&self) -> Result<File>;
    fn lock(
        &self,
        access: Access,
        limit: Option<Duration>,
        keep_waiting: &mut dyn FnMut() -> bool,
    ) -> Result<ArrayLock>;
}

/// An attached array with elements of any type, and what is particular to its kind.
pub(crate) trait Memory: Send + Sync {
    fn attached(&self) -> &(dyn Attached + 'static);
    fn name(&self) -> &str;
    fn unlink(&self) -> Result<bool>;
    /// Returns the methods of a counted array, if it is one.
    fn counted(&self) -> Option<&dyn Counted> {
        None
    }
    /// As [`counted`](Self::counted), for what needs the array for itself.
    fn counted_mut(&mut self) -> Option<&mut dyn Counted> {
        None
    }
}

impl Deref for dyn Memory {
    type Target = dyn Attached;

    fn deref(&self) -> &Self::Target {
        self.attached()
    }
}

/// Removes an array, unless a process has it. Returns whether it is settled: the array is gone, or a handle in flight
/// keeps it.
pub(crate) type Settle = Box<dyn Fn() -> Result<bool> + Send + Sync>;

/// What a counted array can do beyond every attached array.
pub(crate) trait Counted: Memory {
    /// Returns the random number of the array.
    fn id(&self) -> u128;
    fn refcount(&self) -> u32;
    fn in_flight(&self) -> usize;
    /// Issues a handle. An array without a name gets its name first.
    fn issue(&self, options: HandleOptions) -> Result<Handle>;
    fn renew(&self, handle: &Handle, grace: Duration) -> bool;
    /// Returns whether a handle of this array protects it.
    fn is_protected_by(&self, handle: &Handle) -> bool;
    fn redeem(&self, handle: &Handle) -> bool;
    fn count_out(&self) -> Result<()>;
    /// Makes the memory that of a new array. Returns `false` if it may have another user.
    fn recycle(&mut self) -> Result<bool>;
    fn freeze(&self) -> Result<()>;
    fn is_frozen(&self) -> bool;
    /// Attaches once more, for example in a forked child, which is not counted.
    fn again(&self) -> Result<Arc<dyn Memory>>;
    /// Attaches once more through a private copy-on-write mapping. An array without a name gets its name first.
    fn private(&self) -> Result<Arc<dyn Memory>>;
    /// Returns what removes the array when only borrowers had it and all of them are done.
    fn loan(&self) -> Settle;
}

impl<T: Element, D: Dimension> Attached for SharedArray<T, D> {
    fn pointer(&self) -> *mut u8 {
        // Python gets every read-only array as a private copy-on-write mapping, so that code that writes all the same
        // changes a copy: see `open`, and `Counted::private`.
        self.raw_view().as_ptr().cast_mut().cast()
    }

    fn directory(&self) -> &Directory {
        self.directory()
    }

    fn is_readonly(&self) -> bool {
        Self::is_readonly(self)
    }

    fn file_id(&self) -> FileId {
        Self::file_id(self)
    }

    fn leased_descriptor(&self) -> Result<File> {
        #[allow(unsafe_code)]
        // SAFETY: Python code gets the descriptor, and promises what a caller of `view_mut` promises.
        unsafe {
            Self::leased_descriptor(self)
        }
    }

    fn lock(
        &self,
        access: Access,
        limit: Option<Duration>,
        keep_waiting: &mut dyn FnMut() -> bool,
    ) -> Result<ArrayLock> {
        Self::lock(self, access, limit, keep_waiting)
    }
}

impl<T: Element, D: Dimension + 'static> Memory for SharedArray<T, D> {
    fn attached(&self) -> &(dyn Attached + 'static) {
        self
    }

    fn name(&self) -> &str {
        self.location().as_str()
    }

    fn unlink(&self) -> Result<bool> {
        Self::unlink(self)
    }
}

/// A plain array without a name.
pub(crate) struct Nameless<T: Element>(pub(crate) SharedArray<T, IxDyn>);

impl<T: Element> Memory for Nameless<T> {
    fn attached(&self) -> &(dyn Attached + 'static) {
        &self.0
    }

    fn name(&self) -> &'static str {
        ""
    }

    fn unlink(&self) -> Result<bool> {
        Ok(false)
    }
}

/// The key and text of the note that marks an array of `u8` as an array of booleans.
pub(crate) const BOOL_NOTE: (&str, &str) = ("numpy", "|b1");

/// The note that an array has if it was downloaded from a volume of booleans.
pub(crate) const BOOL_OF_VOLUME: (&str, &str) = ("elements", "bool");

/// An element type as Python names it: one of the library's, or `|b1`, which the library stores as `|u1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ElementType {
    pub(crate) dtype: DType,
    pub(crate) is_bool: bool,
}

impl ElementType {
    pub(crate) fn parse(text: &str) -> Result<Self> {
        if text == "|b1" {
            Ok(Self { dtype: DType::U8, is_bool: true })
        } else {
            Ok(Self { dtype: text.parse()?, is_bool: false })
        }
    }

    /// Returns the element type that a description names.
    pub(crate) fn described(found: &Description) -> Self {
        let noted = |(key, text): (&str, &str)| found.note(key) == Some(text);
        let is_bool = found.dtype() == DType::U8 && (noted(BOOL_NOTE) || noted(BOOL_OF_VOLUME));
        Self { dtype: found.dtype(), is_bool }
    }

    pub(crate) fn as_str(self) -> &'static str {
        if self.is_bool { "|b1" } else { self.dtype.as_str() }
    }

    /// Returns the format of one element in the buffer protocol. `bfloat16`, which the protocol lacks, is exported as
    /// its bits.
    pub(crate) fn format(self) -> &'static CStr {
        match self.dtype {
            DType::U8 if self.is_bool => c"?",
            DType::U8 => c"B",
            DType::I8 => c"b",
            DType::I16 => c"h",
            DType::U32 => c"I",
            DType::I32 => c"i",
            // The letters of numpy's own types of this size, where there are two.
            DType::U64 if cfg!(all(unix, target_pointer_width = "64")) => c"L",
            DType::I64 if cfg!(all(unix, target_pointer_width = "64")) => c"l",
            DType::U64 => c"Q",
            DType::I64 => c"q",
            DType::F16 => c"e",
            DType::F32 => c"f",
            DType::F64 => c"d",
            DType::Complex64 => c"Zf",
            DType::Complex128 => c"Zd",
            _ => c"H", // u16 and bfloat16
        }
    }
}

/// The layout of an array.
#[derive(Debug, Clone)]
pub(crate) struct Shape {
    pub(crate) element: ElementType,
    pub(crate) lengths: Vec<usize>,
    pub(crate) order: Order,
}

impl Shape {
    /// Returns the layout in a description.
    fn described(found: &Description) -> Self {
        Self { element: ElementType::described(found), lengths: found.shape().to_vec(), order: found.order() }
    }

    /// Returns a description with these notes; `None` without any.
    pub(crate) fn noted(&self, notes: &BTreeMap<String, String>) -> Result<Option<Description>> {
        if notes.is_empty() {
            return Ok(None);
        }
        let plain = Description::new(self.element.dtype, &self.lengths, self.order)?;
        notes.iter().try_fold(plain, |description, (key, text)| description.with_note(key, text)).map(Some)
    }

    pub(crate) fn len(&self) -> usize {
        self.lengths.iter().product()
    }

    /// Returns `"C"` or `"F"`.
    pub(crate) fn order_name(&self) -> &'static str {
        name_of_order(self.order)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.len() * self.element.dtype.size()
    }

    /// Returns the distance in bytes from each element to the next, for each axis. As in numpy, an axis without
    /// elements counts as one of length 1.
    pub(crate) fn strides(&self) -> Vec<isize> {
        let mut strides = vec![0; self.lengths.len()];
        let mut step = signed(self.element.dtype.size());
        let mut set = |axis: usize| {
            strides[axis] = step;
            step *= signed(self.lengths[axis].max(1));
        };
        match self.order {
            Order::C => (0..self.lengths.len()).rev().for_each(&mut set),
            Order::F => (0..self.lengths.len()).for_each(&mut set),
        }
        strides
    }
}

/// Converts a length or a number of bytes. The library refuses arrays of more bytes than an `isize` can count.
pub(crate) fn signed(length: usize) -> isize {
    isize::try_from(length).unwrap_or(isize::MAX)
}

/// Returns Python's name of an order.
pub(crate) fn name_of_order(order: Order) -> &'static str {
    match order {
        Order::C => "C",
        Order::F => "F",
    }
}

/// How an array is created.
pub(crate) struct Creation {
    /// `None` is the default directory.
    pub(crate) directory: Option<Directory>,
    pub(crate) mode: CreationMode,
    pub(crate) sparse: bool,
    pub(crate) permissions: u32,
    pub(crate) keep_fd: bool,
    /// Notes of its description, by their keys.
    pub(crate) notes: BTreeMap<String, String>,
}

/// Creates an array. `fill` writes the zeroed bytes before other processes can see them.
pub(crate) fn create<E: From<Error>>(
    name: &str,
    shape: &Shape,
    how: &Creation,
    fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
) -> Result<Arc<dyn Memory>, E> {
    let lengths = IxDyn(&shape.lengths).set_f(shape.order == Order::F);
    let pages = if how.sparse { Pages::Sparse } else { Pages::Auto };
    with_element!(shape.element.dtype, T => {
        let mut options = CreateOptions::new()
            .mode(how.mode)
            .pages(pages)
            .permissions(how.permissions)
            .keep_fd(how.keep_fd);
        if let Some(directory) = &how.directory {
            options = options.directory(directory.clone());
        }
        if shape.element.is_bool {
            options = options.note(BOOL_NOTE.0, BOOL_NOTE.1);
        }
        for (key, text) in how.notes.iter().filter(|(key, _)| *key != BOOL_NOTE.0) {
            options = options.note(key, text);
        }
        let array = options.try_create_with::<T, IxDyn, _>(name, lengths, |mut view| match view.as_slice_memory_order_mut() {
            Some(elements) => fill(bytemuck::cast_slice_mut(elements)),
            None => Ok(()), // a new array is always contiguous
        })?;
        Ok(Arc::new(array))
    }, else => unreachable!("all features of elements are enabled"))
}

/// How an array is opened.
pub(crate) struct Opening {
    pub(crate) readonly: bool,
    pub(crate) keep_fd: bool,
    pub(crate) reinterpret: bool,
}

impl Opening {
    fn options(&self, directory: Directory) -> OpenOptions {
        let options = OpenOptions::new().directory(directory).reinterpret(self.reinterpret);
        let options = if self.readonly { options.copy_on_write() } else { options };
        options.keep_fd(self.keep_fd)
    }
}

/// Opens a plain array. What is `None` is taken from its description, which must agree with the rest. Also returns that
/// description.
///
/// A read-only array is mapped copy-on-write: a library that writes to the read-only buffer nevertheless changes a
/// private copy, instead of ending the process with SIGSEGV.
pub(crate) fn open(
    directory: Option<Directory>,
    name: &str,
    element: Option<ElementType>,
    lengths: Option<Vec<usize>>,
    order: Option<Order>,
    how: &Opening,
) -> Result<(Arc<dyn Memory>, Shape, Option<Description>)> {
    let directory = match directory {
        Some(directory) => directory,
        None => default_directory()?,
    };
    if element.is_none() && lengths.is_none() && order.is_none() {
        let (array, description) = how.options(directory).reinterpret(false).open_bytes(name)?;
        let found = description.ok_or_else(|| ErrorKind::NotDescribed.at(name))?;
        return Ok((Arc::new(array), Shape::described(&found), Some(found)));
    }
    let mut shape = match (element, lengths) {
        (Some(element), Some(lengths)) => Shape { element, lengths, order: Order::C },
        (element, lengths) => {
            let found = directory.description(name)?.ok_or_else(|| ErrorKind::NotDescribed.at(name))?;
            let described = Shape::described(&found);
            Shape {
                element: element.unwrap_or(described.element),
                lengths: lengths.unwrap_or(described.lengths),
                order: described.order,
            }
        }
    };
    shape.order = order.unwrap_or(shape.order);
    let dimensions = IxDyn(&shape.lengths).set_f(shape.order == Order::F);
    let memory: Arc<dyn Memory> = with_element!(shape.element.dtype, T => {
        Arc::new(how.options(directory).open::<T, IxDyn>(name, dimensions)?)
    }, else => unreachable!("all features of elements are enabled"));
    let description = description_of(&*memory).filter(|_| !how.reinterpret);
    Ok((memory, shape, description))
}

/// Returns the description of an attached array; `None` without one, and if its name leads to another array by now.
fn description_of(memory: &(dyn Memory + 'static)) -> Option<Description> {
    let directory = memory.directory();
    directory.description(memory.name()).ok().flatten()?;
    // A file keeps its number as long as it is attached, so that this is the description of the same file.
    let options = OpenOptions::new().directory(directory.clone());
    let (bytes, description) = options.access(Access::Read).leave_holes(true).open_bytes(memory.name()).ok()?;
    description.filter(|_| bytes.file_id() == memory.file_id())
}

/// Opens the bytes of a plain array, whatever its element type is.
pub(crate) fn open_bytes(name: &str) -> Result<(Arc<dyn Memory>, Shape)> {
    let (array, _) = OpenOptions::new().open_bytes(name)?;
    let element = ElementType { dtype: DType::U8, is_bool: false };
    let shape = Shape { element, lengths: array.shape().to_vec(), order: Order::C };
    Ok((Arc::new(array), shape))
}
