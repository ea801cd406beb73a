//! The calls that allocate and register memory.

use std::sync::Arc;

use nccl_sys::{ncclComm_t, ncclResult_t};

use crate::device::memory::Owner;
use crate::device::{self, access};
use crate::driver::{CuError, current_ordinal};
use crate::ffi::Out;
use crate::handles::{Handle, Handles};
use crate::nccl::communicator;
use crate::nccl::failure::Failure;

use super::{answer, current_device, device_of, given, since};

const MEMORY_SINCE: u64 = 21_900;

/// A registration of memory.
#[derive(Debug)]
struct Registration {
    device: usize,
}

static REGISTRATIONS: Handles<Registration> = Handles::new("registration", 0x4E);

#[unsafe(no_mangle)]
extern "C" fn ncclMemAlloc(address: Out<u64>, length: usize) -> ncclResult_t {
    answer("ncclMemAlloc", current_ordinal(), &format_args!("bytes={length}"), || {
        since(MEMORY_SINCE, "ncclMemAlloc")?;
        let device = current_device()?;
        let base = device.memory.allocate(length, Owner::Nccl).ok_or_else(|| {
            Failure::new(ncclResult_t::ncclUnhandledCudaError, "Cuda failure 'out of memory'")
        })?;
        device.memory.begin(base);
        given(address.put(base))
    })
}

#[unsafe(no_mangle)]
extern "C" fn ncclMemFree(address: u64) -> ncclResult_t {
    answer("ncclMemFree", current_ordinal(), &format_args!("address={address:#x}"), || {
        since(MEMORY_SINCE, "ncclMemFree")?;
        let owner = device::of_address(address).ok_or_else(|| Failure::argument("not a device address"))?;
        owner.synchronize();
        owner.memory.free(address, Owner::Nccl).map_err(|error| Failure::argument(error.to_string()))
    })
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommRegister(
    handle: ncclComm_t,
    address: u64,
    length: usize,
    registration: Out<Handle>,
) -> ncclResult_t {
    let device = device_of(handle);
    let arguments = format!("device={device} address={address:#x} bytes={length}");
    answer("ncclCommRegister", device, &arguments, || {
        since(MEMORY_SINCE, "ncclCommRegister")?;
        communicator::of_handle(handle)?;
        access::check(address, length).map_err(|error| Failure::argument(error.to_string()))?;
        let owner = device::of_address(address).map(|owner| owner.memory.owner(address));
        if matches!(owner, Some(Ok(Owner::Pool))) {
            return Err(CuError::INVALID_VALUE.into());
        }
        given(registration.put(REGISTRATIONS.insert(Arc::new(Registration { device }))))
    })
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommDeregister(handle: ncclComm_t, registration: Handle) -> ncclResult_t {
    let device = device_of(handle);
    answer("ncclCommDeregister", device, &format_args!("device={device}"), || {
        since(MEMORY_SINCE, "ncclCommDeregister")?;
        communicator::of_handle(handle)?;
        match REGISTRATIONS.remove(registration) {
            Some(known) if known.device == device => Ok(()),
            _ => Err(Failure::argument("the handle is not a registration of this communicator")),
        }
    })
}
