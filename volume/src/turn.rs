//! Copies from C to F order: transposes rows to columns.

use std::array::from_fn;
use std::iter::zip;
use std::marker::PhantomData;

use bytemuck::Pod;
use ndarray::{ArrayView1, ArrayView3, ArrayViewD, ArrayViewMut1, ArrayViewMut3, ArrayViewMutD, Axis, Ix3, Slice};

/// Bytes of the planes that are transposed together. Twice this much, source and result, fits in the first-level cache.
const TILE_BYTES: usize = 16 << 10;

/// Transposes blocks of one element type, and keeps the memory for it.
#[derive(Debug)]
pub(crate) struct Turner<T> {
    tiles: Tiles,
    element: PhantomData<T>,
}

/// Dense planes before and after transposing. Stored as words, because several small elements are moved at a time.
#[derive(Debug, Default)]
struct Tiles {
    read: Vec<u64>,
    turned: Vec<u64>,
}

impl<T: Pod> Turner<T> {
    pub(crate) fn new() -> Self {
        Self { tiles: Tiles::default(), element: PhantomData }
    }

    /// Copies to a place of the same shape. Fast if the last axis of the source and the first axis of the target are
    /// contiguous.
    pub(crate) fn turn(&mut self, from: &ArrayViewD<'_, T>, to: ArrayViewMutD<'_, T>) {
        match size_of::<T>() {
            1 | 2 => self.turn_by::<64>(from, to),
            3..=8 => self.turn_by::<32>(from, to),
            _ => self.turn_by::<16>(from, to),
        }
    }

    /// Transposes in tiles of `SIDE` by `SIDE` elements and a few planes.
    fn turn_by<const SIDE: usize>(&mut self, from: &ArrayViewD<'_, T>, mut to: ArrayViewMutD<'_, T>) {
        if from.ndim() == 2 {
            return self.turn_by::<SIDE>(&from.view().insert_axis(Axis(1)), to.insert_axis(Axis(1)));
        }
        if from.ndim() > 3 {
            for (from, to) in zip(from.axis_iter(Axis(2)), to.axis_iter_mut(Axis(2))) {
                self.turn_by::<SIDE>(&from, to);
            }
            return;
        }
        let (Ok(from), Ok(mut to)) = (from.view().into_dimensionality(), to.view_mut().into_dimensionality::<Ix3>())
        else {
            return to.assign(from);
        };
        let plane = SIDE * SIDE * size_of::<T>();
        let planes = (TILE_BYTES / plane.max(1)).max(1);
        let words = (planes * plane).div_ceil(size_of::<u64>());
        self.tiles.read.resize(words, 0);
        self.tiles.turned.resize(words, 0);
        let (rows, depth, columns) = from.dim();
        for x in parts(rows, SIDE) {
            for z in parts(columns, SIDE) {
                for y in parts(depth, planes) {
                    let part = [x, y, z];
                    let from = from.slice_each_axis(|axis| part[axis.axis.index()]);
                    self.tiles.turn::<T, SIDE>(&from, to.slice_each_axis_mut(|axis| part[axis.axis.index()]));
                }
            }
        }
    }
}

impl Tiles {
    /// Reads rows, transposes every plane, and writes columns. The intermediate planes are dense: with the strides of a
    /// volume, often powers of two, rows or columns would map to a few cache lines and evict each other. Several planes
    /// are moved at once, because their rows are near each other, often on one page, and so are their columns.
    fn turn<T: Pod, const SIDE: usize>(&mut self, from: &ArrayView3<'_, T>, mut to: ArrayViewMut3<'_, T>) {
        let (rows, planes, columns) = from.dim();
        let Ok(read) = bytemuck::try_cast_slice_mut::<u64, T>(&mut self.read) else { return to.assign(from) };
        let lines = read.as_chunks_mut::<SIDE>().0;
        let order = (0..rows).flat_map(|x| (0..planes).map(move |y| y * SIDE + x));
        for (place, row) in zip(order, from.rows()) {
            read_line(&row, &mut lines[place], columns);
        }
        let bytes = SIDE * SIDE * size_of::<T>();
        if matches!(size_of::<T>(), 1 | 2 | 4) {
            let words = bytes / size_of::<u64>();
            for (read, turned) in zip(self.read.chunks_exact(words), self.turned.chunks_exact_mut(words)).take(planes) {
                match size_of::<T>() {
                    1 => turn_words::<8, SIDE>(read, turned, [rows, columns]),
                    2 => turn_words::<4, SIDE>(read, turned, [rows, columns]),
                    _ => turn_words::<2, SIDE>(read, turned, [rows, columns]),
                }
            }
        } else if let (Ok(read), Ok(turned)) =
            (bytemuck::try_cast_slice::<u64, T>(&self.read), bytemuck::try_cast_slice_mut::<u64, T>(&mut self.turned))
        {
            for (read, turned) in zip(read.chunks_exact(SIDE * SIDE), turned.chunks_exact_mut(SIDE * SIDE)).take(planes)
            {
                turn_elements::<T, SIDE>(read, turned, [rows, columns]);
            }
        }
        let Ok(turned) = bytemuck::try_cast_slice::<u64, T>(&self.turned) else { return to.assign(from) };
        let lines = turned.as_chunks::<SIDE>().0;
        let order = (0..columns).flat_map(|z| (0..planes).map(move |y| y * SIDE + z));
        for (place, column) in zip(order, to.reversed_axes().rows_mut()) {
            write_line(&lines[place], column, rows);
        }
    }
}

/// Cuts a length into parts.
fn parts(length: usize, step: usize) -> impl Iterator<Item = Slice> {
    (0..length).step_by(step).map(move |start| Slice::from(start..length.min(start + step)))
}

fn read_line<T: Pod, const SIDE: usize>(row: &ArrayView1<'_, T>, line: &mut [T; SIDE], length: usize) {
    match row.as_slice() {
        // The usual length is known at compile time, so copying needs no call.
        Some(row) => match row.try_into() {
            Ok(row) => *line = row,
            Err(_) => line[..length].copy_from_slice(row),
        },
        None => zip(line, row).for_each(|(to, from)| *to = *from),
    }
}

fn write_line<T: Pod, const SIDE: usize>(line: &[T; SIDE], mut column: ArrayViewMut1<'_, T>, length: usize) {
    match column.as_slice_mut() {
        Some(column) => match <&mut [T; SIDE]>::try_from(&mut *column) {
            Ok(column) => *column = *line,
            Err(_) => column.copy_from_slice(&line[..length]),
        },
        None => zip(column, line).for_each(|(to, from)| *to = *from),
    }
}

fn turn_elements<T: Pod, const SIDE: usize>(read: &[T], turned: &mut [T], [rows, columns]: [usize; 2]) {
    let (read, turned) = (read.as_chunks::<SIDE>().0, turned.as_chunks_mut::<SIDE>().0);
    for (z, line) in turned.iter_mut().enumerate().take(columns) {
        for (to, from) in zip(line, read).take(rows) {
            *to = from[z];
        }
    }
}

/// Transposes a square of elements. A word holds `N` elements, the first in its lowest bits, so `N` words below each
/// other are a square too. Swapping its upper right with its lower left quarter, then the same in each quarter,
/// transposes it.
fn turn_words<const N: usize, const SIDE: usize>(read: &[u64], turned: &mut [u64], [rows, columns]: [usize; 2]) {
    let line = SIDE / N;
    // Two adjacent words fit in one vector register on all supported processors.
    for (x, lines) in read.chunks_exact(N * line).enumerate().take(rows.div_ceil(N)) {
        for word in (0..columns.div_ceil(N)).step_by(2) {
            let mut square: [[u64; 2]; N] = from_fn(|row| [lines[row * line + word], lines[row * line + word + 1]]);
            let (mut distance, mut bits) = (N / 2, u64::BITS / 2);
            while distance > 0 {
                let lower = u64::MAX / ((1 << bits) + 1);
                for upper in (0..N).filter(|row| row & distance == 0) {
                    let (a, b) = (square[upper], square[upper + distance]);
                    let change: [u64; 2] = from_fn(|half| ((a[half] >> bits) ^ b[half]) & lower);
                    square[upper] = from_fn(|half| a[half] ^ (change[half] << bits));
                    square[upper + distance] = from_fn(|half| b[half] ^ change[half]);
                }
                (distance, bits) = (distance / 2, bits / 2);
            }
            for (row, halves) in square.iter().enumerate() {
                turned[(word * N + row) * line + x] = halves[0];
                turned[((word + 1) * N + row) * line + x] = halves[1];
            }
        }
    }
}
