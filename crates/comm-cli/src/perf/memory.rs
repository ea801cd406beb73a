//! Checks that the buffers fit into memory, before the kernel would kill processes.

use comm::Collective;
use comm::ring::{Tuning, choose};

use super::buffers::Lengths;
use super::plan::{Layout, Plan};
use crate::error::{CliError, Result};
use crate::host;

/// Returns an error if the buffers of `local_ranks` ranks exceed the available memory of this host.
pub(crate) fn check(plan: &Plan, tuning: &Tuning, local_ranks: usize) -> Result<()> {
    let Some(available) = host::available_memory() else { return Ok(()) };
    plan.sizes.iter().try_for_each(|&size| fits(plan, tuning, size, local_ranks, available))
}

fn fits(plan: &Plan, tuning: &Tuning, size: usize, ranks: usize, available: usize) -> Result<()> {
    let needed = needed(plan, tuning, size)?.saturating_mul(ranks);
    if needed <= available { Ok(()) } else { Err(CliError::Memory { size, ranks, needed, available }) }
}

/// Returns the largest number of bytes that a rank needs, including the communicator's scratch
/// memory.
fn needed(plan: &Plan, tuning: &Tuning, size: usize) -> Result<usize> {
    // The root needs at least as much as any other rank.
    let Lengths { send, recv } = Lengths::of(plan, true, plan.count(size));
    let own = ((send + recv) * plan.dtype.size()).saturating_mul(plan.copies(size));
    let choice = plan.select(size, tuning)?;
    let params = choose::params(&plan.shape(size), choice.segments, tuning);
    let slot = size.div_ceil(choice.algorithm.blocks(&params).max(1));
    let is_copied = (plan.collective, plan.layout) == (Collective::AllToAll, Layout::InPlace);
    let input_copy = if is_copied { size } else { 0 };
    Ok(own.saturating_add((choice.algorithm.slots)(&params).saturating_mul(slot)).saturating_add(input_copy))
}

#[cfg(test)]
mod tests {
    use comm::ring::RingConfig;
    use comm::{DType, Link, LinkModel};

    use super::*;

    fn plan(collective: Collective, layout: Layout) -> Plan {
        let sizes = vec![1 << 20];
        let algorithm = None;
        Plan {
            collective,
            ranks: 4,
            dtype: DType::F32,
            op: None,
            root: 0,
            layout,
            algorithm,
            alloc: false,
            rotated_bytes: 0,
            sizes,
        }
    }

    #[test]
    fn both_buffers_and_scratch_are_counted() {
        let link = Link { latency: 1e-6, overhead: 0.0, per_byte: 1e-9 };
        let tuning = RingConfig::default().tuning(LinkModel::uniform(link, 0.0));
        let size = 1 << 20;
        assert_eq!(
            needed(&plan(Collective::AllGather, Layout::OutOfPlace), &tuning, size).unwrap(),
            size + size / 4
        );
        assert_eq!(needed(&plan(Collective::AllToAll, Layout::InPlace), &tuning, size).unwrap(), 2 * size);
        let doubling = Plan {
            algorithm: Some("recursive_doubling".into()),
            ..plan(Collective::AllReduce, Layout::InPlace)
        };
        assert_eq!(needed(&doubling, &tuning, size).unwrap(), 3 * size);
        assert!(fits(&doubling, &tuning, size, 4, 12 * size).is_ok());
        let error = fits(&doubling, &tuning, size, 4, 12 * size - 1).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains("--max"), "{error}");
    }
}
