//! The verifier rejects every harmful mutant.

use crate::schedules::*;
use comm_core::Collective;
use comm_sim::mutate::{InterpretError, MutationError, MutationOptions, MutationReport, test_mutants};
use comm_sim::verify::{Program, Spec, Tree};

#[test]
fn every_harmful_mutant_of_a_textbook_schedule_is_rejected() {
    let mut total = MutationReport::default();
    for (name, collective, slots, schedule) in RIGHT {
        for ranks in 1..=5 {
            for segments in [1, 2] {
                for spec in Spec::all(collective, ranks, ranks * segments).filter(|spec| spec.root < 2) {
                    let survey = with_program(spec, slots(spec.blocks), schedule, |program| {
                        test_mutants(program, &MutationOptions::default())
                    });
                    total.add(survey.unwrap_or_else(|unfit| panic!("{name} {spec}: {unfit}")));
                }
            }
        }
    }
    println!(
        "{} mutants, {} harmless, {} harmful, {} killed",
        total.mutants, total.harmless, total.harmful, total.killed
    );
    assert_eq!(total.survivors, Vec::<String>::new());
    assert_eq!((total.killed, total.harmful + total.harmless), (total.harmful, total.mutants));
    assert!(total.harmful > 9 * total.harmless, "{} of {} are harmless", total.harmless, total.mutants);
}

#[test]
fn a_mutant_that_combines_in_another_tree_is_harmful_if_a_tree_is_required() {
    const CHAIN: Tree<'_> = Tree(&[(0, 1), (0, 2), (0, 3)]);
    let spec = spec(Collective::Reduce, 4, 2);
    let with = |tree| {
        with_program(spec, 0, linear_reduce, |program| {
            let Program { spec, scratch_slots, steps, .. } = *program;
            test_mutants(&Program { spec, scratch_slots, tree, steps }, &MutationOptions::default()).unwrap()
        })
    };
    let (any, one) = (with(None), with(Some(CHAIN)));
    assert!(one.harmful > any.harmful, "{} and {}", one.harmful, any.harmful);
    assert_eq!(one.survivors, Vec::<String>::new());
}

#[test]
fn a_sample_has_the_requested_size() {
    let options = MutationOptions::default().seed(4).mutants_max(20);
    let spec = spec(Collective::AllReduce, 4, 4);
    let survey = with_program(spec, 0, ring_all_reduce, |program| test_mutants(program, &options)).unwrap();
    assert_eq!(survey.mutants, 20);
}

#[test]
fn a_wrong_program_is_not_mutated() {
    let spec = spec(Collective::AllReduce, 4, 4);
    let broken = with_program(spec, 0, doubling_in_place, |program| {
        test_mutants(program, &MutationOptions::default())
    });
    assert!(matches!(broken, Err(MutationError::Refused(_))), "{broken:?}");
}

#[test]
fn harm_is_found_without_the_verifier() {
    let harm = |spec: Spec, schedule: Schedule| {
        with_program(spec, 0, schedule, |program| comm_sim::mutate::interpret(program, 1).err())
    };
    let all_reduce = spec(Collective::AllReduce, 4, 4);
    assert_eq!(harm(all_reduce, ring_all_reduce), None);
    assert!(matches!(
        harm(all_reduce, doubling_in_place),
        Some(InterpretError::Deadlock { window: 2, capacity: 0 })
    ));
    assert!(matches!(harm(all_reduce, |_, _| vec![]), Some(InterpretError::Result { rank: 0, block: 0 })));
    let barrier = spec(Collective::Barrier, 3, 1);
    assert!(matches!(harm(barrier, |_, _| vec![]), Some(InterpretError::Barrier { absent: 0, rank: 1 })));
}
