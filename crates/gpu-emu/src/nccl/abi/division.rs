//! The calls that create communicators from others.

use std::sync::Arc;

use nccl_sys::{NCCL_SHRINK_ABORT, NCCL_SHRINK_DEFAULT, ncclComm_t, ncclConfig_t, ncclResult_t};

use crate::ffi::{In, Out};
use crate::nccl::communicator::{self, Communicator, Link, exchange};
use crate::nccl::failure::{Failure, Outcome};
use crate::nccl::group::{self, Job};

use super::lifecycle::{Config, read_config};
use super::{answer, device_of, given, since};

/// The color of ranks that get no communicator.
const NO_COLOR: i32 = nccl_sys::NCCL_SPLIT_NOCOLOR;
const SHRINK_SINCE: u64 = 22_700;

#[unsafe(no_mangle)]
extern "C" fn ncclCommSplit(
    handle: ncclComm_t,
    color: i32,
    key: i32,
    out: Out<ncclComm_t>,
    config: In<ncclConfig_t>,
) -> ncclResult_t {
    let device = device_of(handle);
    answer("ncclCommSplit", device, &format_args!("device={device} color={color} key={key}"), || {
        let parent = communicator::of_handle(handle)?;
        let link = parent.ready()?.clone();
        if color < NO_COLOR {
            return Err(Failure::argument(format!("Invalid color {color}")));
        }
        let (config, _) = read_config(&config, Config { blocking: parent.blocking })?;
        let part = Communicator::new(parent.device.clone(), config.blocking);
        let number = parent.number_of_division();
        let (member, guard) = (part.clone(), parent.clone());
        let connect = move || split(&link, number, (color, key), &|| both_run(&member, &guard));
        create_part(&parent, (out, color != NO_COLOR), part, connect)
    })
}

/// Creates a communicator from another one, or takes part without getting one. As in NCCL, its
/// handle is NULL until the call has completed, and a non-blocking parent is in progress until
/// then.
fn create_part(
    parent: &Arc<Communicator>,
    (out, is_member): (Out<ncclComm_t>, bool),
    part: Arc<Communicator>,
    connect: impl FnOnce() -> Outcome<Option<Link>> + Send + 'static,
) -> Outcome {
    given(out.put(ncclComm_t::NULL))?;
    let busy = (!part.blocking).then(|| parent.busy());
    let handle = is_member.then(|| communicator::insert(part.clone()));
    let connect = move || {
        let _until_the_end = busy;
        let link = connect();
        given(handle.is_none_or(|handle| out.put(handle)))?;
        link
    };
    in_background(group::submit(Ok(Job::Connect(part, Box::new(connect)))))
}

/// As in NCCL, a call that continues in the background returns success, unlike all others.
fn in_background(outcome: Outcome) -> Outcome {
    match outcome {
        Err(failure) if failure.code == ncclResult_t::ncclInProgress => Ok(()),
        outcome => outcome,
    }
}

fn both_run(part: &Communicator, parent: &Communicator) -> Outcome {
    part.running()?;
    parent.running()
}

fn split(
    link: &Link,
    number: u64,
    (color, key): (i32, i32),
    stop: &dyn Fn() -> Outcome,
) -> Outcome<Option<Link>> {
    let own = [color.to_le_bytes(), key.to_le_bytes()].concat();
    let received = exchange(link, number, &own, stop)?;
    let mut members: Vec<(i32, usize)> = Vec::new();
    for (rank, bytes) in received.iter().enumerate() {
        let [a, b, c, d, e, f, g, h] = bytes[..] else {
            return Err(Failure::usage("ranks divide differently"));
        };
        if i32::from_le_bytes([a, b, c, d]) == color {
            members.push((i32::from_le_bytes([e, f, g, h]), rank));
        }
    }
    members.sort_unstable();
    let ranks: Vec<usize> = members.into_iter().map(|(_, rank)| rank).collect();
    Ok((color != NO_COLOR).then(|| part_of(link, &ranks, (number, color))).flatten())
}

/// Returns a link of some ranks of `link`, in this order; `None` if this rank is not among them.
fn part_of(link: &Link, ranks: &[usize], (number, color): (u64, i32)) -> Option<Link> {
    let rank = ranks.iter().position(|rank| *rank == link.rank)?;
    let members = ranks.iter().map(|rank| link.members[*rank]).collect();
    let parts = [link.context, number, u64::from(color.cast_unsigned())];
    Some(Link { mesh: link.mesh.clone(), context: mixed(&parts), members, rank })
}

/// Returns the FNV-1a hash of `parts`: a number that is equal on all members and differs between
/// communicators.
fn mixed(parts: &[u64]) -> u64 {
    let bytes = parts.iter().flat_map(|part| part.to_le_bytes());
    bytes.fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3))
}

/// The remaining ranks call this, and wait only for each other.
#[unsafe(no_mangle)]
extern "C" fn ncclCommShrink(
    handle: ncclComm_t,
    excluded: In<i32>,
    count: i32,
    out: Out<ncclComm_t>,
    config: In<ncclConfig_t>,
    flags: i32,
) -> ncclResult_t {
    let device = device_of(handle);
    let listed: Vec<i32> =
        (0..usize::try_from(count).unwrap_or(0)).filter_map(|index| excluded.get(index)).collect();
    let arguments = format!("device={device} excluded={listed:?} flags={flags}").replace(", ", ",");
    answer("ncclCommShrink", device, &arguments, || {
        since(SHRINK_SINCE, "ncclCommShrink")?;
        let parent = communicator::of_handle(handle)?;
        match flags {
            NCCL_SHRINK_DEFAULT => drop(parent.ready()?),
            NCCL_SHRINK_ABORT => parent.abort(),
            other => return Err(Failure::argument(format!("Invalid shrink flags {other}"))),
        }
        shrink(&parent, &listed, out, &config)
    })
}

fn shrink(
    parent: &Arc<Communicator>,
    excluded: &[i32],
    out: Out<ncclComm_t>,
    config: &In<ncclConfig_t>,
) -> Outcome {
    let link = parent.link()?;
    let world = link.members.len();
    let excluded: Vec<usize> = excluded.iter().filter_map(|rank| usize::try_from(*rank).ok()).collect();
    if excluded.is_empty() || excluded.iter().any(|rank| *rank >= world) {
        return Err(Failure::argument("Invalid list of ranks to exclude"));
    }
    let stay: Vec<usize> = (0..world).filter(|rank| !excluded.contains(rank)).collect();
    let rest = part_of(link, &stay, (parent.number_of_division(), i32::MAX));
    let rest = rest.ok_or_else(|| Failure::argument("a rank that is excluded calls"))?;
    let (config, _) = read_config(config, Config { blocking: parent.blocking })?;
    let communicator = Communicator::new(parent.device.clone(), config.blocking);
    let member = communicator.clone();
    // A parent that has failed was aborted before this call.
    let running = parent.running().is_ok().then(|| parent.clone());
    let connect = move || {
        let stop = || running.as_ref().map_or_else(|| member.running(), |parent| both_run(&member, parent));
        exchange(&rest, 0, &[], &stop)?;
        Ok(Some(rest))
    };
    create_part(parent, (out, true), communicator, connect)
}
