//! Who has written how far and who has read how far in one ring, on both sides of it.
//!
//! Positions count bytes from the start of the stream and never go back. The writer publishes how far it has written
//! (the tail), the reader how far it has read (the head). Each side knows its own position and remembers the other's
//! as it saw it last, so that it looks at the other's cache line only when it would have to stop otherwise. What it
//! sees there may have been written by anybody, so it is believed only within the bounds that a correct peer keeps.
//!
//! Some bytes of the stream do not go through the ring: they are lent. The writer writes down a loan, then counts it,
//! then moves the tail over its bytes, so that who sees a tail sees every loan below it. Where a byte lies in the ring is
//! its position less all that was lent before it.

use std::fmt;

use crate::doze::Doze;
use crate::echo::{Echo, Far, Heard, Near};
use crate::loans::{Board, LOANS_MAX, Loan, Outstanding, SHOWN_MAX};
use crate::remote::Proof;
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// A reader that is behind tells of room once this part of the ring was read. While it has more to read, the writer has
/// no less than the rest of the ring.
const PARTS_OF_ROOM: u64 = 8;

/// Two cache lines, since processors fetch them in pairs.
#[derive(Debug)]
#[repr(C, align(128))]
struct Line<T>(T);

/// What both sides of a ring share besides its bytes. All zeros is a ring that nobody has used.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Control {
    written: Line<Written>,
    read: Line<Read>,
    reader: Line<Doze>,
    writer: Line<Sender>,
    board: Board,
}

/// What the reader says.
#[derive(Debug)]
#[repr(C)]
struct Read {
    head: AtomicU64,
    /// Not zero if it can read the memory of the writer's process where it lies.
    fetches: AtomicU32,
}

/// What the reader needs to know of the writer.
#[derive(Debug)]
#[repr(C)]
struct Sender {
    doze: Doze,
    proof: SharedProof,
}

/// A number in the memory of the writer's process. Who can read that, and finds it there, reads the memory of the process that
/// writes.
#[derive(Debug)]
#[repr(C)]
struct SharedProof {
    address: AtomicU64,
    number: AtomicU64,
}

/// What the writer says.
#[derive(Debug)]
#[repr(C)]
struct Written {
    tail: AtomicU64,
    near: Near,
    /// How many loans were ever made.
    loans: AtomicU64,
    /// Not zero if what is lent and not read was taken back.
    revoked: AtomicU32,
    far: Far,
}

/// The size of [`Control`] is part of the format.
#[cfg(not(loom))]
const _: () = assert!(size_of::<Control>() == Control::BYTES);

impl Control {
    /// The room that it takes in a segment.
    pub(crate) const BYTES: usize = 512 + 32 * LOANS_MAX;

    #[cfg(test)]
    pub(crate) fn new() -> Self {
        Self {
            written: Line(Written {
                tail: AtomicU64::new(0),
                near: Near::new(),
                loans: AtomicU64::new(0),
                revoked: AtomicU32::new(0),
                far: Far::new(),
            }),
            read: Line(Read { head: AtomicU64::new(0), fetches: AtomicU32::new(0) }),
            reader: Line(Doze::new()),
            writer: Line(Sender {
                doze: Doze::new(),
                proof: SharedProof { address: AtomicU64::new(0), number: AtomicU64::new(0) },
            }),
            board: Board::new(),
        }
    }

    /// The copy of the last small message.
    pub(crate) const fn echo(&self) -> Echo<'_> {
        Echo { near: &self.written.0.near, far: &self.written.0.far }
    }

    /// Whether the side that reads sleeps.
    pub(crate) const fn reader(&self) -> &Doze {
        &self.reader.0
    }

    /// Whether the side that writes sleeps.
    pub(crate) const fn writer(&self) -> &Doze {
        &self.writer.0.doze
    }

    /// Says where in this process's memory a number lies, for the other side to find it there.
    pub(crate) fn prove(&self, proof: Proof) {
        let place = &self.writer.0.proof;
        place.number.store(proof.number, Ordering::Relaxed);
        place.address.store(proof.address, Ordering::Release);
    }

    /// The number that the writer says lies in its memory, and where.
    pub(crate) fn proof(&self) -> Proof {
        let place = &self.writer.0.proof;
        let address = place.address.load(Ordering::Acquire);
        Proof { address, number: place.number.load(Ordering::Relaxed) }
    }

    /// Says that this side, which reads, can read the memory of the writer's process where it lies.
    pub(crate) fn fetch(&self) {
        self.read.0.fetches.store(1, Ordering::Release);
    }

    /// Whether the reader can read memory of the writer's process where it lies.
    pub(crate) fn fetches(&self) -> bool {
        self.read.0.fetches.load(Ordering::Acquire) != 0
    }

    /// Takes back what is lent and not read. The memory may be written to afterwards.
    pub(crate) fn revoke(&self) {
        self.written.0.revoked.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Whether what is lent was taken back. To be asked after reading: what was read counts only if it was not.
    pub(crate) fn is_revoked(&self) -> bool {
        fence(Ordering::SeqCst);
        self.written.0.revoked.load(Ordering::Relaxed) != 0
    }

    /// Does what a broken or hostile peer may do.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn scribble_loan(&self, number: u64, loan: Loan, loans: u64) {
        self.board.put(number, loan);
        self.written.0.loans.store(loans, Ordering::Release);
    }

    /// Does what a broken or hostile peer may do.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn scribble(&self, tail: Option<u64>, head: Option<u64>) {
        tail.into_iter().for_each(|tail| self.written.0.tail.store(tail, Ordering::Relaxed));
        head.into_iter().for_each(|head| self.read.0.head.store(head, Ordering::Relaxed));
    }
}

/// A position that no correct peer publishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Impossible {
    found: u64,
    least: u64,
    most: u64,
}

impl fmt::Display for Impossible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { found, least, most } = self;
        write!(f, "position {found} in a ring where only {least} to {most} can be")
    }
}

/// Believes a position between the one that was seen before and the furthest that is possible.
const fn believe(found: u64, least: u64, most: u64) -> Result<u64, Impossible> {
    if found >= least && found <= most { Ok(found) } else { Err(Impossible { found, least, most }) }
}

/// The side that writes.
#[derive(Debug)]
pub(crate) struct Writer {
    capacity: u64,
    /// How far this side has written.
    tail: u64,
    /// How far of that the other side knows.
    published: u64,
    /// How far the other side had read when we last looked.
    head: u64,
    /// How many bytes of the ring these were.
    ring_head: u64,
    /// How many bytes were ever lent.
    lent: u64,
    /// How many of these the other side knows of.
    published_lent: u64,
    out: Outstanding,
}

impl Writer {
    pub(crate) const fn new(capacity: usize) -> Self {
        let capacity = capacity as u64;
        Self {
            capacity,
            tail: 0,
            published: 0,
            head: 0,
            ring_head: 0,
            lent: 0,
            published_lent: 0,
            out: Outstanding::new(),
        }
    }

    /// How far this side has written.
    #[inline]
    pub(crate) const fn position(&self) -> u64 {
        self.tail
    }

    /// How many bytes this side has written into the ring: where the next one goes.
    #[inline]
    pub(crate) const fn ring_position(&self) -> u64 {
        self.tail - self.lent
    }

    /// How many bytes fit as far as is known. Never more than the capacity.
    #[inline]
    pub(crate) const fn room(&self) -> usize {
        (self.capacity - (self.ring_position() - self.ring_head)) as usize
    }

    /// Whether one more loan can be made as far as is known.
    pub(crate) const fn can_lend(&self) -> bool {
        !self.out.is_full()
    }

    /// Whether one more piece can be shown as far as is known, of which fewer are out at once than of others: see [`SHOWN_MAX`].
    pub(crate) fn can_show(&self) -> bool {
        self.out.iter().count() < SHOWN_MAX
    }

    /// The loans that were not read to the end as far as is known.
    pub(crate) fn outstanding(&self) -> impl Iterator<Item = Loan> {
        self.out.iter()
    }

    /// Looks how far the other side has read.
    #[inline]
    pub(crate) fn look(&mut self, control: &Control) -> Result<(), Impossible> {
        self.head = self.seen(control)?;
        self.out.settle(self.head);
        let next = self.out.first().map_or(self.head, |loan| loan.start.min(self.head));
        self.ring_head = next - self.out.done_bytes();
        Ok(())
    }

    fn seen(&self, control: &Control) -> Result<u64, Impossible> {
        believe(control.read.0.head.load(Ordering::Acquire), self.head, self.published)
    }

    /// The position below which the other side reads nothing any more that is not in the ring.
    #[inline]
    pub(crate) fn released(&self, control: &Control) -> u64 {
        if self.out.first().is_none() {
            return self.tail;
        }
        // Whoever looks next finds out about an impossible one.
        let head = self.seen(control).unwrap_or(self.head);
        self.out.iter().find(|loan| loan.end() > head).map_or(self.tail, |loan| loan.start)
    }

    /// Takes note of bytes that were written into the room.
    pub(crate) const fn wrote(&mut self, bytes: usize) {
        self.tail += bytes as u64;
    }

    /// Lends bytes, at least one. One more loan must be possible.
    pub(crate) fn lend(&mut self, control: &Control, bytes: usize, region: u64, offset: u64) {
        let loan = Loan { start: self.tail, len: bytes as u64, region, offset };
        control.board.put(self.out.made(), loan);
        self.out.push(loan);
        self.tail += loan.len;
        self.lent += loan.len;
    }

    /// How many bytes were written and not yet shown to the other side.
    #[inline]
    pub(crate) const fn unpublished(&self) -> u64 {
        self.tail - self.published
    }

    /// Shows the other side what was written, and returns whether it must be rung for.
    #[must_use]
    #[inline]
    pub(crate) fn publish(&mut self, control: &Control) -> bool {
        if self.published == self.tail {
            return false;
        }
        // It lies in another line than the tail, which one message has to do with.
        if self.lent != self.published_lent {
            control.written.0.loans.store(self.out.made(), Ordering::Release);
        }
        control.written.0.tail.store(self.tail, Ordering::Release);
        (self.published, self.published_lent) = (self.tail, self.lent);
        control.reader().rouse()
    }
}

/// The side that reads.
#[derive(Debug)]
pub(crate) struct Reader {
    capacity: u64,
    /// How far this side has read.
    head: u64,
    /// How far of that the other side knows.
    told: u64,
    /// How far the other side had written when we last looked.
    tail: u64,
    /// How far of that lies in the same piece: in the ring before the next loan, or in one loan.
    limit: u64,
    /// How many bytes below the head were lent.
    lent: u64,
    /// How many loans were taken from the board.
    taken: u64,
    /// The loan that was taken last, unless it was read to the end.
    loan: Option<Loan>,
}

impl Reader {
    pub(crate) const fn new(capacity: usize) -> Self {
        Self { capacity: capacity as u64, head: 0, told: 0, tail: 0, limit: 0, lent: 0, taken: 0, loan: None }
    }

    /// How many bytes this side has read from the ring: where the next one lies.
    #[inline]
    pub(crate) const fn ring_position(&self) -> u64 {
        self.head - self.lent
    }

    /// How far this side has read.
    #[inline]
    pub(crate) const fn position(&self) -> u64 {
        self.head
    }

    /// How many bytes are there in one piece as far as is known: in the ring never more than its capacity, in a loan
    /// never more than that has left.
    #[inline]
    pub(crate) const fn available(&self) -> usize {
        (self.limit - self.head) as usize
    }

    /// How many bytes are there as far as is known and the other side says. It may say anything.
    #[inline]
    pub(crate) const fn promised(&self) -> u64 {
        self.tail - self.head
    }

    /// Where the next byte lies if it is lent, and how many more of its loan there are.
    #[inline]
    pub(crate) fn loan(&self) -> Option<Loan> {
        let loan = self.loan.filter(|loan| loan.start <= self.head)?;
        let read = self.head - loan.start;
        let offset = loan.offset.saturating_add(read);
        Some(Loan { start: self.head, len: loan.len - read, offset, ..loan })
    }

    /// Whether something in a region is lent that this side has not read to the end.
    pub(crate) fn awaits(&self, control: &Control, region: u64) -> bool {
        let most = self.taken.saturating_add(LOANS_MAX as u64);
        let made = control.written.0.loans.load(Ordering::Acquire).min(most);
        let mut waiting = (self.taken..made).map(|number| control.board.get(number));
        self.loan.is_some_and(|loan| loan.region == region) || waiting.any(|loan| loan.region == region)
    }

    /// Whether everything that is known to be there was read, and the other side has written nothing since.
    #[inline]
    pub(crate) fn is_drained(&self, control: &Control) -> bool {
        self.head == self.tail && control.written.0.tail.load(Ordering::Relaxed) == self.tail
    }

    /// Looks whether one small message has come since everything was read, and takes the copy of it. Returns whether it
    /// did.
    #[inline]
    pub(crate) fn listen(&mut self, control: &Control, heard: &mut Heard) -> bool {
        let tail = control.written.0.tail.load(Ordering::Acquire);
        let near = tail.wrapping_sub(self.head) <= self.capacity;
        let takes = self.loan.is_none() && near && control.echo().take(self.head, tail, heard);
        if takes {
            (self.tail, self.limit) = (tail, tail);
        }
        takes
    }

    /// Looks how far the other side has written.
    #[inline]
    pub(crate) fn look(&mut self, control: &Control) -> Result<(), Impossible> {
        let tail = control.written.0.tail.load(Ordering::Acquire);
        self.take_loan(control)?;
        // A stream would have to carry 2^64 bytes for this sum to overflow.
        let full = self.head.saturating_add(self.capacity);
        let most = if self.loan.is_none() { full } else { u64::MAX };
        let tail = believe(tail, self.tail, most)?;
        self.limit = match self.loan {
            Some(loan) if loan.start <= self.head => tail.min(loan.end()),
            Some(loan) => believe(tail.min(loan.start), self.head, full)?,
            None => tail,
        };
        self.tail = tail;
        Ok(())
    }

    /// Takes the next loan from the board, if there is one and the last was read to the end.
    #[inline]
    fn take_loan(&mut self, control: &Control) -> Result<(), Impossible> {
        if self.loan.is_some() {
            return Ok(());
        }
        let most = self.taken.saturating_add(LOANS_MAX as u64);
        let made = believe(control.written.0.loans.load(Ordering::Acquire), self.taken, most)?;
        if made == self.taken {
            return Ok(());
        }
        let loan = control.board.get(self.taken);
        believe(loan.start, self.head, u64::MAX)?;
        believe(loan.len, 1, u64::MAX - loan.start)?;
        self.taken += 1;
        self.loan = Some(loan);
        Ok(())
    }

    /// Gives back bytes that were read, no more than are available. Returns whether the other side must be rung for.
    /// It hears of a loan when that was read to the end: before, it has no use for it. It hears of room when that has
    /// become a part of the ring that is worth it; [`tell`](Self::tell) tells of less.
    #[must_use]
    #[inline]
    pub(crate) fn release(&mut self, bytes: usize, control: &Control) -> bool {
        let bytes = bytes.min(self.available()) as u64;
        if bytes == 0 {
            return false;
        }
        let loan = self.loan();
        self.head += bytes;
        let Some(loan) = loan else {
            return self.head - self.told >= self.capacity / PARTS_OF_ROOM && self.tell(control);
        };
        self.lent += bytes;
        if bytes < loan.len {
            return false;
        }
        self.loan = None;
        self.tell(control)
    }

    /// Tells the other side of all that was given back, and returns whether it must be rung for. Who finds nothing to
    /// read does this: the other side may need the room before it can write more.
    #[must_use]
    #[inline]
    pub(crate) fn tell(&mut self, control: &Control) -> bool {
        if self.told == self.head {
            return false;
        }
        control.read.0.head.store(self.head, Ordering::Release);
        self.told = self.head;
        control.writer().rouse()
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests;

#[cfg(loom)]
#[cfg(test)]
mod interleavings;
