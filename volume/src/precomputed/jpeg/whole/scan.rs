//! One scan of a JPEG: every unit of some components, from one restart marker to the next.

use super::codes::{Bits, Codes, END, PADDING, Steps};
use super::{BAD_CODE, BAD_PART, JpegWalk, Reason, TOO_SHORT, UNSEEN};

/// Maximum bits of a difference of DC coefficients in a picture of 8 bits; an AC coefficient has one less.
const MOST_BITS: u8 = 11;

/// A component in a scan, and the numbers of its Huffman tables, DC and AC.
#[derive(Debug)]
struct Chosen {
    place: usize,
    tables: [usize; 2],
}

/// The coefficients, and their bits, that a scan contains.
#[derive(Debug, Clone, Copy)]
struct Band {
    first: u8,
    last: u8,
    /// Number of low bits left to later scans.
    low: u8,
    /// Whether the scan adds one bit to coefficients of an earlier scan.
    refines: bool,
}

impl JpegWalk<'_> {
    /// Walks over a scan.
    pub(super) fn scan(&mut self) -> Result<(), Reason> {
        let mut part = self.part()?;
        let count = part.byte()?;
        let mut chosen = Vec::new();
        for _ in 0..count {
            let (id, tables) = (part.byte()?, part.byte()?);
            let place = self.components.iter().position(|component| component.id == id).ok_or(BAD_PART)?;
            if chosen.iter().any(|other: &Chosen| other.place == place) {
                return Err(BAD_PART);
            }
            chosen.push(Chosen { place, tables: [usize::from(tables >> 4), usize::from(tables & 15)] });
        }
        let (first, last, bits) = (part.byte()?, part.byte()?, part.byte()?);
        part.end()?;
        let (high, low) = (bits >> 4, bits & 15);
        let is_allowed = if self.is_progressive {
            let is_of_one_kind = (first == 0) == (last == 0) && (first == 0 || chosen.len() == 1);
            first <= last && last < 64 && low < 14 && (high == 0 || high == low + 1) && is_of_one_kind
        } else {
            [first, last, bits] == [0, 63, 0]
        };
        if chosen.is_empty() || !is_allowed {
            return Err(BAD_PART);
        }
        let band = Band { first, last, low, refines: high != 0 };
        for Chosen { place, .. } in &chosen {
            let before = if band.refines { high } else { UNSEEN };
            let missing = &mut self.components[*place].missing_bits;
            if band.first > 0 && missing[0] == UNSEEN {
                return Err(BAD_PART);
            }
            let band_of = &mut missing[usize::from(band.first)..=usize::from(band.last)];
            if band_of.iter().any(|bits| *bits != before) {
                return Err(BAD_PART);
            }
            band_of.fill(band.low);
        }
        self.intervals(&chosen, band)
    }

    /// Walks from one restart marker to the next.
    fn intervals(&mut self, chosen: &[Chosen], band: Band) -> Result<(), Reason> {
        // A scan of a single component has no padding blocks.
        let [across, down] = match chosen {
            [Chosen { place, .. }] => self.components[*place].blocks,
            _ => self.units,
        };
        let all = across * down;
        let (mut done, mut restarts) = (0, 0_u8);
        let mut plain = std::mem::take(&mut self.plain);
        while done < all {
            if done > 0 && self.marker()? != 0xD0 + restarts % 8 {
                return Err(TOO_SHORT);
            }
            restarts = if done > 0 { (restarts + 1) % 8 } else { 0 };
            let end = if self.restart == 0 { all } else { all.min(done + self.restart) };
            self.unstuff(&mut plain)?;
            let mut bits = Bits::new(&plain);
            if self.is_progressive {
                self.progressive(chosen, band, done..end, across, &mut bits)?;
            } else {
                self.baseline(chosen, end - done, &mut bits)?;
            }
            if bits.is_beyond_end() {
                return Err(TOO_SHORT);
            }
            if !bits.is_at_end() {
                return Err("it has more bits than elements: it is damaged");
            }
            done = end;
        }
        self.plain = plain;
        Ok(())
    }

    /// Takes the bytes up to the next marker, and removes stuffing.
    fn unstuff(&mut self, plain: &mut Vec<u8>) -> Result<(), Reason> {
        plain.clear();
        loop {
            let length = self.rest.iter().position(|byte| *byte == 0xFF).ok_or(TOO_SHORT)?;
            plain.extend_from_slice(&self.rest[..length]);
            if self.rest.get(length + 1) != Some(&0) {
                self.rest = &self.rest[length..];
                plain.extend_from_slice(&[0; PADDING]);
                return Ok(());
            }
            plain.push(0xFF);
            self.rest = &self.rest[length + 2..];
        }
    }

    fn table(&self, kind: usize, place: usize) -> Result<&Codes, Reason> {
        self.tables[kind].get(place).and_then(Option::as_deref).ok_or(BAD_PART)
    }

    /// Returns the number of blocks of a component in each unit.
    fn blocks_of_unit(&self, chosen: &[Chosen], place: usize) -> usize {
        if chosen.len() == 1 { 1 } else { self.components[place].sampling.iter().product() }
    }

    fn baseline(&self, chosen: &[Chosen], units: usize, bits: &mut Bits<'_>) -> Result<(), Reason> {
        // The tables for each block of a unit.
        let mut blocks = Vec::new();
        for Chosen { place, tables: [dc, ac] } in chosen {
            let count = self.blocks_of_unit(chosen, *place);
            blocks.extend(std::iter::repeat_n((self.table(0, *dc)?, self.table(1, *ac)?), count));
        }
        for _ in 0..units {
            for (dc, ac) in &blocks {
                baseline_block(dc, ac, ac.steps(), bits)?;
            }
        }
        Ok(())
    }

    fn first_coefficients(
        &self,
        chosen: &[Chosen],
        band: Band,
        units: usize,
        bits: &mut Bits<'_>,
    ) -> Result<(), Reason> {
        if band.refines {
            let blocks: usize = chosen.iter().map(|one| self.blocks_of_unit(chosen, one.place)).sum();
            bits.skip(units * blocks);
            return Ok(());
        }
        let mut blocks = Vec::new();
        for Chosen { place, tables: [dc, _] } in chosen {
            blocks.extend(std::iter::repeat_n(self.table(0, *dc)?, self.blocks_of_unit(chosen, *place)));
        }
        for _ in 0..units {
            for dc in &blocks {
                first_coefficient(dc, band.low, bits)?;
            }
        }
        Ok(())
    }

    fn progressive(
        &mut self,
        chosen: &[Chosen],
        band: Band,
        units: std::ops::Range<usize>,
        across: usize,
        bits: &mut Bits<'_>,
    ) -> Result<(), Reason> {
        if band.first == 0 {
            return self.first_coefficients(chosen, band, units.len(), bits);
        }
        let [Chosen { place, tables: [_, ac] }] = chosen else { return Err(BAD_PART) };
        let table = self.tables[1].get(*ac).and_then(Option::as_deref).ok_or(BAD_PART)?;
        let component = &mut self.components[*place];
        let mut empty = 0;
        for unit in units {
            let nonzero = &mut component.nonzero[unit / across * component.stride + unit % across];
            if band.refines {
                refined_block(table, band, nonzero, &mut empty, bits)?;
            } else if empty > 0 {
                empty -= 1;
            } else {
                empty = other_coefficients(table, band, nonzero, bits)?;
            }
        }
        // A run of empty blocks must not reach beyond the interval.
        if empty > 0 { Err(BAD_CODE) } else { Ok(()) }
    }
}

#[inline]
fn first_coefficient(codes: &Codes, low: u8, bits: &mut Bits<'_>) -> Result<(), Reason> {
    let (size, _) = bits.code(codes, |size| size & 15)?;
    if size > 0 && size + low > MOST_BITS { Err(BAD_CODE) } else { Ok(()) }
}

#[inline]
fn baseline_block(dc: &Codes, ac: &Codes, steps: &Steps, bits: &mut Bits<'_>) -> Result<(), Reason> {
    first_coefficient(dc, 0, bits)?;
    let mut at = 1;
    while at < 64 {
        // A step that would go beyond the block's end is decoded code by code: some of its codes may belong to the next
        // block.
        if let Some(more) = bits.step(steps, |more| at + more % END + more / END <= 64)? {
            if more >= END {
                return Ok(());
            }
            at += more;
            continue;
        }
        let (symbol, _) = bits.code(ac, |symbol| symbol & 15)?;
        match (symbol >> 4, symbol & 15) {
            (0, 0) => return Ok(()),
            (15, 0) if at + 16 < 64 => at += 16,
            (zeros, 1..MOST_BITS) if at + zeros < 64 => at += zeros + 1,
            _ => return Err(BAD_CODE),
        }
    }
    Ok(())
}

/// Returns the number of additional bits behind a symbol of a progressive scan: of a run of empty blocks, or of a
/// coefficient.
fn run_bits(symbol: u8) -> u8 {
    match (symbol >> 4, symbol & 15) {
        (run @ 0..15, 0) => run,
        (_, size) => size,
    }
}

/// Returns the length of a run of blocks without further coefficients, including this one.
fn run(zeros: u8, behind: u64) -> u64 {
    (1 << zeros) + behind.checked_shr(64 - u32::from(zeros)).unwrap_or(0)
}

/// Walks over the first scan of a block's AC coefficients. Returns the number of following blocks without any.
fn other_coefficients(codes: &Codes, band: Band, nonzero: &mut u64, bits: &mut Bits<'_>) -> Result<u64, Reason> {
    let mut at = band.first;
    while at <= band.last {
        let (symbol, behind) = bits.code(codes, run_bits)?;
        match (symbol >> 4, symbol & 15) {
            (15, 0) => at += 16,
            (zeros, 0) => return Ok(run(zeros, behind) - 1),
            (zeros, size) if size + band.low < MOST_BITS && at + zeros <= band.last => {
                *nonzero |= 1 << (at + zeros);
                at += zeros + 1;
            }
            _ => return Err(BAD_CODE),
        }
    }
    Ok(0)
}

/// Walks over a refining scan of a block's AC coefficients. The next `empty` blocks get no new coefficients.
fn refined_block(
    codes: &Codes,
    band: Band,
    nonzero: &mut u64,
    empty: &mut u64,
    bits: &mut Bits<'_>,
) -> Result<(), Reason> {
    let mut at = band.first;
    while *empty == 0 && at <= band.last {
        let (symbol, behind) = bits.code(codes, run_bits)?;
        let (mut zeros, size) = (symbol >> 4, symbol & 15);
        if size > 1 {
            return Err(BAD_CODE);
        }
        if size == 0 && zeros < 15 {
            *empty = run(zeros, behind);
            break;
        }
        // A coefficient that is not 0 so far has one bit; coefficients that are 0 are counted.
        while at <= band.last {
            if *nonzero >> at & 1 != 0 {
                bits.skip(1);
            } else if zeros == 0 {
                break;
            } else {
                zeros -= 1;
            }
            at += 1;
        }
        if size == 1 {
            if at > band.last {
                return Err(BAD_CODE);
            }
            *nonzero |= 1 << at;
        }
        at += 1;
    }
    if *empty > 0 {
        let left = (*nonzero >> at.min(63)) & (u64::MAX >> (63 - band.last.saturating_sub(at).min(63)));
        bits.skip(if at > band.last { 0 } else { left.count_ones() as usize });
        *empty -= 1;
    }
    Ok(())
}
