//! Cuts a byte stream into lines and puts a tag before each.

/// One rank's stream on its way to the launcher's own.
///
/// Only whole lines come out, so that lines of different ranks never mix. Bytes are never
/// interpreted: what is not UTF-8 passes unchanged. A line without an end is held back in memory,
/// however long it grows, until its end or [`TaggedLines::finish`].
#[derive(Debug)]
pub(super) struct TaggedLines {
    tag: Vec<u8>,
    unfinished: Vec<u8>,
}

impl TaggedLines {
    pub(super) fn new(rank: usize) -> Self {
        Self { tag: format!("[{rank}]: ").into_bytes(), unfinished: Vec::new() }
    }

    /// Takes the next bytes of the stream and appends the lines that they complete to `out`.
    pub(super) fn push(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        // Only new bytes are searched: a long line that arrives in many pieces costs linear time.
        let complete = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        let (complete, rest) = bytes.split_at(complete);
        for line in complete.split_inclusive(|byte| *byte == b'\n') {
            out.extend_from_slice(&self.tag);
            out.append(&mut self.unfinished);
            out.extend_from_slice(line);
        }
        self.unfinished.extend_from_slice(rest);
    }

    /// The stream is over: appends what it left without a line end to `out`, and ends it, so that
    /// the next rank's line does not continue it.
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
    fn a_line_in_pieces_comes_out_whole() {
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
