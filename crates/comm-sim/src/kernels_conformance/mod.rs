//! A test suite for the [`Kernels`] of a memory: the results must be those of the host, bit for
//! bit, and no element outside of a view may change.

mod elements;

use comm_core::{AsView, AsViewMut, Comm, DType, Host, HostView, HostViewMut, Kernels, Result, Shape, wire};

use crate::communicator_conformance::{CheckResult, Failure};
use elements::{FLOATS, INTEGERS, elements};

/// Lengths around the sizes of warps, thread blocks and groups of sums.
pub const LENGTHS: [usize; 10] = [0, 1, 31, 32, 33, 255, 256, 257, 1025, 100_003];

/// A power of two, factors that round or overflow, zero and NaN.
const FACTORS: [f64; 6] = [0.5, 1.0 / 3.0, -1e30, 1e300, 0.0, f64::NAN];
/// The factor of conversions, which rounds.
const FACTOR: f32 = 1.0 / 3.0;
/// The number of elements above which interpreted kernels are slow.
const MANY: usize = 10_000;
/// The number of elements before and after the elements of a view.
const AROUND: usize = 3;

/// Compares all computations on buffers of these lengths with the host's.
///
/// # Errors
/// [`Failure::Wrong`] with the computation, the types, the length and the first byte that differs;
/// [`Failure::Call`] if a computation fails.
pub fn check<M: Kernels>(comm: &Comm<M>, host: &Comm, lengths: &[usize]) -> CheckResult {
    for &len in lengths {
        for of in FLOATS {
            for into in FLOATS {
                let case = Case { what: format!("a copy of {of} to {into}"), of, into, len };
                case.check(comm, host, (M::copy, Host::copy))?;
                let case = Case { what: format!("a conversion of {of} to {into}"), of, into, len };
                case.check(
                    comm,
                    host,
                    (
                        |comm, into, from| M::convert(comm, into, from, FACTOR),
                        |comm, into, from| Host::convert(comm, into, from, FACTOR),
                    ),
                )?;
            }
            check_floats(comm, host, of, len)?;
        }
        for of in FLOATS.into_iter().chain(INTEGERS) {
            let case = Case { what: format!("a sum of {of}"), of, into: of, len };
            case.check(comm, host, (M::add, Host::add))?;
            let case = Case { what: format!("zeros of {of}"), of, into: of, len };
            case.check(
                comm,
                host,
                (|comm, into, _| M::zero(comm, into), |comm, into, _| Host::zero(comm, into)),
            )?;
        }
    }
    Ok(())
}

/// Compares the computations that use the elements of one buffer.
fn check_floats<M: Kernels>(comm: &Comm<M>, host: &Comm, of: DType, len: usize) -> CheckResult {
    for factor in FACTORS {
        let case = Case { what: format!("a product of {of} and {factor}"), of, into: of, len };
        case.check(
            comm,
            host,
            (|comm, into, _| M::scale(comm, into, factor), |comm, into, _| Host::scale(comm, into, factor)),
        )?;
    }
    for is_finite in [true, false] {
        let bytes = elements(of, len + 2 * AROUND, 4, is_finite);
        let (ours, theirs) = (buffer(comm, of, &bytes)?, buffer(host, of, &bytes)?);
        let (ours, theirs) = (inner::<M>(&ours, len)?, inner::<Host>(&theirs, len)?);
        let got = M::sum_of_squares(comm, ours)?;
        let wanted = Host::sum_of_squares(host, theirs)?;
        let what = format!("the sum of squares of {len} x {of}");
        same(&what, &wire::words::<1, 8>([got.to_bits()]), &wire::words::<1, 8>([wanted.to_bits()]))?;
    }
    check_finite(comm, of, len)
}

/// Puts each kind of number that is not finite at the ends and in the middle of finite ones, and
/// checks that it is found.
fn check_finite<M: Kernels>(comm: &Comm<M>, of: DType, len: usize) -> CheckResult {
    let size = of.size();
    let finite = elements(of, len + 2 * AROUND, 5, true);
    let expect = |bytes: &[u8], wanted: bool, at: usize| -> CheckResult {
        let buffer = buffer(comm, of, bytes)?;
        let got = M::is_finite(comm, inner::<M>(&buffer, len)?)?;
        let wrong = || Failure::Wrong(format!("{len} x {of} are finite: {got}, with another at {at}"));
        if got == wanted { Ok(()) } else { Err(wrong()) }
    };
    expect(&finite, true, 0)?;
    // One kind is enough if each takes long.
    let kinds = if len > MANY { 1 } else { 4 };
    for infinite in elements::not_finite(of).into_iter().take(kinds) {
        // Elements outside the view must be ignored.
        for (at, wanted) in [(AROUND - 1, true), (AROUND + len, true)]
            .into_iter()
            .chain([0, len / 2, len.saturating_sub(1)].map(|at| (AROUND + at, len == 0)))
        {
            let mut bytes = finite.clone();
            bytes[at * size..][..size].copy_from_slice(&wire::words::<1, 8>([infinite])[..size]);
            expect(&bytes, wanted, at)?;
        }
    }
    Ok(())
}

/// A computation that writes to one buffer and may read another.
struct Case {
    what: String,
    of: DType,
    into: DType,
    len: usize,
}

impl Case {
    /// Compares the results in two memories, and the elements around them.
    fn check<M: Kernels>(
        &self,
        comm: &Comm<M>,
        host: &Comm,
        (ours, theirs): (
            impl FnOnce(&Comm<M>, M::ViewMut<'_>, M::View<'_>) -> Result<()>,
            impl FnOnce(&Comm, HostViewMut<'_>, HostView<'_>) -> Result<()>,
        ),
    ) -> CheckResult {
        let (got, wanted) = (self.run(comm, ours)?, self.run(host, theirs)?);
        same(&format!("{}, {} elements", self.what, self.len), &got, &wanted)
    }

    fn run<M: Kernels>(
        &self,
        comm: &Comm<M>,
        work: impl FnOnce(&Comm<M>, M::ViewMut<'_>, M::View<'_>) -> Result<()>,
    ) -> CheckResult<Vec<u8>> {
        let around = self.len + 2 * AROUND;
        let source = buffer(comm, self.of, &elements(self.of, around, 1, false))?;
        let mut target = buffer(comm, self.into, &elements(self.into, around, 2, false))?;
        let into = M::get_mut(target.as_view_mut()?, AROUND..AROUND + self.len).ok_or_else(no_range)?;
        work(comm, into, inner::<M>(&source, self.len)?)?;
        let mut bytes = vec![0; around * self.into.size()];
        M::read(comm, target.as_view()?, &mut bytes)?;
        Ok(bytes)
    }
}

fn buffer<M: Kernels>(comm: &Comm<M>, dtype: DType, bytes: &[u8]) -> Result<M::Buffer> {
    let mut buffer = M::allocate(comm, dtype, bytes.len() / dtype.size())?;
    M::write(comm, buffer.as_view_mut()?, bytes)?;
    Ok(buffer)
}

/// Returns the elements of a buffer, without those around them.
fn inner<M: Kernels>(buffer: &M::Buffer, len: usize) -> CheckResult<M::View<'_>> {
    let view = AsView::<M>::as_view(buffer)?;
    let has = view.len();
    M::get(view, AROUND..AROUND + len).filter(|_| has == len + 2 * AROUND).ok_or_else(no_range)
}

fn no_range() -> Failure {
    Failure::Wrong("a view lacks a range of its elements".into())
}

fn same(what: &str, got: &[u8], wanted: &[u8]) -> CheckResult {
    let differs = got.iter().zip(wanted).position(|(got, wanted)| got != wanted);
    match differs {
        None if got.len() == wanted.len() => Ok(()),
        None => Err(Failure::Wrong(format!("{what}: {} bytes instead of {}", got.len(), wanted.len()))),
        Some(at) => {
            let (got, wanted) = (&got[at / 8 * 8..(at / 8 * 8 + 8).min(got.len())], &wanted[at / 8 * 8..]);
            let wanted = &wanted[..got.len()];
            Err(Failure::Wrong(format!("{what}: byte {at} differs: {got:02x?} instead of {wanted:02x?}")))
        }
    }
}
