use super::*;

const FOUNDERS: usize = 3;

fn announcement(admission: u64, world_size: usize, processes: [u64; 2]) -> Announcement {
    Announcement { admission, world_size, processes }
}

fn meeting(admissions: Range<u64>, world_size: usize) -> Keys {
    Keys::Rendezvous { admissions, world_size }
}

#[test]
fn the_rendezvous_of_the_former_group_and_the_processes_that_joined_leave_keys() {
    let mut leftovers = Leftovers::new(0, FOUNDERS);
    let announced = announcement(1, 5, [1, 2]);
    leftovers.announce(&announced);
    leftovers.succeed(&announced);
    assert_eq!(leftovers.keys, [Keys::Processes(1..3), meeting(0..1, FOUNDERS)]);
}

#[test]
fn an_admission_that_failed_leaves_keys() {
    let mut leftovers = Leftovers::new(0, FOUNDERS);
    let announced = announcement(1, 5, [1, 2]);
    leftovers.announce(&announced);
    leftovers.fail(&announced);
    assert_eq!(leftovers.keys, [Keys::Processes(1..3), meeting(1..2, 5)]);
}

#[test]
fn a_leader_that_died_before_its_announcement_leaves_keys() {
    let mut leftovers = Leftovers::new(0, FOUNDERS);
    leftovers.announce(&announcement(3, 4, [6, 7]));
    assert_eq!(leftovers.keys, [meeting(1..3, FOUNDERS + 5), Keys::Processes(1..8)]);
}

#[test]
fn a_rank_that_has_joined_leaves_the_processes_before_it_to_others() {
    let mut leftovers = Leftovers::new(4, FOUNDERS);
    leftovers.announce(&announcement(5, 4, [9, 9]));
    assert_eq!(leftovers.keys, [Keys::Processes(9..10)]);
    leftovers.announce(&announcement(6, 4, [12, 12]));
    assert_eq!(leftovers.keys[1..], [Keys::Processes(10..13)]);
}

/// The same numbers mean other processes in another store.
#[test]
fn what_an_earlier_store_had_is_forgotten() {
    let mut leftovers = Leftovers::new(0, FOUNDERS);
    for (admission, process) in [(1, 1), (2, 5)] {
        let announced = announcement(admission, 4, [process; 2]);
        leftovers.announce(&announced);
        leftovers.succeed(&announced);
    }
    let announced = announcement(1, 4, [2, 2]);
    leftovers.announce(&announced);
    leftovers.succeed(&announced);
    assert_eq!(leftovers.keys, [Keys::Processes(1..3)]);
    assert_eq!(leftovers.present, Some(1));
}

#[test]
fn a_member_forgets_what_the_leader_has_removed_after_the_next_growth() {
    let mut leftovers = Leftovers::new(0, FOUNDERS);
    let mut grow = |number| {
        let announced = announcement(number, 4, [number; 2]);
        leftovers.announce(&announced);
        leftovers.succeed(&announced);
        leftovers.forget_removed();
        leftovers.keys.clone()
    };
    assert_eq!(grow(1), [Keys::Processes(1..2), meeting(0..1, FOUNDERS)]);
    assert_eq!(grow(2), [Keys::Processes(2..3), meeting(1..2, 4)]);
}

#[test]
fn numbers_that_a_store_makes_up_take_a_bounded_time() {
    let mut leftovers = Leftovers::new(0, FOUNDERS);
    leftovers.announce(&announcement(u64::MAX >> 32, 4, [u64::MAX, u64::MAX]));
    let count = |keys: &Keys| match keys {
        Keys::Rendezvous { admissions, world_size } => admissions.clone().count() * world_size,
        Keys::Processes(numbers) => numbers.clone().count(),
    };
    assert!(leftovers.keys.iter().map(count).sum::<usize>() < 10_000, "{leftovers:?}");
}
