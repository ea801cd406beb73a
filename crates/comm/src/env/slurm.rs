//! The variables that Slurm sets for the tasks of a job step.

use comm_core::{Error, Result, VariableFault};

use super::environment::{Environment, fault};
use super::variables::Variable;

pub(super) const RANK: Variable = Variable::rank("SLURM_PROCID");
pub(super) const SIZE: Variable = Variable::size("SLURM_NTASKS");
pub(super) const LOCAL_RANK: Variable = Variable::rank("SLURM_LOCALID");
const STEP: Variable = Variable::number("SLURM_STEP_ID");
/// The older name of the variable.
const STEPID: Variable = Variable::number("SLURM_STEPID");
const JOB: Variable = Variable::text("SLURM_JOB_ID");
const NODE: Variable = Variable::number("SLURM_NODEID");
const NODES: Variable = Variable::text("SLURM_STEP_NODELIST");
const TASKS_PER_NODE: Variable = Variable::text("SLURM_STEP_TASKS_PER_NODE");

/// The largest id of a step that `srun` started (`SLURM_MAX_NORMAL_STEP_ID`). Larger ids are those
/// of batch scripts and interactive shells, whose `SLURM_PROCID` is not a rank.
const STEP_MAX: u64 = 0xffff_fff0;

/// Returns the step in which `srun` started this process; `None` for a batch script, the shell of
/// an allocation, and processes outside of Slurm. A batch script has `SLURM_PROCID=0` and no step.
pub(super) fn step(environment: &Environment) -> Result<Option<u64>> {
    let step = match environment.number(&STEP)? {
        Some(step) => Some(step),
        None => environment.number(&STEPID)?,
    };
    match (step, environment.number(&RANK)?) {
        (Some(step), Some(_)) if step <= STEP_MAX => Ok(Some(step)),
        (Some(step), None) if step <= STEP_MAX => {
            Err(fault(RANK.name, VariableFault::NotSet, "srun sets it for each of its tasks"))
        }
        (None, Some(1..)) => {
            Err(fault(STEP.name, VariableFault::NotSet, "srun sets it for each of its tasks"))
        }
        _ => Ok(None),
    }
}

/// Returns a name of the step that is unique on these hosts.
pub(super) fn job(environment: &Environment, step: u64) -> Result<Option<String>> {
    Ok(environment.text(&JOB)?.map(|job| format!("slurm {job}.{step}")))
}

/// Returns the number of tasks of the step on this node, if Slurm sets it.
pub(super) fn tasks_on_node(environment: &Environment) -> Result<Option<usize>> {
    let (Some(counts), Some(node)) = (environment.text(&TASKS_PER_NODE)?, environment.size(&NODE)?) else {
        return Ok(None);
    };
    let refused = || Error::setting(TASKS_PER_NODE.name, counts, "it must be counts as in 2(x3),1");
    let mut first = 0;
    for part in counts.split(',') {
        let (count, nodes) = repeated(part).ok_or_else(refused)?;
        first += nodes;
        if node < first {
            return Ok(Some(count));
        }
    }
    Err(refused())
}

/// Parses a count and its number of nodes: `2(x3)`, or `2` for one node.
fn repeated(part: &str) -> Option<(usize, usize)> {
    match part.split_once("(x") {
        Some((count, nodes)) => Some((count.parse().ok()?, nodes.strip_suffix(')')?.parse().ok()?)),
        None => Some((part.parse().ok()?, 1)),
    }
}

/// Returns the host of rank 0, which is the first of the step; `None` if Slurm does not set it.
pub(super) fn first_host(environment: &Environment) -> Result<Option<String>> {
    let Some(nodes) = environment.text(&NODES)? else { return Ok(None) };
    let refused = || Error::setting(NODES.name, nodes, "it must be hosts as in tux[01-04,7],node2");
    first_of(nodes).map(Some).ok_or_else(refused)
}

/// Returns the first host of a list: `n01` of `n[01-04,7],m1`, and of `n01,m1`; `r0n2` of
/// `r[0-1]n[2,5]`.
fn first_of(nodes: &str) -> Option<String> {
    let mut host = String::new();
    let mut rest = nodes;
    loop {
        let end = rest.find(['[', ',']).unwrap_or(rest.len());
        host.push_str(&rest[..end]);
        let Some(numbers) = rest[end..].strip_prefix('[') else { break };
        let (numbers, after) = numbers.split_once(']')?;
        host.push_str(numbers.split(['-', ',']).next().filter(|number| !number.is_empty())?);
        rest = after;
    }
    (!host.is_empty()).then_some(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_host_of_a_list_is_found() {
        for (list, first) in [
            ("tux", "tux"),
            ("tux,max", "tux"),
            ("tux[0-3]", "tux0"),
            ("tux[007-128,200],max[1-2]", "tux007"),
            ("tux[3,5]", "tux3"),
            ("a-b[12],c", "a-b12"),
            ("rack[0-1]node[2,5]", "rack0node2"),
            ("n1.cluster.org,n2.cluster.org", "n1.cluster.org"),
        ] {
            assert_eq!(first_of(list).as_deref(), Some(first), "{list}");
        }
        for broken in ["", ",", "tux[", "tux[1", "tux[]", "tux[-3]"] {
            assert_eq!(first_of(broken), None, "{broken}");
        }
    }

    #[test]
    fn the_tasks_of_a_node_are_found() {
        let on = |counts: &str, node: &str| {
            let variables = [(TASKS_PER_NODE.name, counts), (NODE.name, node)];
            tasks_on_node(&variables.into_iter().collect())
        };
        for (counts, node, expected) in
            [("4", "0", 4), ("2(x3),1", "0", 2), ("2(x3),1", "2", 2), ("2(x3),1", "3", 1), ("1,3", "1", 3)]
        {
            assert_eq!(on(counts, node).unwrap(), Some(expected), "{counts} {node}");
        }
        for (counts, node) in [("4", "1"), ("four", "0"), ("2(x", "0"), ("2(x1", "0")] {
            assert!(on(counts, node).unwrap_err().to_string().contains(TASKS_PER_NODE.name), "{counts}");
        }
    }
}
