//! Recognizes a call that equals the last one: its checks need not be repeated, and its program
//! need not be found again.

use comm_core::{
    Buffers, Call, CallOptions, Collective, Counts, Group, GroupId, HostView, ReduceOp, Result, Shape,
    Signature,
};

use crate::choose::{self, CallShape};

/// The last call that was checked, without its buffers.
#[derive(Debug)]
pub(super) struct LastCall {
    pub(super) signature: Signature,
    /// The number of calls so far that differ from the one before them.
    pub(super) number: u64,
    options: CallOptions,
    /// The bytes of its buffers.
    send: Option<usize>,
    recv: Option<usize>,
    /// Whether another call can equal it.
    is_repeatable: bool,
}

impl LastCall {
    /// Returns a call that no other one equals.
    pub(super) fn none(group: GroupId) -> Self {
        let signature = Signature::new(group, Collective::Barrier, "");
        let (options, send, recv) = (CallOptions::default(), None, None);
        Self { signature, number: 0, options, send, recv, is_repeatable: false }
    }

    /// Checks a call that differs from this one.
    ///
    /// # Errors
    /// [`Error::Invalid`](comm_core::Error::Invalid), naming the argument.
    #[cold]
    pub(super) fn next(&self, call: &Call<'_>, options: &CallOptions, group: Group) -> Result<Self> {
        let signature = call.check(group, options)?;
        if !signature.algorithm.is_empty() {
            let shape = CallShape::new(signature.collective).ranks(group.size()).order(signature.order);
            choose::check(&shape, &signature.algorithm)?;
        }
        let [send, recv] = views(call).map(|view| view.as_ref().map(bytes));
        // Lists of counts are not kept.
        let is_repeatable = matches!(call.counts(), (Counts::Equal, Counts::Equal));
        let (number, options) = (self.number + 1, options.clone());
        Ok(Self { signature, number, options, send, recv, is_repeatable })
    }

    /// Returns whether a call differs from this one only in the place of its buffers.
    #[inline(always)]
    pub(super) fn is_repeated_by(&self, call: &Call<'_>, options: &CallOptions) -> bool {
        let [send, recv] = views(call);
        let is_of_type = |view: &HostView<'_>| self.signature.dtype == Some(view.dtype());
        self.is_repeatable
            && call.collective() == self.signature.collective
            && call.root() == self.signature.root
            && has_operator(call, self.signature.op.as_ref())
            && *options == self.options
            && send.as_ref().map(bytes) == self.send
            && recv.as_ref().map(bytes) == self.recv
            && send.as_ref().is_none_or(is_of_type)
            && recv.as_ref().is_none_or(is_of_type)
    }
}

/// Returns the send buffer and the receive buffer. One that is used in place is the latter.
#[inline(always)]
fn views<'a>(call: &'a Call<'_>) -> [Option<HostView<'a>>; 2] {
    match call {
        Call::AllReduce { buffers, .. }
        | Call::Reduce { buffers, .. }
        | Call::AllGather { buffers, .. }
        | Call::ReduceScatter { buffers, .. }
        | Call::Gather { buffers, .. }
        | Call::Scatter { buffers, .. }
        | Call::AllToAll { buffers, .. }
        | Call::Scan { buffers, .. }
        | Call::Exscan { buffers, .. } => match buffers {
            Buffers::InPlace(buffer) => [None, Some(buffer.as_view())],
            Buffers::Separate { send, recv } => [Some(*send), Some(recv.as_view())],
            Buffers::SendOnly(send) => [Some(*send), None],
        },
        Call::Broadcast { buffer, .. } => [None, Some(buffer.as_view())],
        _ => [None, None],
    }
}

/// Returns whether a call has this operator, with a factor of the same bits: a factor of -0 gives
/// other results than 0. Operators are not copied, because that takes a measurable part of the time
/// of a small call.
#[inline(always)]
fn has_operator(call: &Call<'_>, expected: Option<&ReduceOp>) -> bool {
    let op = match call {
        Call::AllReduce { op, .. }
        | Call::Reduce { op, .. }
        | Call::ReduceScatter { op, .. }
        | Call::Scan { op, .. }
        | Call::Exscan { op, .. } => op,
        _ => return expected.is_none(),
    };
    match (op, expected) {
        (ReduceOp::PreMulSum(factor), Some(ReduceOp::PreMulSum(last))) => factor.to_bits() == last.to_bits(),
        (op, expected) => Some(op) == expected,
    }
}

#[inline(always)]
const fn bytes(view: &HostView<'_>) -> usize {
    view.bytes().len()
}

#[cfg(test)]
mod tests {
    use comm_core::{Accumulate, HostViewMut, Membership, ReduceOrder};

    use super::*;

    const SUM: ReduceOp = ReduceOp::Sum;

    fn group() -> Group {
        Group::new(GroupId::WORLD, Membership { rank: 1, size: 2 }).unwrap()
    }

    fn separate<'a, T: comm_core::Element>(send: &'a [T], recv: &'a mut [T]) -> Buffers<'a> {
        Buffers::Separate { send: HostView::new(send), recv: HostViewMut::new(recv) }
    }

    fn in_place<T: comm_core::Element>(buffer: &mut [T]) -> Buffers<'_> {
        Buffers::InPlace(HostViewMut::new(buffer))
    }

    const fn all_reduce(buffers: Buffers<'_>, op: ReduceOp) -> Call<'_> {
        Call::AllReduce { buffers, op }
    }

    const fn scatter(buffers: Buffers<'_>) -> Call<'_> {
        Call::Scatter { root: 0, buffers, counts: Counts::Equal }
    }

    /// Passes calls to a function, with their options. Each two differ in an argument.
    fn each_call(mut use_call: impl FnMut(Call<'_>, &CallOptions)) {
        let (none, equal) = (&CallOptions::default(), Counts::Equal);
        let ([floats, ints], [f, i]) = (&mut [[0.0_f32; 4]; 2], &mut [[0_i32; 4]; 2]);
        use_call(Call::Barrier, none);
        use_call(Call::MonitoredBarrier, none);
        use_call(Call::Broadcast { root: 0, buffer: HostViewMut::new(floats) }, none);
        use_call(Call::Broadcast { root: 1, buffer: HostViewMut::new(floats) }, none);
        use_call(Call::Broadcast { root: 0, buffer: HostViewMut::new(&mut floats[1..]) }, none);
        use_call(Call::Broadcast { root: 0, buffer: HostViewMut::new(f) }, none);
        use_call(all_reduce(in_place(floats), SUM), none);
        use_call(all_reduce(in_place(f), SUM), none);
        use_call(all_reduce(in_place(floats), ReduceOp::Max), none);
        use_call(all_reduce(in_place(floats), ReduceOp::PreMulSum(0.5)), none);
        use_call(all_reduce(in_place(floats), ReduceOp::PreMulSum(0.0)), none);
        use_call(all_reduce(in_place(floats), ReduceOp::PreMulSum(-0.0)), none);
        use_call(all_reduce(separate(floats, ints), SUM), none);
        use_call(all_reduce(separate(f, i), SUM), none);
        use_call(Call::Scan { buffers: separate(floats, ints), op: SUM }, none);
        use_call(Call::Exscan { buffers: separate(floats, ints), op: SUM }, none);
        use_call(Call::Reduce { root: 0, buffers: in_place(floats), op: SUM }, none);
        use_call(Call::Reduce { root: 0, buffers: Buffers::SendOnly(HostView::new(floats)), op: SUM }, none);
        use_call(Call::ReduceScatter { buffers: in_place(floats), counts: equal, op: SUM }, none);
        use_call(
            Call::ReduceScatter { buffers: separate(floats, &mut ints[2..]), counts: equal, op: SUM },
            none,
        );
        use_call(Call::AllGather { buffers: in_place(floats), counts: equal }, none);
        use_call(Call::AllGather { buffers: separate(&ints[2..], floats), counts: equal }, none);
        use_call(Call::AllToAll { buffers: separate(floats, ints), send: equal, recv: equal }, none);
        use_call(Call::Gather { root: 0, buffers: separate(floats, ints), counts: equal }, none);
        use_call(Call::Gather { root: 0, buffers: separate(floats, &mut []), counts: equal }, none);
        use_call(scatter(separate(&[], ints)), none);
        use_call(scatter(in_place(ints)), none);
        let options = CallOptions::default;
        for options in [
            options().extra_fingerprint(7),
            options().order(ReduceOrder::Deterministic),
            options().accumulate(Accumulate::F32),
            options().algorithm("linear"),
            options().algorithm("direct"),
        ] {
            use_call(all_reduce(in_place(floats), SUM), &options);
        }
    }

    #[test]
    fn a_call_repeats_another_one_only_if_all_arguments_are_equal() {
        let mut last = LastCall::none(GroupId::WORLD);
        let mut checked = Vec::new();
        each_call(|call, options| {
            assert!(!last.is_repeated_by(&call, options));
            last = last.next(&call, options, group()).unwrap();
            checked.push(last.next(&call, options, group()).unwrap());
        });
        for (at, last) in checked.iter().enumerate() {
            let mut repeated = Vec::new();
            each_call(|call, options| repeated.push(last.is_repeated_by(&call, options)));
            let expected: Vec<bool> = (0..checked.len()).map(|other| other == at).collect();
            assert_eq!(repeated, expected, "{}", last.signature);
        }
    }

    #[test]
    fn calls_with_lists_of_counts_and_of_two_types_repeat_none() {
        let (floats, ints) = (&[0.0_f32; 4], &mut [0_i32; 4]);
        let counts = Counts::PerRank(&[1, 4]);
        let gather = || Call::Gather { root: 0, buffers: Buffers::SendOnly(HostView::new(floats)), counts };
        let options = CallOptions::default();
        let last = LastCall::none(GroupId::WORLD).next(&gather(), &options, group()).unwrap();
        assert!(!last.is_repeated_by(&gather(), &options));
        // The send buffer of a rank that is not the root is ignored.
        let mixed = Buffers::Separate { send: HostView::new(floats), recv: HostViewMut::new(ints) };
        let last = LastCall::none(GroupId::WORLD).next(&scatter(mixed), &options, group()).unwrap();
        let mixed = Buffers::Separate { send: HostView::new(floats), recv: HostViewMut::new(ints) };
        assert!(!last.is_repeated_by(&scatter(mixed), &options));
    }
}
