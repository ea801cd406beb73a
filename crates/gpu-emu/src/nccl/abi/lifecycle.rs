//! The calls that create and end communicators.

use std::sync::Arc;

use nccl_sys::{
    NCCL_CONFIG_INITIALIZER, NCCL_CONFIG_UNDEF_INT, ncclComm_t, ncclConfig_t, ncclResult_t, ncclUniqueId,
};

use crate::device::{self, Device};
use crate::driver::current_ordinal;
use crate::ffi::{In, Out, Text};
use crate::nccl::bootstrap::{self, Hello, Id};
use crate::nccl::communicator::{self, Communicator, Link};
use crate::nccl::failure::{Failure, Outcome};
use crate::nccl::group::{self, Job};

use super::{answer, current_device, device_of, given};

#[unsafe(no_mangle)]
extern "C" fn ncclGetUniqueId(id: Out<ncclUniqueId>) -> ncclResult_t {
    answer("ncclGetUniqueId", current_ordinal(), &"", || given(id.put(Id::fresh().to_nccl())))
}

/// The fields of a configuration that are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Config {
    pub(super) blocking: bool,
}

/// The fields that every version has: size in bytes, magic number, version, and whether calls
/// block.
type Head = (usize, u32, u32, i32);

/// Reads the fields of a configuration that its size covers. Also returns them as text for the
/// record.
pub(super) fn read_config(config: &In<ncclConfig_t>, default: Config) -> Outcome<(Config, String)> {
    let Some((size, magic, version, blocking)) = config.cast::<[u8; 24]>().get(0).map(head) else {
        return Ok((default, String::new()));
    };
    if magic != NCCL_CONFIG_INITIALIZER.magic {
        return Err(Failure::argument("ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER"));
    }
    let blocking = match blocking {
        NCCL_CONFIG_UNDEF_INT => default.blocking,
        0 => false,
        1 => true,
        other => return Err(Failure::argument(format!("Invalid config blocking attribute value {other}"))),
    };
    let mut text = format!("blocking={} version={version}", u8::from(blocking));
    if size >= size_of::<ncclConfig_t>()
        && let Some(all) = config.get(0)
    {
        // SAFETY: the caller passed a complete configuration, in which this is NULL or a string.
        let name = unsafe { Text::listed(all.commName) }.read().unwrap_or_default();
        text += &format!(
            " min_ctas={} max_ctas={} cluster={} split_share={} name={name}",
            all.minCTAs, all.maxCTAs, all.cgaClusterSize, all.splitShare
        );
    }
    Ok((Config { blocking }, text))
}

fn head(bytes: [u8; 24]) -> Head {
    let word = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let [a, b, c, d, e, f, g, h, ..] = bytes;
    (usize::from_ne_bytes([a, b, c, d, e, f, g, h]), word(8), word(12), word(16).cast_signed())
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommInitRank(
    out: Out<ncclComm_t>,
    world: i32,
    id: ncclUniqueId,
    rank: i32,
) -> ncclResult_t {
    let device = current_ordinal();
    answer("ncclCommInitRank", device, &format_args!("device={device} world={world} rank={rank}"), || {
        initialize(&out, Member { world, rank, id, device: current_device()? }, Config { blocking: true })
    })
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommInitRankConfig(
    out: Out<ncclComm_t>,
    world: i32,
    id: ncclUniqueId,
    rank: i32,
    config: In<ncclConfig_t>,
) -> ncclResult_t {
    let device = current_ordinal();
    let read = read_config(&config, Config { blocking: true });
    let fields = read.as_ref().map_or("", |(_, fields)| fields.as_str());
    let arguments = format!("device={device} world={world} rank={rank} {fields}");
    answer("ncclCommInitRankConfig", device, &arguments, || {
        initialize(&out, Member { world, rank, id, device: current_device()? }, read?.0)
    })
}

/// Creates a communicator for each listed device, or for the first `count` devices without a list.
#[unsafe(no_mangle)]
extern "C" fn ncclCommInitAll(outs: Out<ncclComm_t>, count: i32, devices: In<i32>) -> ncclResult_t {
    let arguments = format!("count={count}");
    answer("ncclCommInitAll", current_ordinal(), &arguments, || {
        let id = Id::fresh().to_nccl();
        group::start();
        let mut begun = Ok(());
        for rank in 0..count {
            let ordinal = devices.get(usize::try_from(rank).unwrap_or(0)).unwrap_or(rank);
            let device = usize::try_from(ordinal).ok().and_then(device::get);
            let member = device
                .ok_or_else(|| Failure::argument(format!("invalid device {ordinal}")))
                .map(|device| Member { world: count, rank, id, device });
            let place = outs.element(usize::try_from(rank).unwrap_or(0));
            begun =
                begun.and(member.and_then(|member| initialize(&place, member, Config { blocking: true })));
        }
        let ended = group::end();
        begun.and(ended)
    })
}

struct Member {
    world: i32,
    rank: i32,
    id: ncclUniqueId,
    device: Arc<Device>,
}

fn initialize(out: &Out<ncclComm_t>, member: Member, config: Config) -> Outcome {
    let world = u32::try_from(member.world).ok().filter(|world| *world > 0);
    let world = world.ok_or_else(|| Failure::argument(format!("Invalid rank count : {}", member.world)))?;
    let rank = u32::try_from(member.rank).ok().filter(|rank| *rank < world);
    let rank = rank.ok_or_else(|| Failure::argument(format!("Invalid rank requested : {}", member.rank)))?;
    let id = Id::from_nccl(&member.id).ok_or_else(|| Failure::argument("the unique id is invalid"))?;
    let physical = u32::try_from(member.device.physical).unwrap_or(u32::MAX);
    let communicator = Communicator::new(member.device, config.blocking);
    let itself = communicator.clone();
    let connect = move || {
        let mesh = bootstrap::connect(id, Hello::new(rank, world, physical), &|| itself.running())?;
        Ok(Some(Link { mesh: mesh.into(), context: 0, members: (0..world).collect(), rank: rank as usize }))
    };
    create(out, communicator, Box::new(connect))
}

/// Writes a handle, and connects its communicator. If that fails immediately, there is no handle.
fn create(out: &Out<ncclComm_t>, communicator: Arc<Communicator>, connect: group::Connect) -> Outcome {
    let blocking = communicator.blocking;
    let handle = communicator::insert(communicator.clone());
    given(out.put(handle))?;
    let outcome = group::submit(Ok(Job::Connect(communicator, connect)));
    if blocking && outcome.is_err() {
        communicator::remove(handle)?;
        given(out.put(ncclComm_t::NULL))?;
    }
    outcome
}

/// Waits for all enqueued operations. No operation may be enqueued afterwards.
#[unsafe(no_mangle)]
extern "C" fn ncclCommFinalize(handle: ncclComm_t) -> ncclResult_t {
    let device = device_of(handle);
    answer("ncclCommFinalize", device, &format_args!("device={device}"), || {
        let communicator = communicator::of_handle(handle)?;
        communicator.ready()?;
        communicator.finalize();
        if communicator.blocking {
            communicator.drain();
            return Ok(());
        }
        let busy = communicator.busy();
        let waiting = std::thread::Builder::new().name("gpu-emu finalize".to_owned());
        waiting.spawn(move || {
            communicator.drain();
            drop(busy);
        })?;
        Err(Failure::in_progress())
    })
}

/// Ends a communicator after all enqueued operations.
#[unsafe(no_mangle)]
extern "C" fn ncclCommDestroy(handle: ncclComm_t) -> ncclResult_t {
    end("ncclCommDestroy", handle, |communicator| {
        communicator.wait_until_idle();
        communicator.drain();
    })
}

/// Ends a communicator immediately. Enqueued operations end without a result.
#[unsafe(no_mangle)]
extern "C" fn ncclCommAbort(handle: ncclComm_t) -> ncclResult_t {
    end("ncclCommAbort", handle, |communicator| {
        communicator.abort();
        communicator.wait_until_idle();
    })
}

/// Stops a communicator and frees its handle. As in NCCL, a null handle is ignored.
fn end(name: &str, handle: ncclComm_t, stop: impl FnOnce(&Communicator)) -> ncclResult_t {
    let device = device_of(handle);
    answer(name, device, &format_args!("device={device}"), || {
        if handle.is_null() {
            return Ok(());
        }
        stop(&*communicator::of_handle(handle)?);
        communicator::remove(handle).map(|_| ())
    })
}
