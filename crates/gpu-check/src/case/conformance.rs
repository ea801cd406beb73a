//! Cases of the conformance suite for communicators, on device buffers.

use comm_core::{Call, Collective, Communicator, DType, Element, Error, Groups, ReduceOp, Result};
use comm_nccl::{Cuda, DeviceBuffer, DeviceCommunicator};
use comm_sim::communicator_conformance::{self as suite, Features, Member};
use comm_sim::exact::{self, F8E4M3};

use crate::context::{RankContext, in_place, separate};
use crate::error::{CaseError, During, Outcome, same_bits};

/// A rank of a device communicator.
pub(super) struct DeviceMember<'a> {
    ctx: &'a RankContext,
    communicator: &'a dyn DeviceCommunicator,
    pub(super) features: Features,
}

impl<'a> DeviceMember<'a> {
    /// Creates a member with NCCL's features, and with lengths around the size of a thread block.
    pub(super) fn new(ctx: &'a RankContext, communicator: &'a dyn DeviceCommunicator) -> Self {
        let mut features = Features::of_nccl();
        features.options = ctx.options();
        // Each operator and type is tested with at least one of the lengths, and each length with
        // many of them.
        (features.lengths, features.step) = (|_| vec![0, 1, 1023, 1024, 1025], 3);
        Self { ctx, communicator, features }
    }
}

impl Member for DeviceMember<'_> {
    type Memory = Cuda;
    type Buffer<T: Element> = DeviceBuffer<T>;

    fn communicator(&self) -> &dyn Communicator<Cuda> {
        self.communicator
    }

    fn features(&self) -> Features {
        self.features.clone()
    }

    fn groups(&self) -> Option<&dyn Groups<Cuda>> {
        Some(self.communicator)
    }

    fn buffer<T: Element>(&self, elements: &[T]) -> Result<DeviceBuffer<T>> {
        self.ctx.buffer(elements)
    }

    fn read<T: Element>(&self, buffer: &DeviceBuffer<T>) -> Result<Vec<T>> {
        buffer.to_vec()
    }

    fn synchronize(&self) -> Result<()> {
        self.communicator.synchronize()
    }
}

/// Checks one collective of NCCL.
pub(super) fn collective(ctx: &RankContext, collective: Collective) -> Outcome {
    let comm = ctx.connect()?;
    let mut member = DeviceMember::new(ctx, &comm);
    // The 8-bit floats have a separate case.
    member.features.reduces = |op, dtype| (Features::of_nccl().reduces)(op, dtype) && !is_eight_bits(dtype);
    suite::check(&member, collective)?;
    Ok(comm.finalize(ctx.spec.call_timeout)?)
}

fn is_eight_bits(dtype: DType) -> bool {
    dtype.is_float() && dtype.size() == 1
}

pub(super) fn eight_bits(ctx: &RankContext) -> Outcome {
    let comm = ctx.connect()?;
    let (mut buffer, op) = (ctx.buffer(&[F8E4M3::ONE])?, ReduceOp::Max);
    match comm.run(Call::AllReduce { buffers: in_place(&mut buffer), op }, &ctx.options()) {
        // The library is too old, or the device does not support it.
        Err(error @ Error::Invalid(_)) => return Err(CaseError::NotRun(error.to_string())),
        outcome => outcome?,
    }
    let mut member = DeviceMember::new(ctx, &comm);
    member.features.reduces =
        |op, dtype| is_eight_bits(dtype) && matches!(op, ReduceOp::Sum | ReduceOp::Min | ReduceOp::Max);
    suite::check(&member, Collective::AllReduce)?;
    Ok(comm.finalize(ctx.spec.call_timeout)?)
}

/// Checks buffers that are large enough to be divided into chunks on every path between ranks.
pub(super) fn large(ctx: &RankContext) -> Outcome {
    let (comm, op) = (ctx.connect()?, ReduceOp::Sum);
    for count in [(4 << 20) - 1, (16 << 20) + 5] {
        let ours: Vec<f32> = exact::elements(0..count, |index| exact::number(ctx.rank, index));
        let wanted: Vec<f32> = exact::elements(0..count, |index| exact::reduced(op, ctx.size, index));
        let (mut buffer, mut recv) = (ctx.buffer(&ours)?, ctx.zeros(count)?);
        let what = format!("{count} x f32");
        comm.run(Call::AllReduce { buffers: separate(&buffer, &mut recv), op }, &ctx.options())?;
        same_bits("the receive buffer", &recv.to_vec()?, &wanted).during(&what)?;
        comm.run(Call::AllReduce { buffers: in_place(&mut buffer), op }, &ctx.options())?;
        same_bits("in place", &buffer.to_vec()?, &wanted).during(&what)?;
    }
    Ok(comm.finalize(ctx.spec.call_timeout)?)
}
