//! The exchange by which the ranks of a split learn which of them form a group.

/// The color and the key of a rank in [`Groups::split`](crate::Groups::split), which all ranks
/// gather.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SplitRequest {
    color: Option<u64>,
    key: i64,
}

impl SplitRequest {
    /// The number of words of a request.
    pub const WORDS: usize = 3;

    /// Creates the request of a rank for the group of this color, or for none.
    #[must_use]
    pub const fn new(color: Option<u64>, key: i64) -> Self {
        Self { color, key }
    }

    /// Returns the request as words: whether there is a color, the color, and the key.
    #[must_use]
    pub const fn to_words(self) -> [u64; Self::WORDS] {
        let (has_color, color) = match self.color {
            Some(color) => (1, color),
            None => (0, 0),
        };
        [has_color, color, self.key.cast_unsigned()]
    }

    /// Returns the requests in the words that all ranks have gathered, in the order of the ranks.
    fn from_words(all: &[u64]) -> impl Iterator<Item = Self> {
        let request = |&[has_color, color, key]: &[u64; Self::WORDS]| Self {
            color: (has_color != 0).then_some(color),
            key: key.cast_signed(),
        };
        all.as_chunks().0.iter().map(request)
    }

    /// Returns the ranks with this color, ordered by key and then by rank, from the words that all
    /// ranks have gathered.
    #[must_use]
    pub fn ranks_with(color: u64, all: &[u64]) -> Vec<usize> {
        let ranks = Self::from_words(all).enumerate().filter(|(_, request)| request.color == Some(color));
        let mut keyed: Vec<(i64, usize)> = ranks.map(|(rank, request)| (request.key, rank)).collect();
        keyed.sort_unstable();
        keyed.into_iter().map(|(_, rank)| rank).collect()
    }

    /// Returns the position of a color among the colors of all ranks in ascending order, from the
    /// words that all ranks have gathered. Backends whose colors are small integers pass it on.
    #[must_use]
    pub fn number_of(color: u64, all: &[u64]) -> usize {
        let mut smaller: Vec<u64> = Self::from_words(all)
            .filter_map(|request| request.color)
            .filter(|other| *other < color)
            .collect();
        smaller.sort_unstable();
        smaller.dedup();
        smaller.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_a_color_are_ordered_by_key_and_then_by_rank_and_colors_by_value() {
        let requests = [
            (Some(7), 5),
            (Some(7), -1),
            (None, -9),
            (Some(u64::MAX), 0),
            (Some(7), i64::MIN),
            (Some(7), -1),
            (Some(0), 3),
        ];
        let all = requests.map(|(color, key)| SplitRequest::new(color, key).to_words()).concat();
        assert_eq!(SplitRequest::ranks_with(7, &all), [4, 1, 5, 0]);
        assert_eq!(SplitRequest::ranks_with(0, &all), [6]);
        assert_eq!(SplitRequest::ranks_with(u64::MAX, &all), [3]);
        assert!(SplitRequest::ranks_with(8, &all).is_empty());
        assert_eq!([0, 7, u64::MAX].map(|color| SplitRequest::number_of(color, &all)), [0, 1, 2]);
    }
}
