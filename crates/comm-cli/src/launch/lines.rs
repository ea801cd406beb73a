//! Splits a byte stream into lines and prefixes each with a tag.

/// The output of one rank, split into tagged lines.
///
/// Only whole lines are produced, so lines of different ranks never mix. Bytes need not be UTF-8.
/// An unfinished line is buffered in memory until its end or [`TaggedLines::finish`].
#[derive(Debug)]
pub(super) struct TaggedLines {
    tag: Vec<u8>,
    unfinished: Vec<u8>,
}

impl TaggedLines {
    pub(super) fn new(rank: usize) -> Self {
        Self { tag: format!("[{rank}]: ").into_bytes(), unfinished: Vec::new() }
    }

    /// Consumes the next bytes, and appends the completed lines to `out`.
    pub(super) fn push(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        // Only new bytes are searched, so a long line in many pieces takes linear time.
        let complete = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        let (complete, rest) = bytes.split_at(complete);
        for line in complete.split_inclusive(|byte| *byte == b'\n') {
            out.extend_from_slice(&self.tag);
            out.append(&mut self.unfinished);
            out.extend_from_slice(line);
        }
        self.unfinished.extend_from_slice(rest);
    }

    /// Appends an unfinished line to `out`, with a line end.
    pub(super) fn finish(&mut self, out: &mut Vec<u8>) {
        if !self.unfinished.is_empty() {
            self.push(b"\n", out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tagged(pieces: &[&[u8]]) -> Vec<u8> {
        let mut lines = TaggedLines::new(3);
        let mut out = Vec::new();
        for piece in pieces {
            lines.push(piece, &mut out);
        }
        lines.finish(&mut out);
        out
    }

    #[test]
    fn every_line_is_tagged_once() {
        assert_eq!(tagged(&[b"a\nb\n"]), b"[3]: a\n[3]: b\n");
        assert_eq!(tagged(&[b"\n\n"]), b"[3]: \n[3]: \n");
        assert_eq!(tagged(&[]), b"");
    }

    #[test]
    fn a_line_received_in_pieces_is_written_whole() {
        let mut lines = TaggedLines::new(0);
        let mut out = Vec::new();
        lines.push(b"be", &mut out);
        lines.push(b"gin", &mut out);
        assert_eq!(out, b"", "an unfinished line is held back");
        lines.push(b" end\nnext", &mut out);
        assert_eq!(out, b"[0]: begin end\n");
        lines.finish(&mut out);
        assert_eq!(out, b"[0]: begin end\n[0]: next\n");
    }

    #[test]
    fn bytes_are_not_interpreted() {
        assert_eq!(tagged(&[b"\xff\xfe\0\r\n", b"\x80"]), b"[3]: \xff\xfe\0\r\n[3]: \x80\n");
    }
}
