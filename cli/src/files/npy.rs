//! The header of NumPy's .npy files, in front of the elements. The reader trusts no byte of the file.
//!
//! NumPy describes the format in `numpy.lib.format`: six bytes of magic, two of version, the length of the header, and
//! the header, a Python dictionary with three entries.

use std::io::{self, Read};

use ndarray_shm::{DType, Order};

const MAGIC: &[u8; 6] = b"\x93NUMPY";

/// Maximum length of a header in bytes. NumPy refuses more than 10,000 characters unless it trusts the file.
const LONGEST_HEADER: usize = 1 << 16;

/// Maximum number of axes in NumPy.
const MOST_AXES: usize = 64;

/// The offset of the elements is a multiple of this, as in NumPy, so that the file can be mapped.
const ALIGNMENT: usize = 64;

/// The contents of a file's header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Header {
    /// The element type as the file writes it: ">u2".
    pub(crate) descr: String,
    pub(crate) order: Order,
    pub(crate) shape: Vec<u64>,
    /// Offset of the elements in the file.
    pub(crate) offset: u64,
}

/// The element type in memory, and how to get there from the file's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NpyElements {
    pub(crate) dtype: DType,
    /// Size of the numbers in bytes, if the bytes of each number must be reversed; `None` if their order is right.
    pub(crate) turned: Option<usize>,
}

impl Header {
    /// Reads the header. The elements follow it in `file`.
    ///
    /// The inner error says in words why this is not a valid .npy file.
    pub(crate) fn read(file: &mut impl Read) -> io::Result<Result<Self, String>> {
        let mut start = [0; 8];
        if !read_all(file, &mut start)? || start[..6] != *MAGIC {
            return Ok(Err("it is not a .npy file: it does not begin with \\x93NUMPY".to_owned()));
        }
        let (major, minor) = (start[6], start[7]);
        let width = match (major, minor) {
            (1, 0) => 2,
            (2 | 3, 0) => 4,
            _ => return Ok(Err(format!("version {major}.{minor} of the .npy format is not one of 1.0, 2.0 and 3.0"))),
        };
        let mut length = [0; 4];
        if !read_all(file, &mut length[..width])? {
            return Ok(Err("it ends within its header".to_owned()));
        }
        let length = usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX);
        if length > LONGEST_HEADER {
            return Ok(Err(format!("its header has {length} bytes, more than the maximum of {LONGEST_HEADER}")));
        }
        let mut text = vec![0; length];
        if !read_all(file, &mut text)? {
            return Ok(Err(format!("it ends within its header, which should have {length} bytes")));
        }
        let offset = (start.len() + width + length) as u64;
        Ok(Self::parse(&text, offset))
    }

    fn parse(text: &[u8], offset: u64) -> Result<Self, String> {
        let mut literal = Literal { rest: text };
        let (mut descr, mut fortran, mut shape) = (None, None, None);
        literal.expect(b'{')?;
        while !literal.eats(b'}') {
            let key = literal.string()?;
            literal.expect(b':')?;
            let is_new = match key.as_str() {
                "descr" => descr.replace(literal.descr()?).is_none(),
                "fortran_order" => fortran.replace(literal.boolean()?).is_none(),
                "shape" => shape.replace(literal.lengths()?).is_none(),
                other => return Err(format!("its header has an unknown entry: {other:?}")),
            };
            if !is_new {
                return Err(format!("its header has two entries {key:?}"));
            }
            if !literal.eats(b',') {
                literal.expect(b'}')?;
                break;
            }
        }
        literal.end()?;
        let (Some(descr), Some(fortran), Some(shape)) = (descr, fortran, shape) else {
            return Err("its header lacks one of descr, fortran_order and shape".to_owned());
        };
        Ok(Self { descr, order: if fortran { Order::F } else { Order::C }, shape, offset })
    }

    /// Returns the element type in memory: `taken_for`, which must have the same size, or else the file's type.
    ///
    /// The error names the file's type. Without `taken_for` it also says what to do.
    pub(crate) fn elements(&self, taken_for: Option<DType>) -> Result<NpyElements, String> {
        let descr = self.descr.as_str();
        let (byte_order, kind) = match descr.split_at_checked(1) {
            Some((order @ ("<" | ">" | "|" | "="), kind)) => (order, kind),
            _ => ("|", descr),
        };
        let size = kind.get(1..).and_then(|digits| digits.parse::<usize>().ok());
        let known = DType::ALL.iter().copied().find(|dtype| dtype.as_str().get(1..) == Some(kind));
        let dtype = match (taken_for, known) {
            (Some(wanted), _) if size == Some(wanted.size()) && !kind.starts_with(['O', 'U', 'S']) => wanted,
            (Some(wanted), _) => return Err(format!("its elements, {descr:?}, cannot be interpreted as {wanted}")),
            (None, Some(dtype)) => dtype,
            (None, None) => return Err(refusal(descr, kind)),
        };
        let number = match dtype {
            DType::Complex64 | DType::Complex128 => dtype.size() / 2,
            _ => dtype.size(),
        };
        let is_other = if cfg!(target_endian = "big") { byte_order == "<" } else { byte_order == ">" };
        Ok(NpyElements { dtype, turned: (is_other && number > 1).then_some(number) })
    }

    /// Returns the size of the elements in bytes, or `None` on overflow.
    pub(crate) fn bytes(&self, dtype: DType) -> Option<u64> {
        self.shape.iter().try_fold(dtype.size() as u64, |bytes, length| bytes.checked_mul(*length))
    }
}

/// Returns why elements of a type are refused, and what to do instead.
fn refusal(descr: &str, kind: &str) -> String {
    match kind.as_bytes().first() {
        Some(b'O') => {
            "its elements are Python objects, which cannot be shared: save it with a numeric dtype".to_owned()
        }
        Some(b'b') => "its elements are bool: --dtype uint8 interprets them as numbers".to_owned(),
        Some(b'V') => format!(
            "its elements, {descr:?}, have no type that NumPy knows: if they are bfloat16, say --dtype bfloat16"
        ),
        Some(b'[') => "its elements are records, which cannot be shared: save each field by itself".to_owned(),
        _ => format!("its elements, {descr:?}, cannot be shared: save it with an integer, float or complex dtype"),
    }
}

/// Returns the header of a file with these elements.
pub(crate) fn header(dtype: DType, order: Order, shape: &[usize]) -> Vec<u8> {
    // NumPy has no bfloat16. It reads each element as two opaque bytes, which its method `view` can reinterpret.
    let descr = if dtype == DType::Bf16 { "<V2" } else { dtype.as_str() };
    // For one axis, which is contiguous in both orders, NumPy writes False.
    let fortran = if order == Order::F && shape.len() > 1 { "True" } else { "False" };
    let lengths = shape.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    let lengths = if shape.len() == 1 { lengths + "," } else { lengths };
    let text = format!("{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': ({lengths}), }}");
    let whole = |width: usize| (MAGIC.len() + 2 + width + text.len() + 1).next_multiple_of(ALIGNMENT);
    let (version, width) = if u16::try_from(whole(2)).is_ok() { (1, 2) } else { (2, 4) };
    let length = whole(width) - MAGIC.len() - 2 - width;
    let mut bytes = MAGIC.to_vec();
    bytes.extend([version, 0]);
    bytes.extend(&u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes()[..width]);
    bytes.extend(text.as_bytes());
    bytes.resize(whole(width) - 1, b' ');
    bytes.push(b'\n');
    bytes
}

/// Fills `bytes`. Returns `false` if the file ends before.
fn read_all(file: &mut impl Read, bytes: &mut [u8]) -> io::Result<bool> {
    match file.read_exact(bytes) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// The part of a Python literal that is not yet parsed.
struct Literal<'a> {
    rest: &'a [u8],
}

impl Literal<'_> {
    fn skip_blanks(&mut self) {
        self.rest = self.rest.trim_ascii_start();
    }

    fn eats(&mut self, byte: u8) -> bool {
        self.skip_blanks();
        match self.rest.split_first() {
            Some((first, rest)) if *first == byte => {
                self.rest = rest;
                true
            }
            _ => false,
        }
    }

    fn expect(&mut self, byte: u8) -> Result<(), String> {
        if self.eats(byte) { Ok(()) } else { Err(self.wrong(&format!("`{}`", char::from(byte)))) }
    }

    fn end(&mut self) -> Result<(), String> {
        self.skip_blanks();
        if self.rest.is_empty() { Ok(()) } else { Err(self.wrong("the end")) }
    }

    fn word(&mut self, word: &str) -> bool {
        self.skip_blanks();
        let rest = self.rest.strip_prefix(word.as_bytes());
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn string(&mut self) -> Result<String, String> {
        self.skip_blanks();
        let wanted = "a string";
        let Some((quote @ (b'\'' | b'"'), rest)) = self.rest.split_first() else { return Err(self.wrong(wanted)) };
        let end = rest.iter().position(|byte| byte == quote).ok_or_else(|| self.wrong(wanted))?;
        let text = std::str::from_utf8(&rest[..end]).ok().filter(|text| !text.contains('\\'));
        let text = text.ok_or_else(|| self.wrong(wanted))?.to_owned();
        self.rest = &rest[end + 1..];
        Ok(text)
    }

    /// Parses the type, which is a string. The list of a record's fields is refused.
    fn descr(&mut self) -> Result<String, String> {
        self.skip_blanks();
        if self.rest.first() == Some(&b'[') { Err(refusal("", "[")) } else { self.string() }
    }

    fn boolean(&mut self) -> Result<bool, String> {
        if self.word("True") {
            Ok(true)
        } else if self.word("False") {
            Ok(false)
        } else {
            Err(self.wrong("True or False"))
        }
    }

    fn lengths(&mut self) -> Result<Vec<u64>, String> {
        let mut lengths = Vec::new();
        self.expect(b'(')?;
        while !self.eats(b')') {
            self.skip_blanks();
            let digits = self.rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
            let text = std::str::from_utf8(&self.rest[..digits]).ok().and_then(|text| text.parse().ok());
            lengths.push(text.ok_or_else(|| self.wrong("the length of an axis"))?);
            self.rest = &self.rest[digits..];
            let _ = self.word("L"); // Python 2 may write 3 as 3L
            if lengths.len() > MOST_AXES {
                return Err(format!("it has more than {MOST_AXES} axes"));
            }
            if !self.eats(b',') {
                self.expect(b')')?;
                break;
            }
        }
        Ok(lengths)
    }

    fn wrong(&self, wanted: &str) -> String {
        let found = String::from_utf8_lossy(&self.rest[..self.rest.len().min(16)]).into_owned();
        format!("its header cannot be parsed: expected {wanted}, found {found:?}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<Header, String> {
        Header::read(&mut &*bytes).expect("bytes in memory are readable")
    }

    fn file(text: &str) -> Vec<u8> {
        let length = u16::try_from(text.len()).expect("short").to_le_bytes();
        [MAGIC, &[1, 0][..], &length[..], text.as_bytes()].concat()
    }

    #[test]
    fn written_header_is_read_back() {
        for (dtype, order, shape) in [
            (DType::U8, Order::C, vec![]),
            (DType::U16, Order::C, vec![7]),
            (DType::F64, Order::F, vec![2, 0, 3]),
            (DType::Complex64, Order::C, vec![usize::MAX; 64]),
        ] {
            let bytes = header(dtype, order, &shape);
            assert_eq!(bytes.len() % ALIGNMENT, 0);
            let header = read(&bytes).expect("a valid header");
            assert_eq!((header.offset, header.order), (bytes.len() as u64, order));
            assert!(header.shape.iter().copied().eq(shape.iter().map(|length| *length as u64)));
            assert_eq!(header.elements(None), Ok(NpyElements { dtype, turned: None }));
        }
        let long = header(DType::U8, Order::C, &vec![usize::MAX; 8000]);
        assert_eq!(long[6..8], [2, 0]);
    }

    #[test]
    fn byte_orders_and_types_are_recognized() {
        let header = |descr: &str| read(&file(&format!("{{'descr':'{descr}','fortran_order':False,'shape':(3L,)}}")));
        let stored = |descr: &str, wanted| header(descr).and_then(|header| header.elements(wanted));
        assert_eq!(stored(">u4", None), Ok(NpyElements { dtype: DType::U32, turned: Some(4) }));
        assert_eq!(stored(">c16", None), Ok(NpyElements { dtype: DType::Complex128, turned: Some(8) }));
        assert_eq!(stored("=i2", None), Ok(NpyElements { dtype: DType::I16, turned: None }));
        assert_eq!(stored("|b1", Some(DType::U8)), Ok(NpyElements { dtype: DType::U8, turned: None }));
        assert_eq!(stored("<V2", Some(DType::Bf16)), Ok(NpyElements { dtype: DType::Bf16, turned: None }));
        for (descr, says) in
            [("|O", "objects"), ("|b1", "bool"), ("<U3", "<U3"), ("<M8[ns]", "M8"), ("", "\"\""), ("é", "é")]
        {
            assert!(stored(descr, None).expect_err(descr).contains(says), "{descr}");
        }
        assert!(stored("|O8", Some(DType::U64)).is_err(), "addresses are no numbers");
    }

    #[test]
    fn hostile_headers_are_refused() {
        let good = "{'descr': '<u2', 'fortran_order': False, 'shape': (2, 3), }";
        assert!(read(&file(good)).is_ok());
        for end in 0..file(good).len() {
            assert!(read(&file(good)[..end]).is_err(), "cut off at {end}");
        }
        for text in [
            "",
            "{}",
            "[]",
            "{'descr': '<u2', 'fortran_order': False, 'shape': (2, 3), } x",
            "{'descr': '<u2', 'fortran_order': False, 'shape': (2, -3), }",
            "{'descr': '<u2', 'fortran_order': False, 'shape': (99999999999999999999,), }",
            "{'descr': '<u2', 'fortran_order': False, 'shape': 3, }",
            "{'descr': '<u2', 'fortran_order': 1, 'shape': (3,), }",
            "{'descr': '<u2', 'descr': '<u2', 'fortran_order': False, 'shape': (3,), }",
            "{'descr': '<u2', 'fortran_order': False, 'shape': (3,), 'more': 1}",
            "{'descr': [('a', '<u2')], 'fortran_order': False, 'shape': (3,), }",
            "{'descr': '<u2, 'fortran_order': False, 'shape': (3,), }",
        ] {
            assert!(read(&file(text)).is_err(), "{text}");
        }
        let many = format!("{{'descr': '<u2', 'fortran_order': False, 'shape': ({}), }}", "1,".repeat(65));
        assert!(read(&file(&many)).is_err());
        let huge = [MAGIC, &[2, 0][..], &[255; 4][..]].concat();
        assert!(read(&huge).expect_err("4 GiB").contains("more than"));
        assert!(read(&[MAGIC, &[4, 0][..]].concat()).expect_err("version 4").contains("4.0"));
    }
}
