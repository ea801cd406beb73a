//! The calls for collectives and for messages between two ranks.

use nccl_sys::{ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclResult_t};

use crate::driver;
use crate::handles::Handle;
use crate::nccl::communicator::{self, Communicator};
use crate::nccl::element::Element;
use crate::nccl::failure::{Failure, Outcome};
use crate::nccl::group::{self, Job};
use crate::nccl::operation::{Factor, Kind, Operation};
use crate::nccl::reduction::Reduction;
use crate::record;

use super::{answer, device_of, since};

/// A device address.
type Address = u64;

/// The unchecked arguments of a call.
#[derive(Debug, Clone, Copy)]
struct Request {
    name: &'static str,
    kind: Kind,
    input: Address,
    output: Address,
    count: usize,
    element: ncclDataType_t,
    operator: ncclRedOp_t,
    root: i32,
    communicator: ncclComm_t,
    stream: Handle,
}

/// The version that introduced all-to-all, gather and scatter.
const MORE_SINCE: u64 = 22_803;

impl Request {
    fn submit(self) -> ncclResult_t {
        let Self { input, output, count, element, operator, root, stream, .. } = self;
        let device = device_of(self.communicator);
        let arguments = format!(
            "device={device} input={input:#x} output={output:#x} count={count} type={} op={} root={root} stream={stream:p}",
            element.0, operator.0
        );
        answer(self.name, device, &arguments, || {
            if matches!(self.kind, Kind::AlltoAll | Kind::Gather | Kind::Scatter) {
                since(MORE_SINCE, self.name)?;
            }
            match self.check() {
                // Without data, NCCL returns immediately, and no rank waits for another.
                Ok(None) => Ok(()),
                Ok(Some(job)) => group::submit(Ok(job)),
                Err(failure) => group::submit(Err(failure)),
            }
        })
    }

    fn check(self) -> Outcome<Option<Job>> {
        let communicator = communicator::of_handle(self.communicator)?;
        let link = communicator.ready()?;
        communicator.device.healthy()?;
        let element = Element::new(self.element)?;
        let (reduction, factor) = self.reduction(&communicator, element)?;
        let root = usize::try_from(self.root).ok().filter(|root| *root < link.members.len());
        let root = root.ok_or_else(|| Failure::argument(format!("invalid root {}", self.root)))?;
        if self.count == 0 {
            return Ok(None);
        }
        let stream = driver::stream_on(self.stream, &communicator.device)?;
        if stream.device.ordinal != communicator.device.ordinal {
            let words = format!("{}: the stream is of device {}", self.name, stream.device.ordinal);
            record::fault(Some(communicator.device.ordinal), &words);
            return Err(Failure::new(ncclResult_t::ncclUnhandledCudaError, words));
        }
        let operation = Operation {
            kind: self.kind,
            input: self.input,
            output: self.output,
            count: self.count,
            element,
            reduction,
            factor,
            root,
            sequence: 0,
        };
        Ok(Some(Job::Launch(communicator.clone(), stream, operation)))
    }

    fn reduction(self, communicator: &Communicator, element: Element) -> Outcome<(Reduction, Factor)> {
        let none = Factor::Value([0; 8]);
        let built_in = match self.operator {
            ncclRedOp_t::ncclSum => Reduction::Sum,
            ncclRedOp_t::ncclProd => Reduction::Prod,
            ncclRedOp_t::ncclMax => Reduction::Max,
            ncclRedOp_t::ncclMin => Reduction::Min,
            ncclRedOp_t::ncclAvg => Reduction::Avg,
            ncclRedOp_t(number) => {
                return match communicator.factor(number) {
                    Some((its, factor)) if its == element => Ok((Reduction::PreMulSum, factor)),
                    Some(_) => Err(Failure::argument("the operator was made for another type")),
                    None => Err(Failure::argument(format!("invalid operator {number}"))),
                };
            }
        };
        Ok((built_in, none))
    }
}

/// Creates a request with the arguments that are common to all calls.
fn request(
    name: &'static str,
    kind: Kind,
    (count, element): (usize, ncclDataType_t),
    (communicator, stream): (ncclComm_t, Handle),
) -> Request {
    let (operator, root) = (ncclRedOp_t::ncclSum, 0);
    Request { name, kind, input: 0, output: 0, count, element, operator, root, communicator, stream }
}

/// Defines calls that take addresses, a count, a type, further arguments, a communicator and a
/// stream.
macro_rules! calls {
    ($($name:ident = $kind:ident($($address:ident),+; $($argument:ident: $type:ty),*);)+) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(
            $($address: Address,)+
            count: usize,
            element: ncclDataType_t,
            $($argument: $type,)*
            communicator: ncclComm_t,
            stream: Handle,
        ) -> ncclResult_t {
            let rest = request(stringify!($name), Kind::$kind, (count, element), (communicator, stream));
            Request { $($address,)+ $($argument,)* ..rest }.submit()
        }
    )+};
}

calls! {
    ncclAllReduce = AllReduce(input, output; operator: ncclRedOp_t);
    ncclReduce = Reduce(input, output; operator: ncclRedOp_t, root: i32);
    ncclReduceScatter = ReduceScatter(input, output; operator: ncclRedOp_t);
    ncclBroadcast = Broadcast(input, output; root: i32);
    ncclAllGather = AllGather(input, output;);
    ncclAlltoAll = AlltoAll(input, output;);
    ncclGather = Gather(input, output; root: i32);
    ncclScatter = Scatter(input, output; root: i32);
    ncclSend = Send(input; root: i32);
    ncclRecv = Recv(output; root: i32);
}

#[unsafe(no_mangle)]
extern "C" fn ncclBcast(
    buffer: Address,
    count: usize,
    element: ncclDataType_t,
    root: i32,
    communicator: ncclComm_t,
    stream: Handle,
) -> ncclResult_t {
    let rest = request("ncclBcast", Kind::Broadcast, (count, element), (communicator, stream));
    Request { input: buffer, output: buffer, root, ..rest }.submit()
}
