//! Ways to break a schedule.

use comm_core::{Action, Blocks, Place, Step};

use crate::verify::{Spec, StepLocation};

/// A rank's program with one change.
#[derive(Debug)]
pub(super) struct Mutant {
    /// The rank whose program is changed.
    pub(super) rank: usize,
    /// The changed program.
    pub(super) steps: Vec<Step>,
    /// The change.
    pub(super) change: String,
}

/// Returns every mutant of a program.
pub(super) fn all(original: &[Vec<Step>], spec: &Spec) -> Vec<Mutant> {
    let mut mutants = Vec::new();
    for (rank, steps) in original.iter().enumerate() {
        for (index, &step) in steps.iter().enumerate() {
            let at = StepLocation { rank, index, step };
            let mut push = |change: String, with: &[Step], replaced: usize| {
                let mut steps = steps.clone();
                steps.splice(index..index + replaced, with.iter().copied());
                mutants.push(Mutant { rank, steps, change: format!("{at} {change}") });
            };
            push("is dropped".into(), &[], 1);
            push("is doubled".into(), &[step, step], 1);
            if let Some(&next) = steps.get(index + 1).filter(|&&next| next != step) {
                push("is swapped with the next".into(), &[next, step], 2);
            }
            for changed in changes(step, rank, spec) {
                push(format!("becomes {}", StepLocation { step: changed, ..at }), &[changed], 1);
            }
        }
    }
    mutants
}

/// Returns every step that differs from this one in one respect.
fn changes(step: Step, rank: usize, spec: &Spec) -> Vec<Step> {
    let blocks = other_blocks(step.blocks, spec.blocks).into_iter().map(|blocks| Step { blocks, ..step });
    let places = other_places(step.place).into_iter().map(|place| Step { place, ..step });
    let actions = other_actions(step, rank, spec.ranks).into_iter().map(|action| Step { action, ..step });
    blocks.chain(places).chain(moved(step)).chain(actions).filter(|&changed| changed != step).collect()
}

/// Returns receives that also reduce in place, but in another place.
fn moved(step: Step) -> Vec<Step> {
    let Action::RecvReduce { from, .. } = step.action else { return Vec::new() };
    let places = other_places(step.place).into_iter().filter(|_| step.is_in_place());
    places.map(|place| Step::recv_reduce(from, place, place, step.blocks)).collect()
}

/// Returns the next blocks, wrapping around at the end; the previous ones; one more; none; one
/// less, at either end.
fn other_blocks(Blocks { first, count }: Blocks, blocks: usize) -> Vec<Blocks> {
    let next = (first + 1) % blocks.max(1);
    let mut others = vec![
        Blocks { first: next, count: count.min(blocks - next) },
        Blocks { first: first.saturating_sub(1), count },
        Blocks { first, count: count + 1 },
        Blocks { first, count: 0 },
    ];
    if count > 1 {
        others.extend([Blocks { first, count: count - 1 }, Blocks { first: first + 1, count: count - 1 }]);
    }
    others
}

fn other_places(place: Place) -> Vec<Place> {
    match place {
        Place::Scratch { slot } => {
            let (next, before) = (slot + 1, slot.saturating_sub(1));
            vec![Place::Output, Place::Input, Place::Scratch { slot: next }, Place::Scratch { slot: before }]
        }
        Place::Output => vec![Place::Scratch { slot: 0 }, Place::Input],
        Place::Input => vec![Place::Scratch { slot: 0 }, Place::Output],
    }
}

fn other_actions(step: Step, rank: usize, ranks: usize) -> Vec<Action> {
    // The ranks on both sides of the peer; in small worlds the rank itself is among them.
    let peers = |peer: usize| [(peer + 1) % ranks, (peer + ranks - 1) % ranks, rank, ranks].into_iter();
    match step.action {
        Action::Send { to } => {
            peers(to).map(|to| Action::Send { to }).chain([Action::Recv { from: to }]).collect()
        }
        Action::Recv { from } => peers(from)
            .map(|from| Action::Recv { from })
            .chain([Action::RecvReduce { from, with: step.place }, Action::Send { to: from }])
            .collect(),
        Action::RecvReduce { from, with } => {
            let others = other_places(with).into_iter().map(|with| Action::RecvReduce { from, with });
            let from_others = peers(from).map(|from| Action::RecvReduce { from, with });
            from_others.chain(others).chain([Action::Recv { from }]).collect()
        }
        Action::Reduce { with } => {
            let others = other_places(with).into_iter().map(|with| Action::Reduce { with });
            others.chain([Action::Copy { from: with }]).collect()
        }
        Action::Copy { from } => {
            let others = other_places(from).into_iter().map(|from| Action::Copy { from });
            others.chain([Action::Reduce { with: from }]).collect()
        }
        Action::Finish => vec![],
    }
}
