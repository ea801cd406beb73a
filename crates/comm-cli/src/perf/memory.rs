//! Whether what is asked for fits into memory, before the system starts to kill.

use comm::ring::Tuning;
use comm::ring::choose;

use super::buffers::Lengths;
use super::error::{PerfError, Result};
use super::host;
use super::operation::{Operation, Place};
use super::plan::Plan;

/// Refuses a plan whose buffers, on so many ranks of this host, need more than is left.
pub(crate) fn check(plan: &Plan, tuning: &Tuning, local_ranks: usize) -> Result<()> {
    let Some(available) = host::available_memory() else { return Ok(()) };
    plan.sizes.iter().try_for_each(|&size| fits(plan, tuning, size, local_ranks, available))
}

fn fits(plan: &Plan, tuning: &Tuning, size: usize, ranks: usize, available: usize) -> Result<()> {
    let needed = needed(plan, tuning, size)?.saturating_mul(ranks);
    if needed <= available { Ok(()) } else { Err(PerfError::Memory { size, ranks, needed, available }) }
}

/// The bytes that the rank which needs most has of its own and in the communicator.
fn needed(plan: &Plan, tuning: &Tuning, size: usize) -> Result<usize> {
    // A root has at least as much as any other.
    let Lengths { send, recv } = Lengths::of(plan, true, plan.count(size));
    let own = (send + recv) * plan.dtype.size();
    let choice = plan.choice(size, tuning)?;
    let params = choose::params(&plan.question(size), choice.segments, tuning);
    let slot = size.div_ceil(choice.algorithm.blocks(&params).max(1));
    let moved_away = if (plan.operation, plan.place) == (Operation::AllToAll, Place::In) { size } else { 0 };
    Ok(own.saturating_add((choice.algorithm.slots)(&params).saturating_mul(slot)).saturating_add(moved_away))
}

#[cfg(test)]
mod tests {
    use comm::ring::RingConfig;
    use comm::{DType, Link, LinkModel};

    use super::*;

    fn plan(operation: Operation, place: Place) -> Plan {
        let sizes = vec![1 << 20];
        let algorithm = None;
        Plan {
            operation,
            ranks: 4,
            dtype: DType::F32,
            op: None,
            root: 0,
            place,
            algorithm,
            alloc: false,
            sizes,
        }
    }

    #[test]
    fn both_buffers_and_scratch_are_counted() {
        let link = Link { latency: 1e-6, overhead: 0.0, per_byte: 1e-9 };
        let tuning = RingConfig::default().tuning(LinkModel::uniform(link, 0.0));
        let size = 1 << 20;
        assert_eq!(needed(&plan(Operation::AllGather, Place::Out), &tuning, size).unwrap(), size + size / 4);
        assert_eq!(needed(&plan(Operation::AllToAll, Place::In), &tuning, size).unwrap(), 2 * size);
        let doubling =
            Plan { algorithm: Some("recursive_doubling".into()), ..plan(Operation::AllReduce, Place::In) };
        assert_eq!(needed(&doubling, &tuning, size).unwrap(), 3 * size);
        assert!(fits(&doubling, &tuning, size, 4, 12 * size).is_ok());
        let error = fits(&doubling, &tuning, size, 4, 12 * size - 1).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains("--max"), "{error}");
    }
}
