//! Huffman codes of a JPEG, and the bit reader.

use std::cell::OnceCell;

use super::{BAD_CODE, Reason, TOO_SHORT};

/// Codes up to this length are found by one table look-up.
const SHORT: u32 = 9;

/// Zero bytes behind the bits, so that the last code can be read like all others.
pub(super) const PADDING: usize = 16;

/// One Huffman table.
#[derive(Debug)]
pub(super) struct Codes {
    /// For each value of the next bits, the length and symbol of the code that they begin with. Length 0 for longer
    /// codes.
    short: [[u8; 2]; 1 << SHORT],
    /// For each length, the upper bound of its codes, left-aligned in 16 bits.
    above: [u32; 17],
    /// For each length, the number to add to a code for the index of its symbol.
    offset: [i32; 17],
    symbols: Vec<u8>,
    steps: OnceCell<Box<Steps>>,
}

impl Codes {
    /// Builds a table from the number of codes of each length and their symbols. Returns `None` if they are not a
    /// Huffman code.
    pub(super) fn new(lengths: &[u8; 16], symbols: &[u8]) -> Option<Self> {
        let mut codes = Self {
            short: [[0; 2]; 1 << SHORT],
            above: [0; 17],
            offset: [0; 17],
            symbols: symbols.to_vec(),
            steps: OnceCell::new(),
        };
        let (mut code, mut place) = (0_u32, 0_usize);
        for (length, count) in (1_u32..).zip(lengths) {
            let at = usize::try_from(length).ok()?;
            codes.offset[at] = i32::try_from(place).ok()? - i32::try_from(code).ok()?;
            for symbol in symbols.get(place..place + usize::from(*count))? {
                if length <= SHORT {
                    let first = usize::try_from(code << (SHORT - length)).ok()?;
                    codes
                        .short
                        .get_mut(first..first + (1 << (SHORT - length)))?
                        .fill([u8::try_from(length).ok()?, *symbol]);
                }
                code += 1;
            }
            place += usize::from(*count);
            // The code of only ones is not allowed.
            if *count > 0 && code >= 1 << length {
                return None;
            }
            codes.above[at] = code << (16 - length);
            code <<= 1;
        }
        (symbols.len() <= 256).then_some(codes)
    }

    /// Returns the steps of a table of AC coefficients.
    pub(super) fn steps(&self) -> &Steps {
        self.steps.get_or_init(|| Box::new(Steps::new(self)))
    }

    /// Looks up a code longer than `SHORT`.
    #[cold]
    fn long(&self, next: u64) -> Result<[u8; 2], Reason> {
        let next = u32::try_from(next >> 48).map_err(|_| BAD_CODE)?;
        for length in SHORT + 1..=16 {
            let at = usize::try_from(length).map_err(|_| BAD_CODE)?;
            if next < self.above[at] {
                let place = i32::try_from(next >> (16 - length)).map_err(|_| BAD_CODE)? + self.offset[at];
                let symbol = usize::try_from(place).ok().and_then(|place| self.symbols.get(place));
                return Ok([u8::try_from(length).map_err(|_| BAD_CODE)?, *symbol.ok_or(BAD_CODE)?]);
            }
        }
        Err(BAD_CODE)
    }
}

/// Several codes of a block, decoded by one table look-up.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct CodeStep {
    /// Length of the codes with their additional bits; 0 if the first code is too long for the table.
    bits: u8,
    /// Number of coefficients, zeros included; plus `END` if the block ends with them.
    pub(super) coefficients: u8,
}

/// Added to the coefficients of a step that ends its block; larger than any block.
pub(super) const END: u8 = 128;

/// The steps of a table of AC coefficients, by the next `WINDOW` bits.
#[derive(Debug)]
pub(super) struct Steps([CodeStep; 1 << WINDOW]);

/// Bits that select a step.
const WINDOW: u32 = 10;

impl Steps {
    fn new(codes: &Codes) -> Self {
        let mut steps = [CodeStep::default(); 1 << WINDOW];
        for (window, step) in steps.iter_mut().enumerate() {
            while u32::from(step.bits) < WINDOW {
                // Bits beyond the window are zeros here; a code that reaches beyond it is left to the next step.
                let next = (window << step.bits) & ((1 << WINDOW) - 1);
                let [length, symbol] = codes.short[next >> (WINDOW - SHORT)];
                let (zeros, size) = (symbol >> 4, symbol & 15);
                let is_last = symbol == 0;
                if length == 0 || u32::from(step.bits + length) > WINDOW || size > 10 || size == 0 && !is_last {
                    break;
                }
                step.bits += length + size;
                step.coefficients += if is_last { END } else { zeros + 1 };
                if is_last {
                    break;
                }
            }
        }
        Self(steps)
    }
}

/// A bit reader. The highest bit of each byte comes first.
#[derive(Debug)]
pub(super) struct Bits<'a> {
    /// The bytes, with `PADDING` behind them.
    bytes: &'a [u8],
    /// Number of bits taken.
    at: usize,
    /// The next bits, left-aligned.
    next: u64,
    /// Number of valid bits in `next`.
    known: u32,
}

impl<'a> Bits<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0, next: 0, known: 0 }
    }

    /// Loads enough bits for a code and its additional bits.
    #[inline]
    fn look(&mut self) -> Result<(), Reason> {
        if self.known < 32 {
            let word = self.bytes.get(self.at / 8..).and_then(<[u8]>::first_chunk).ok_or(TOO_SHORT)?;
            self.next = u64::from_be_bytes(*word) << (self.at % 8);
            self.known = 57;
        }
        Ok(())
    }

    /// Returns the next bits as a number.
    #[inline]
    fn window<const BITS: u32>(&self) -> usize {
        usize::try_from(self.next >> (64 - BITS)).unwrap_or_default()
    }

    #[inline]
    fn take(&mut self, count: u8) {
        self.at += usize::from(count);
        self.next <<= count;
        self.known -= u32::from(count);
    }

    /// Takes a code of at most 16 bits and its additional bits, up to 15; `behind` returns their number for a symbol.
    /// Returns the symbol, and the bits behind the code, left-aligned.
    #[inline]
    pub(super) fn code(&mut self, codes: &Codes, behind: impl FnOnce(u8) -> u8) -> Result<(u8, u64), Reason> {
        self.look()?;
        let [length, symbol] = codes.short[self.window::<SHORT>()];
        let [length, symbol] = if length == 0 { codes.long(self.next)? } else { [length, symbol] };
        let follows = self.next << length;
        self.take(length + (behind(symbol) & 15));
        Ok((symbol, follows))
    }

    /// Takes several codes of a block, if the table has a step for the next bits and `fits` accepts its coefficients.
    /// Returns the step's coefficients.
    #[inline]
    pub(super) fn step(&mut self, steps: &Steps, fits: impl FnOnce(u8) -> bool) -> Result<Option<u8>, Reason> {
        self.look()?;
        let step = steps.0[self.window::<WINDOW>()];
        if step.bits == 0 || !fits(step.coefficients) {
            return Ok(None);
        }
        self.take(step.bits);
        Ok(Some(step.coefficients))
    }

    /// Skips bits.
    #[inline]
    pub(super) fn skip(&mut self, count: usize) {
        self.at += count;
        self.known = 0;
    }

    /// Whether all bits have been taken, except those that pad the last byte.
    pub(super) fn is_at_end(&self) -> bool {
        self.at.div_ceil(8) + PADDING == self.bytes.len()
    }

    /// Whether more bits were taken than there are.
    pub(super) fn is_beyond_end(&self) -> bool {
        self.at.div_ceil(8) + PADDING > self.bytes.len()
    }
}
