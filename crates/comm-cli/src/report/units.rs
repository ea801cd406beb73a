//! Parses and formats sizes, times and other numbers.

const UNITS: [(char, u32); 4] = [('K', 10), ('M', 20), ('G', 30), ('T', 40)];

/// Parses a size such as `4`, `4K`, `256M` or `1G`, with units of powers of 1024.
///
/// # Errors
///
/// A message for the user if the text is not a size.
pub fn parse(text: &str) -> Result<usize, String> {
    let unit = UNITS.iter().find(|(letter, _)| text.ends_with([*letter, letter.to_ascii_lowercase()]));
    let (number, shift) = unit.map_or((text, 0), |(_, shift)| (&text[..text.len() - 1], *shift));
    let number: usize =
        number.parse().map_err(|_| "expected a number, with K, M, G or T for powers of 1024".to_owned())?;
    number.checked_mul(1 << shift).ok_or_else(|| "too large".to_owned())
}

/// Formats a size exactly, for [`parse`].
pub fn show(size: usize) -> String {
    let fits = |shift: u32| size > 0 && size.trailing_zeros() >= shift;
    match UNITS.iter().rev().find(|(_, shift)| fits(*shift)) {
        Some((letter, shift)) => format!("{}{letter}", size >> shift),
        None => size.to_string(),
    }
}

/// Formats a number of bytes with three significant digits and a unit.
pub fn about(bytes: f64) -> String {
    let unit = UNITS.iter().rev().find(|(_, shift)| bytes >= (1_u64 << shift) as f64);
    let (value, unit) = unit.map_or((bytes, "B".to_owned()), |(letter, shift)| {
        (bytes / (1_u64 << shift) as f64, format!("{letter}iB"))
    });
    format!("{} {unit}", digits(value))
}

/// Formats a time in seconds with three significant digits and a unit.
pub fn time(seconds: f64) -> String {
    let (value, unit) = match seconds {
        s if s >= 1.0 => (s, "s"),
        s if s >= 1e-3 => (s * 1e3, "ms"),
        s => (s * 1e6, "us"),
    };
    format!("{} {unit}", digits(value))
}

/// Formats a number with three significant digits, or all digits of its integer part.
pub fn digits(value: f64) -> String {
    let places = match value {
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        _ => 2,
    };
    let text = format!("{value:.places$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// Formats a number with four significant digits, and at most three decimal places.
pub fn short(number: f64) -> String {
    let places = match number {
        n if n >= 1000.0 => 0,
        n if n >= 100.0 => 1,
        n if n >= 10.0 => 2,
        _ => 3,
    };
    format!("{number:.places$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_keeps_four_significant_digits() {
        assert_eq!(
            [0.0123, 1.5, 12.345, 123.456, 98765.4].map(short),
            ["0.012", "1.500", "12.35", "123.5", "98765"]
        );
    }

    #[test]
    fn sizes_are_read_and_written_in_binary_units() {
        for (text, size) in [("0", 0), ("1000", 1000), ("4K", 4096), ("256M", 256 << 20), ("3G", 3 << 30)] {
            assert_eq!((parse(text), show(size)), (Ok(size), text.to_owned()));
        }
        assert_eq!(parse("16k"), Ok(16 << 10));
        for wrong in ["", "K", "4KB", "-1", "1.5M", "4 K", "99999999T"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn bytes_and_times_have_three_significant_digits() {
        assert_eq!(
            (about(1536.0), about(12.0), about(f64::from(1 << 28))),
            ("1.5 KiB".into(), "12 B".into(), "256 MiB".into())
        );
        assert_eq!(
            (time(1.0), time(0.010_74), time(9.999e-6)),
            ("1 s".into(), "10.7 ms".into(), "10 us".into())
        );
        assert_eq!((time(5e-6), time(1e-3), time(2.0)), ("5 us".into(), "1 ms".into(), "2 s".into()));
        assert_eq!(digits(12345.6), "12346");
    }
}
