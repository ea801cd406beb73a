//! The images, compiled into the program, and their split into training and held-out images.
//!
//! `data/README.md` contains their source and the format of the file.

use crate::real::Real;

/// The number of pixels of an image: 8 rows of 8.
pub const PIXELS: usize = 64;

/// The number of labels, which are 0 to 9.
pub const CLASSES: usize = 10;

/// The largest value of a pixel: 0 is paper, 16 is ink.
const PIXEL_MAX: f64 = 16.0;

/// Every fifth image is held out.
const HELD_OUT_STRIDE: usize = 5;

/// The size of a record: one byte for the label, then the pixels.
const RECORD_BYTES: usize = 1 + PIXELS;

type Record = [u8; RECORD_BYTES];

static FILE: &[u8] = include_bytes!("../data/digits.bin");

/// A set of images.
#[derive(Debug, Clone)]
pub struct Images {
    records: Vec<&'static Record>,
}

/// A mini-batch: `labels.len()` images, concatenated in `pixels` and scaled to 0..=1.
#[derive(Debug, Clone, Default)]
pub struct Batch<T> {
    /// [`PIXELS`] numbers per image.
    pub pixels: Vec<T>,
    /// The label of each image.
    pub labels: Vec<u8>,
}

impl Images {
    /// Returns the training images.
    #[must_use]
    pub fn training() -> Self {
        Self::select(|index| !index.is_multiple_of(HELD_OUT_STRIDE))
    }

    /// Returns the held-out images: every fifth image of the file.
    #[must_use]
    pub fn held_out() -> Self {
        Self::select(|index| index.is_multiple_of(HELD_OUT_STRIDE))
    }

    fn select(keep: impl Fn(usize) -> bool) -> Self {
        let (records, _) = FILE.as_chunks::<RECORD_BYTES>();
        let kept = records.iter().enumerate().filter(|&(index, _)| keep(index));
        Self { records: kept.map(|(_, record)| record).collect() }
    }

    /// Returns the number of images.
    #[must_use]
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Returns whether there are no images.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Replaces the contents of `batch` by the images with these indices, and reuses its memory.
    ///
    /// # Panics
    /// If an index is not below [`Images::len`].
    pub fn fill<T: Real>(&self, batch: &mut Batch<T>, indices: impl IntoIterator<Item = usize>) {
        batch.pixels.clear();
        batch.labels.clear();
        for index in indices {
            let (label, pixels) = (self.records[index][0], &self.records[index][1..]);
            batch.labels.push(label);
            batch.pixels.extend(pixels.iter().map(|&pixel| T::from_f64(f64::from(pixel) / PIXEL_MAX)));
        }
    }
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;

    #[test]
    fn file_is_the_documented_one() {
        let digest: String = Sha256::digest(FILE).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(digest, "d8121ca7764eccfaef1df6bc4589c6527c58fcbab0cb1b079e79f97f8cb8219a");
        assert!(include_str!("../data/README.md").contains(&digest));
        assert_eq!(FILE.len(), 1797 * RECORD_BYTES);
    }

    #[test]
    fn classes_have_the_documented_counts() {
        let mut counts = [0; CLASSES];
        for record in Images::select(|_| true).records {
            counts[usize::from(record[0])] += 1;
            assert!(record[1..].iter().all(|&pixel| f64::from(pixel) <= PIXEL_MAX));
        }
        assert_eq!(counts, [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]);
    }

    #[test]
    fn a_fifth_is_held_out_and_not_trained_on() {
        let (training, held_out) = (Images::training(), Images::held_out());
        assert_eq!((training.len(), held_out.len()), (1437, 360));
        let seen = |record: &&Record| training.records.iter().any(|other| std::ptr::eq(*other, *record));
        assert!(!held_out.records.iter().any(seen));
    }

    #[test]
    fn a_batch_holds_scaled_pixels_and_labels() {
        let mut batch = Batch::<f32>::default();
        Images::held_out().fill(&mut batch, [0, 7]);
        assert_eq!((batch.labels.len(), batch.pixels.len()), (2, 2 * PIXELS));
        assert_eq!((batch.labels[0], batch.pixels[2]), (0, 5.0 / 16.0));
    }
}
