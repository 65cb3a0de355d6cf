//! Human-readable numbers: sizes, rates, ages, shapes. Pure functions of their arguments.

use std::time::Duration;

/// Writes a number of bytes with a binary unit: `"64 B"`, `"1.5 KiB"`, `"24.0 GiB"`.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    // Tenths of the unit, in integers: no rounding to "1024.0 KiB".
    let mut unit = 0;
    let mut scale = 1024u64;
    while unit + 1 < UNITS.len() && tenths(bytes, scale) >= 10_240 {
        unit += 1;
        scale *= 1024;
    }
    let tenths = tenths(bytes, scale);
    format!("{}.{} {}", tenths / 10, tenths % 10, UNITS[unit])
}

fn tenths(bytes: u64, scale: u64) -> u64 {
    let rounded = (u128::from(bytes) * 10 + u128::from(scale) / 2) / u128::from(scale);
    u64::try_from(rounded).unwrap_or(u64::MAX)
}

/// Returns bytes per second, 0 when no time has passed.
pub(crate) fn rate(bytes: u64, time: Duration) -> u64 {
    let nanos = time.as_nanos();
    if nanos == 0 {
        return 0;
    }
    u64::try_from(u128::from(bytes) * 1_000_000_000 / nanos).unwrap_or(u64::MAX)
}

/// Writes how long ago something was, in its largest unit: `"12 s"`, `"3 min"`, `"5 h"`, `"2 d"`.
pub(crate) fn age(age: Duration) -> String {
    match age.as_secs() {
        seconds @ 0..60 => format!("{seconds} s"),
        seconds @ 60..3_600 => format!("{} min", seconds / 60),
        seconds @ 3_600..86_400 => format!("{} h", seconds / 3_600),
        seconds => format!("{} d", seconds / 86_400),
    }
}

/// Rounds a remaining time up to seconds, so that only a time that is over is 0.
pub(crate) fn seconds_left(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

/// Writes how much longer something lasts, rounded up: `"90 s"`, `"3 min"`, `"1 h"`, `"2 d"`.
pub(crate) fn left(time: Duration) -> String {
    let seconds = seconds_left(time);
    // From two of a unit on, the rounding is small. Exactly one of a unit is written so; between one and two, the
    // smaller unit is used.
    let unit = [(86_400, "d"), (3_600, "h"), (60, "min")]
        .into_iter()
        .find(|(scale, _)| seconds >= 2 * scale || (seconds > 0 && seconds.is_multiple_of(*scale)));
    let (scale, unit) = unit.unwrap_or((1, "s"));
    format!("{} {unit}", seconds.div_ceil(scale))
}

/// Parses a time: `"90"` and `"90s"` are seconds, `"5m"` minutes, `"2h"` hours, `"1d"` days.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let scale = match &text[digits.len()..] {
        "" | "s" => Some(1),
        "m" => Some(60),
        "h" => Some(3_600),
        "d" => Some(86_400),
        _ => None,
    };
    // `parse` would accept a sign.
    let number: Option<u64> = digits.parse().ok().filter(|_| digits.bytes().all(|byte| byte.is_ascii_digit()));
    let seconds = number.zip(scale).and_then(|(number, scale)| number.checked_mul(scale));
    seconds
        .map(Duration::from_secs)
        .ok_or_else(|| "give a number of seconds, or a time such as 90s, 5m, 2h, 1d".to_owned())
}

/// Writes a shape as `"128 x 128 x 64"`, and the shape of a single value as `"one value"`.
pub(crate) fn shape(shape: &[usize]) -> String {
    if shape.is_empty() {
        return "one value".to_owned();
    }
    shape.iter().map(usize::to_string).collect::<Vec<_>>().join(" x ")
}

/// Longest shape that is written out in a table.
const LONGEST_SHAPE: usize = 12;

/// Writes kind, type and shape of an array, for a table: "counted <f4 30x40".
pub(crate) fn array(kind: &str, dtype: &str, lengths: &[usize]) -> String {
    let shape = lengths.iter().map(usize::to_string).collect::<Vec<_>>().join("x");
    let shape = match shape.len() {
        0 => "one value".to_owned(),
        1..=LONGEST_SHAPE => shape,
        _ => count_of(lengths.len(), "axis", "axes"),
    };
    format!("{kind} {dtype} {shape}")
}

/// Writes a shape and the order of its elements in memory: `"128 x 128 x 64, C order"`.
pub(crate) fn shape_in_order(lengths: &[usize], order: &str) -> String {
    named_shape_in_order(lengths, &[], order)
}

/// Writes a shape, the names of its axes, if there are any, and the order of its elements in memory:
/// `"128 x 128 x 64 (z, y, x), C order"`.
pub(crate) fn named_shape_in_order(lengths: &[usize], axes: &[String], order: &str) -> String {
    format!("{}{}, {order} order", shape(lengths), axis_names(axes))
}

/// Writes the names of axes behind a shape: `" (z, y, x)"`; nothing if there are none.
pub(crate) fn axis_names(axes: &[String]) -> String {
    if axes.is_empty() { String::new() } else { format!(" ({})", printable(&axes.join(", "))) }
}

/// Writes the size of an element with its unit: `"4 x 4 x 40 nm"`. Channels have no size; the step of an axis of time
/// has another unit.
pub(crate) fn resolution(sizes: &[f64], axes: &[String], unit: &str) -> String {
    let one = |(axis, size): (usize, &f64)| match axes.get(axis).map(String::as_str) {
        Some("c" | "channel" | "channels") => "-".to_owned(),
        Some(name @ ("t" | "time")) => format!("{size} ({name})"),
        _ => size.to_string(),
    };
    let sizes: Vec<String> = sizes.iter().enumerate().map(one).collect();
    format!("{} {}", sizes.join(" x "), printable(unit)).trim().to_owned()
}

/// Writes a count with its noun: `"1 chunk"`, `"2 chunks"`.
pub(crate) fn count(number: usize, noun: &str) -> String {
    count_of(number, noun, &format!("{noun}s"))
}

/// Writes a count with a noun that has a plural of its own.
pub(crate) fn count_of(number: usize, one: &str, many: &str) -> String {
    if number == 1 { format!("1 {one}") } else { format!("{number} {many}") }
}

/// Whether a character changes how a terminal shows other characters: control characters and bidirectional formatting.
fn is_treacherous(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Makes a name safe for a terminal: escapes control characters, which the name of any file may contain.
pub(crate) fn printable(name: &str) -> String {
    if name.chars().any(is_treacherous) {
        name.chars().map(|c| if is_treacherous(c) { c.escape_default().to_string() } else { c.to_string() }).collect()
    } else {
        name.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_one_decimal_and_never_reach_1024_of_a_unit() {
        assert_eq!(size(0), "0 B");
        assert_eq!(size(1023), "1023 B");
        assert_eq!(size(1024), "1.0 KiB");
        assert_eq!(size(1536), "1.5 KiB");
        assert_eq!(size(1024 * 1024 - 1), "1.0 MiB");
        assert_eq!(size(24 << 30), "24.0 GiB");
        assert_eq!(size(u64::MAX), "16.0 EiB");
    }

    #[test]
    fn ages_use_the_largest_whole_unit() {
        assert_eq!(age(Duration::from_secs(59)), "59 s");
        assert_eq!(age(Duration::from_mins(1)), "1 min");
        assert_eq!(age(Duration::from_secs(7_199)), "1 h");
        assert_eq!(age(Duration::from_secs(200_000)), "2 d");
    }

    #[test]
    fn what_is_left_is_rounded_up() {
        assert_eq!(left(Duration::ZERO), "0 s");
        assert_eq!(left(Duration::from_millis(1)), "1 s");
        assert_eq!(left(Duration::from_secs(119)), "119 s");
        assert_eq!(left(Duration::from_hours(1)), "1 h");
        assert_eq!(left(Duration::from_secs(3_601)), "61 min");
        assert_eq!(left(Duration::from_secs(121)), "3 min");
        assert_eq!(left(Duration::from_secs(7_201)), "3 h");
        assert_eq!(left(Duration::from_hours(7 * 24)), "7 d");
    }

    #[test]
    fn times_are_read_with_and_without_a_unit() {
        for (text, seconds) in [("0", 0), ("90", 90), ("90s", 90), ("5m", 300), ("2h", 7_200), ("1d", 86_400)] {
            assert_eq!(duration(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["", "s", "-1", "+1", "1.5h", "5 m", "5mm", "5M", "1w", "\u{664}s", "999999999999999999d"] {
            assert!(duration(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn rate_without_time_is_zero() {
        assert_eq!(rate(1 << 20, Duration::ZERO), 0);
        assert_eq!(rate(1 << 20, Duration::from_millis(500)), 2 << 20);
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(printable("a\u{1b}[31m\n"), "a\\u{1b}[31m\\n");
        assert_eq!(printable("gpj\u{202e}x"), "gpj\\u{202e}x");
        assert_eq!(printable("naïve"), "naïve");
    }
}
