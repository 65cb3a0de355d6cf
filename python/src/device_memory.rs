//! An array in the memory of a GPU, with an element type that is known at run time.

#![allow(unsafe_code)]

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use ndarray::{ArrayView, IxDyn, ShapeBuilder};
use ndarray_shm::array::Layout;
use ndarray_shm::array::with_element;
use ndarray_shm::counted::Foreign;
use ndarray_shm::{Element, Order};
use ndarray_shm_cuda::{Device, DeviceArray, Error, ExportedArray, Result, Stream};

use crate::export::{Elements, Kept};
use crate::memory::Shape;

/// An array in the memory of a GPU with elements of any type.
pub(crate) trait DeviceMemory: Send + Sync {
    fn device(&self) -> Device;
    fn lengths(&self) -> &[usize];
    fn order(&self) -> Order;
    fn is_shared(&self) -> bool;
    /// Copies the elements to the host.
    fn download(&self, shape: &Shape) -> Result<Elements>;
    /// Replaces the elements by those of the host, which are in the array's order. An array that is shared needs
    /// `even_if_shared`, with which Python code promises what a caller of `DeviceArray::overwrite` promises.
    fn write(&self, bytes: &[u8], even_if_shared: bool) -> Result<()>;
    fn part(&self, range: Range<usize>) -> Result<Arc<dyn DeviceMemory>>;
    fn wait_on(&self, stream: &Stream) -> Result<()>;
    fn written_on(&self, stream: &Stream) -> Result<()>;
    fn used_on(&self, stream: &Stream) -> Result<()>;
    fn ready_stream(&self) -> Result<Option<&'static Stream>>;
    fn synchronize(&self) -> Result<()>;
    fn export(&self) -> ExportedArray;
    fn parcel(&self) -> Result<Foreign>;
}

impl<T: Element> DeviceMemory for DeviceArray<T, IxDyn> {
    fn device(&self) -> Device {
        DeviceArray::device(self)
    }

    fn lengths(&self) -> &[usize] {
        self.shape()
    }

    fn order(&self) -> Order {
        Layout::order(self)
    }

    fn is_shared(&self) -> bool {
        DeviceArray::is_shared(self)
    }

    fn download(&self, shape: &Shape) -> Result<Elements> {
        // The array is contiguous in the order of `shape`.
        let (mut elements, _) = self.to_host()?.into_raw_vec_and_offset();
        let address = elements.as_mut_ptr().cast();
        Ok(Elements::new(address, shape.element, shape.lengths.clone(), shape.strides(), Arc::new(Copied(elements))))
    }

    fn write(&self, bytes: &[u8], even_if_shared: bool) -> Result<()> {
        if self.is_shared() && !even_if_shared {
            return Err(Error::Shared);
        }
        let elements = typed::<T>(bytes);
        let view = view(&elements, self.shape(), Layout::order(self))?;
        // SAFETY: only copies of this crate's stream, which are done in order, use an array that is not shared. Of a
        // shared one, Python code promises it.
        unsafe { self.overwrite(&view) }
    }

    fn part(&self, range: Range<usize>) -> Result<Arc<dyn DeviceMemory>> {
        Ok(Arc::new(DeviceArray::part(self, range)?))
    }

    fn wait_on(&self, stream: &Stream) -> Result<()> {
        DeviceArray::wait_on(self, stream)
    }

    fn written_on(&self, stream: &Stream) -> Result<()> {
        DeviceArray::written_on(self, stream)
    }

    fn used_on(&self, stream: &Stream) -> Result<()> {
        DeviceArray::used_on(self, stream)
    }

    fn ready_stream(&self) -> Result<Option<&'static Stream>> {
        DeviceArray::ready_stream(self)
    }

    fn synchronize(&self) -> Result<()> {
        DeviceArray::synchronize(self)
    }

    fn export(&self) -> ExportedArray {
        DeviceArray::export(self)
    }

    fn parcel(&self) -> Result<Foreign> {
        DeviceArray::parcel(self)
    }
}

/// Elements on the host.
struct Copied<T>(#[allow(dead_code)] Vec<T>); // only owned

impl<T: Send + Sync> Kept for Copied<T> {}

/// Returns bytes as elements: a copy of them if they are not aligned.
fn typed<T: Element>(bytes: &[u8]) -> Cow<'_, [T]> {
    bytemuck::try_cast_slice(bytes).map_or_else(|_| Cow::Owned(bytemuck::pod_collect_to_vec(bytes)), Cow::Borrowed)
}

fn view<'a, T>(elements: &'a [T], lengths: &[usize], order: Order) -> Result<ArrayView<'a, T, IxDyn>> {
    let shape = IxDyn(lengths).set_f(order == Order::F);
    ArrayView::from_shape(shape, elements)
        .map_err(|_| Error::Shape { expected: format!("one of {} elements", elements.len()), found: lengths.to_vec() })
}

/// Creates an array of zeros.
pub(crate) fn zeros(device: Device, shape: &Shape) -> Result<Arc<dyn DeviceMemory>> {
    let lengths = IxDyn(&shape.lengths).set_f(shape.order == Order::F);
    with_element!(shape.element.dtype, T => {
        Ok(Arc::new(DeviceArray::<T, IxDyn>::zeroed(device, lengths)?))
    }, else => unreachable!("all features of elements are enabled"))
}

/// Creates a copy of an array of the host, with bytes in the order of `shape`.
pub(crate) fn upload(device: Device, shape: &Shape, bytes: &[u8]) -> Result<Arc<dyn DeviceMemory>> {
    with_element!(shape.element.dtype, T => {
        let elements = typed::<T>(bytes);
        Ok(Arc::new(DeviceArray::from_host(device, &view(&elements, &shape.lengths, shape.order)?)?))
    }, else => unreachable!("all features of elements are enabled"))
}

/// Attaches an array of another process.
pub(crate) fn attach(shape: &Shape, parcel: &Foreign) -> Result<Arc<dyn DeviceMemory>> {
    with_element!(shape.element.dtype, T => {
        Ok(Arc::new(DeviceArray::<T, IxDyn>::attach(parcel)?))
    }, else => unreachable!("all features of elements are enabled"))
}
