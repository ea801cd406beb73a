//! The calls for sums with a factor per rank.

use nccl_sys::{ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclResult_t, ncclScalarResidence_t};

use crate::ffi::{HostMemory, Out};
use crate::nccl::communicator;
use crate::nccl::element::Element;
use crate::nccl::failure::Failure;
use crate::nccl::operation::Factor;

use super::{answer, device_of, given};

#[unsafe(no_mangle)]
extern "C" fn ncclRedOpCreatePreMulSum(
    operator: Out<ncclRedOp_t>,
    factor: HostMemory,
    element: ncclDataType_t,
    residence: ncclScalarResidence_t,
    handle: ncclComm_t,
) -> ncclResult_t {
    let device = device_of(handle);
    let arguments = format!("device={device} type={} residence={}", element.0, residence.0);
    answer("ncclRedOpCreatePreMulSum", device, &arguments, || {
        let communicator = communicator::of_handle(handle)?;
        let element = Element::new(element)?;
        if factor.is_null() {
            return Err(Failure::argument("the factor is NULL"));
        }
        let factor = match residence {
            ncclScalarResidence_t::ncclScalarHostImmediate => {
                let mut value = [0; 8];
                // SAFETY: the caller passed the address of one element on the host.
                value[..element.size()].copy_from_slice(&unsafe { factor.read(element.size()) });
                Factor::Value(value)
            }
            ncclScalarResidence_t::ncclScalarDevice => Factor::At(factor.address() as u64),
            other => return Err(Failure::argument(format!("invalid residence {}", other.0))),
        };
        given(operator.put(ncclRedOp_t(communicator.keep_factor(element, factor))))
    })
}

#[unsafe(no_mangle)]
extern "C" fn ncclRedOpDestroy(operator: ncclRedOp_t, handle: ncclComm_t) -> ncclResult_t {
    let device = device_of(handle);
    answer("ncclRedOpDestroy", device, &format_args!("device={device}"), || {
        let known = communicator::of_handle(handle)?.forget_factor(operator.0);
        known.then_some(()).ok_or_else(|| Failure::argument("operator is not one of this communicator"))
    })
}
