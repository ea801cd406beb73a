//! The text, its split, and windows of it.

use std::io::Read;
use std::ops::Range;

use candle_core::{Device, Tensor};
use flate2::read::GzDecoder;

use crate::{Error, Result};

/// The number of different bytes.
pub const BYTES: usize = 256;

/// The text in gzip's format, whose checksum the decoder verifies. `data/README.md` has its origin.
const COMPRESSED: &[u8] = include_bytes!("../data/kjv.txt.gz");

/// A text; its first nine tenths are for training, and the rest is for validation.
#[derive(Debug, Clone)]
pub struct Text {
    bytes: Vec<u8>,
}

impl Text {
    /// Decompresses the text, and keeps its first `length` bytes.
    ///
    /// # Errors
    /// [`Error::Text`] if the text is damaged.
    pub fn first(length: usize) -> Result<Self> {
        let mut bytes = Vec::new();
        GzDecoder::new(COMPRESSED).read_to_end(&mut bytes).map_err(Error::Text)?;
        bytes.truncate(length);
        Ok(Self { bytes })
    }

    /// The whole text.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The positions of the training part.
    #[must_use]
    pub fn training(&self) -> Range<usize> {
        0..self.bytes.len() / 10 * 9
    }

    /// The positions of the validation part.
    #[must_use]
    pub fn validation(&self) -> Range<usize> {
        self.training().end..self.bytes.len()
    }
}

/// A part of a text, cut into windows of equal length, which follow each other.
///
/// The model predicts each byte of a window from those before it in the window, and from the byte
/// before the window.
#[derive(Debug, Clone)]
pub struct Windows {
    bytes: Vec<u8>,
    length: usize,
}

impl Windows {
    /// Cuts a part of a text into windows. The bytes after the last full window are left out.
    #[must_use]
    pub fn new(text: &Text, part: Range<usize>, length: usize) -> Self {
        Self { bytes: text.bytes[part].to_vec(), length }
    }

    /// The number of windows.
    #[must_use]
    pub fn count(&self) -> usize {
        self.bytes.len().saturating_sub(1) / self.length
    }

    /// The number of bytes in all windows, beginning with the second byte of the part.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count() * self.length
    }

    /// Whether there is no window.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count() == 0
    }

    /// Returns windows as `u32` tensors: the bytes before each byte, of shape (windows, length),
    /// and the bytes to predict, of shape (windows * length).
    ///
    /// # Errors
    /// If candle cannot create the tensors.
    pub fn tensors(&self, indices: &[usize]) -> Result<(Tensor, Tensor)> {
        let shifted = |by: usize| -> Vec<u32> {
            let window = |index: &usize| {
                let start = index * self.length + by;
                self.bytes[start..start + self.length].iter().map(|byte| u32::from(*byte))
            };
            indices.iter().flat_map(window).collect()
        };
        let (count, length) = (indices.len(), self.length);
        let inputs = Tensor::from_vec(shifted(0), (count, length), &Device::Cpu)?;
        Ok((inputs, Tensor::from_vec(shifted(1), count * length, &Device::Cpu)?))
    }
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;

    #[test]
    fn the_text_is_the_one_that_its_readme_describes() {
        let text = Text::first(usize::MAX).unwrap();
        let digest: String = Sha256::digest(text.bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
        let readme = include_str!("../data/README.md");
        assert!(readme.contains(&digest), "{digest}");
        assert!(readme.contains("4,137,850 bytes"));
        assert_eq!(text.bytes().len(), 4_137_850);
        assert_eq!((text.training(), text.validation()), (0..3_724_065, 3_724_065..4_137_850));
    }

    #[test]
    fn windows_cover_a_part_once() {
        let text = Text { bytes: (0..=255).collect() };
        let windows = Windows::new(&text, 100..200, 11);
        assert_eq!((windows.count(), windows.len()), (9, 99));
        let all: Vec<usize> = (0..9).collect();
        let (inputs, targets) = windows.tensors(&all).unwrap();
        let inputs: Vec<u32> = inputs.flatten_all().unwrap().to_vec1().unwrap();
        let targets: Vec<u32> = targets.to_vec1().unwrap();
        assert_eq!(inputs, (100..199).collect::<Vec<u32>>());
        assert_eq!(targets, (101..200).collect::<Vec<u32>>());
        let (inputs, targets) = windows.tensors(&[8, 1]).unwrap();
        assert_eq!(inputs.to_vec2::<u32>().unwrap()[1], (111..122).collect::<Vec<u32>>());
        assert_eq!(targets.to_vec1::<u32>().unwrap()[0], 189);
    }

    #[test]
    fn a_part_without_a_full_window_is_empty() {
        let text = Text { bytes: vec![0; 30] };
        for (part, is_empty) in [(0..0, true), (0..8, true), (0..9, false)] {
            assert_eq!(Windows::new(&text, part, 8).is_empty(), is_empty);
        }
    }
}
