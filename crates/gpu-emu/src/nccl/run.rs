//! Runs operations when their stream reaches them.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use nccl_sys::ncclResult_t;

use crate::device::memory::{AccessError, POISON};
use crate::device::{Device, access};
use crate::driver::CuError;
use crate::injection::{self, InjectedFault};
use crate::record;
use crate::settings::{self, Setting};

use super::communicator::{Communicator, Link};
use super::failure::Failure;
use super::mailbox::{Message, Waiting};
use super::operation::{Factor, Kind, Operation};
use super::reduction::{Contribution, reduce};
use super::wire::{Channel, Header, Shape};

/// The reason why an operation fails.
enum OperationError {
    Access(AccessError),
    Failure(Failure),
}

impl From<AccessError> for OperationError {
    fn from(error: AccessError) -> Self {
        Self::Access(error)
    }
}

impl From<Failure> for OperationError {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

/// Runs the operations of one group together: all of them send before any of them waits.
pub(super) fn run(communicator: &Communicator, operations: &[Operation], device: &Arc<Device>) {
    let Ok(link) = communicator.link() else { return };
    match attempt(communicator, link, operations) {
        Ok(()) => {}
        Err(OperationError::Access(error)) => {
            communicator.fail(ncclResult_t::ncclUnhandledCudaError);
            device.fail(CuError::ILLEGAL_ADDRESS, &format!("NCCL: {error}"));
        }
        Err(OperationError::Failure(failure)) => {
            if communicator.running().is_ok() {
                communicator.fail(failure.code);
                block_until_abort(communicator, device);
            }
            // The output must not look like a result.
            for operation in operations {
                let _output_is_freed = poison_output(operation, link);
            }
        }
    }
}

fn attempt(communicator: &Communicator, link: &Link, operations: &[Operation]) -> Result<(), OperationError> {
    let mut wrong = false;
    if has_overlapping_messages(operations) {
        let words = "NCCL: a message is received into memory that the same group sends";
        record::fault(Some(communicator.device.ordinal), words);
    }
    for operation in operations {
        match injection::fault(communicator.device.ordinal) {
            Some(InjectedFault::Hang) => return Err(wait_for_abort(communicator)),
            Some(InjectedFault::AsyncError(code)) => return Err(Failure::new(code, "injected").into()),
            Some(InjectedFault::WrongBit) => {
                wrong = true;
                send(link, operation)?;
            }
            None => send(link, operation)?,
        }
    }
    for operation in operations {
        receive(communicator, link, operation, wrong)?;
    }
    for operation in operations.iter().filter(|operation| operation.kind == Kind::Send) {
        let place = link.place(Channel::Receipt, operation.sequence);
        link.mesh.mailbox.take(link.members[operation.root], place, &|| communicator.running())?;
    }
    Ok(())
}

/// Returns whether a received message overlaps one that is sent. NCCL may overwrite the latter
/// before it is sent. The emulator sends everything before it receives, so the error would go
/// unnoticed.
fn has_overlapping_messages(operations: &[Operation]) -> bool {
    let of_kind =
        |kind| operations.iter().filter(move |operation| operation.kind == kind && operation.bytes() > 0);
    of_kind(Kind::Send).any(|send| {
        let sent_end = send.input.saturating_add(send.bytes() as u64);
        of_kind(Kind::Recv).any(|recv| {
            let received_end = recv.output.saturating_add(recv.bytes() as u64);
            send.input < received_end && recv.output < sent_end
        })
    })
}

/// Waits until the communicator is aborted.
fn block_until_abort(communicator: &Communicator, device: &Device) {
    let _seen = Waiting::begin(format!("for an abort on device {}", device.ordinal));
    while communicator.running().is_ok() {
        thread::sleep(Duration::from_millis(1));
    }
}

fn wait_for_abort(communicator: &Communicator) -> OperationError {
    block_until_abort(communicator, &communicator.device);
    Failure::aborted().into()
}

fn send(link: &Link, operation: &Operation) -> Result<(), OperationError> {
    let factor = match operation.factor {
        Factor::Value(value) => value,
        Factor::At(address) => {
            let mut value = [0; 8];
            let size = operation.element.size();
            value[..size].copy_from_slice(&access::read(address, size)?);
            value
        }
    };
    let (channel, shape) = (channel_of(operation.kind), operation.shape());
    let header = Header { place: link.place(channel, operation.sequence), shape, factor, length: 0 };
    let bytes = operation.bytes();
    let targets: Vec<(usize, usize)> = match operation.kind {
        Kind::Send => vec![(operation.root, 0)],
        kind => (0..link.members.len())
            .filter_map(|to| Some((to, kind.block(link.rank, to, operation.root)?)))
            .collect(),
    };
    for (to, block) in targets {
        let payload = access::read(operation.input + (block * bytes) as u64, bytes)?;
        link.mesh.send(link.members[to], header, payload);
    }
    Ok(())
}

fn channel_of(kind: Kind) -> Channel {
    if kind.is_collective() { Channel::Collective } else { Channel::PointToPoint }
}

fn receive(
    communicator: &Communicator,
    link: &Link,
    operation: &Operation,
    wrong: bool,
) -> Result<(), OperationError> {
    let sources: Vec<usize> = match operation.kind {
        Kind::Recv => vec![operation.root],
        kind => (0..link.members.len())
            .filter(|from| kind.block(*from, link.rank, operation.root).is_some())
            .collect(),
    };
    if sources.is_empty() {
        return Ok(());
    }
    let mut parts = Vec::new();
    for source in sources {
        let message = take(communicator, link, operation, source)?;
        parts.push(Contribution { bytes: message.payload, factor: message.header.factor });
    }
    let mut result: Vec<u8> = if operation.kind.reduces() {
        reduce(operation.element, operation.reduction, &parts)
    } else {
        parts.into_iter().flat_map(|part| part.bytes).collect()
    };
    if let Some(last) = result.last_mut().filter(|_| wrong) {
        *last ^= 1;
    }
    access::write(operation.output, &result)?;
    if operation.kind == Kind::Recv {
        let place = link.place(Channel::Receipt, operation.sequence);
        let receipt = Header { place, shape: Shape::default(), factor: [0; 8], length: 0 };
        link.mesh.send(link.members[operation.root], receipt, Vec::new());
    }
    Ok(())
}

/// Returns the message of rank `source` for this operation. If it belongs to a different operation,
/// this hangs by default, which is the best that NCCL does.
fn take(
    communicator: &Communicator,
    link: &Link,
    operation: &Operation,
    source: usize,
) -> Result<Message, OperationError> {
    let place = link.place(channel_of(operation.kind), operation.sequence);
    let message = link.mesh.mailbox.take(link.members[source], place, &|| communicator.running())?;
    if message.header.shape == operation.shape() {
        return Ok(message);
    }
    let words = format!(
        "rank {} calls {:?} with {} elements where rank {source} calls {:?}",
        link.rank, operation.kind, operation.count, message.header.shape
    );
    record::fault(Some(communicator.device.ordinal), &words);
    if settings::is_on(Setting::MismatchFails) {
        Err(Failure::usage(words).into())
    } else {
        Err(wait_for_abort(communicator))
    }
}

fn poison_output(operation: &Operation, link: &Link) -> Result<(), AccessError> {
    let blocks = match operation.kind {
        Kind::Send => 0,
        Kind::AllGather | Kind::AlltoAll => link.members.len(),
        Kind::Gather if link.rank == operation.root => link.members.len(),
        Kind::Gather => 0,
        Kind::Reduce if link.rank != operation.root => 0,
        _ => 1,
    };
    access::write(operation.output, &vec![POISON; blocks * operation.bytes()])
}
