//! The size of the last-level cache.

use std::fs;
use std::sync::LazyLock;

/// The size if the system does not tell: that of a small server.
const UNKNOWN: usize = 32 << 20;

/// Returns the size of the last-level cache of a processor of this host in bytes.
pub(crate) fn last_level_cache_bytes() -> usize {
    static BYTES: LazyLock<usize> = LazyLock::new(|| measured().unwrap_or(UNKNOWN));
    *BYTES
}

fn measured() -> Option<usize> {
    let caches = fs::read_dir("/sys/devices/system/cpu/cpu0/cache").ok()?;
    let sizes = caches.filter_map(|cache| fs::read_to_string(cache.ok()?.path().join("size")).ok());
    sizes.filter_map(|size| parse(size.trim())).max()
}

/// Parses a size in bytes, or with the unit `K` or `M`.
fn parse(size: &str) -> Option<usize> {
    let (number, unit) = match size.strip_suffix('K') {
        Some(number) => (number, 1 << 10),
        None => size.strip_suffix('M').map_or((size, 1), |number| (number, 1 << 20)),
    };
    number.parse::<usize>().ok()?.checked_mul(unit).filter(|bytes| *bytes > 0)
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_and_nonsense_is_no_size() {
        assert_eq!(["32768K", "300M", "64", "1K"].map(parse), [32 << 20, 300 << 20, 64, 1024].map(Some));
        for nonsense in ["", "K", "0K", "-1K", "1G", "99999999999999999999", "99999999999999999M"] {
            assert_eq!(parse(nonsense), None, "{nonsense}");
        }
        assert!(last_level_cache_bytes() > 0);
    }
}
