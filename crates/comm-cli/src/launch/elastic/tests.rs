use super::*;
use crate::launch::error::ProcessExit;

/// Returns the state of two nodes with two ranks each.
fn pair(ranks_min: usize, ranks_max: usize, replacements: usize) -> ElasticJob {
    let limits = Limits { ranks_min, ranks_max, replacements };
    ElasticJob::new(limits, 0, ["a", "b"].map(|token| (token.to_owned(), 2)))
}

fn node(rank: usize) -> Node {
    serde_json::from_value(serde_json::json!({ "rank": rank, "host": "h" })).unwrap()
}

fn failure(rank: usize, pid: u32) -> RankFailure {
    let exit = ProcessExit::Code(2);
    RankFailure { rank, pid, exit, node: Some(node(rank / 2)), last_lines: vec![format!("of {pid}")] }
}

fn failed(rank: usize, pid: u32) -> JobEvent {
    JobEvent::RankFailed(failure(rank, pid))
}

fn lost(rank: usize, token: &str) -> JobEvent {
    JobEvent::NodeLost { node: node(rank), token: token.to_owned() }
}

fn joined(rank: usize, token: &str) -> JobEvent {
    JobEvent::NodeJoined { node: node(rank), token: token.to_owned() }
}

#[test]
fn the_others_go_on_until_too_few_are_left_over_all_nodes() {
    let mut job = pair(2, 0, 0);
    assert_eq!(job.apply(failed(0, 1)), Decision::GoOn);
    assert_eq!(job.apply(failed(3, 2)), Decision::GoOn);
    assert_eq!(job.ranks_left(), 2);
    assert_eq!(job.apply(failed(1, 3)), Decision::End);
    assert_eq!(job.end(), Some(&End::RankFailed(failure(1, 3))));
    assert_eq!(job.last_lines(&failure(1, 3)), None, "they are read once all output is in the file");
    // Nothing changes after the end.
    assert_eq!(job.apply(failed(2, 4)), Decision::Ignore);
    assert_eq!(job.end(), Some(&End::RankFailed(failure(1, 3))));
}

#[test]
fn failed_ranks_are_replaced_up_to_both_limits() {
    // Four ranks run, so the first failure leaves enough.
    let mut job = pair(1, 3, 2);
    assert_eq!(job.apply(failed(0, 1)), Decision::GoOn);
    assert_eq!(job.apply(failed(3, 2)), Decision::Replace(1));
    assert_eq!(job.apply(failed(3, 3)), Decision::Replace(2));
    assert_eq!(job.ranks_left(), 3);
    assert_eq!(job.apply(failed(3, 4)), Decision::GoOn);
    assert_eq!(job.ranks_left(), 2);
}

#[test]
fn a_lost_node_takes_its_ranks_with_it_and_another_agent_brings_new_ones() {
    let mut job = pair(2, 4, 0);
    assert_eq!(job.apply(joined(1, "c")), Decision::Refuse(Refusal::NotLost));
    assert_eq!(job.apply(lost(1, "another agent")), Decision::Ignore);
    assert_eq!(job.apply(lost(1, "b")), Decision::GoOn);
    assert_eq!((job.ranks_left(), job.lost_nodes()), (2, vec![1]));
    // Its ranks cannot fail any more.
    assert_eq!(job.apply(failed(2, 1)), Decision::Ignore);
    assert_eq!(job.apply(joined(1, "c")), Decision::Admit(vec![1, 2]));
    assert_eq!(job.apply(joined(1, "d")), Decision::Refuse(Refusal::NotLost));
    assert_eq!((job.ranks_left(), job.lost_nodes()), (4, vec![]));
    assert_eq!(job.apply(lost(1, "b")), Decision::Ignore);
    assert_eq!(job.apply(lost(1, "c")), Decision::GoOn);
    assert_eq!(job.apply(failed(0, 2)), Decision::End);
}

#[test]
fn the_loss_of_a_node_ends_the_job_if_too_few_ranks_are_left() {
    let mut job = pair(3, 4, 9);
    assert_eq!(job.apply(lost(1, "b")), Decision::End);
    assert_eq!(job.end(), Some(&End::NodeLost(node(1))));
}

#[test]
fn a_node_that_comes_back_is_refused_if_no_process_may_join() {
    let mut job = pair(1, 0, 0);
    job.apply(lost(1, "b"));
    assert_eq!(job.apply(joined(1, "c")), Decision::Refuse(Refusal::NoReplacements));
    let mut job = pair(1, 2, 0);
    job.apply(lost(1, "b"));
    assert_eq!(job.apply(joined(1, "c")), Decision::Refuse(Refusal::TooManyRanks));
    let mut job = pair(1, 3, 0);
    job.apply(lost(1, "b"));
    assert_eq!(job.apply(joined(1, "c")), Decision::Admit(vec![1]));
    let mut job = pair(1, 4, 0);
    job.apply(lost(1, "b"));
    job.apply(JobEvent::RankSucceeded { node: 0 });
    assert_eq!(job.apply(joined(1, "c")), Decision::Refuse(Refusal::Ending));
}

#[test]
fn a_job_succeeds_when_every_node_has_ended_or_is_lost() {
    let mut job = pair(2, 0, 0);
    assert_eq!(job.apply(JobEvent::NodeEnded { node: 0 }), Decision::GoOn);
    assert_eq!(job.apply(lost(1, "b")), Decision::End);
    assert_eq!(job.end(), Some(&End::Succeeded));
    // The ranks of a node whose agent is lost after their end have not failed.
    let mut job = pair(3, 0, 0);
    assert_eq!(job.apply(JobEvent::NodeEnded { node: 1 }), Decision::GoOn);
    assert_eq!(job.apply(lost(1, "b")), Decision::GoOn);
    assert_eq!(job.apply(JobEvent::NodeEnded { node: 0 }), Decision::End);
    assert_eq!(job.end(), Some(&End::Succeeded));
}

#[test]
fn nothing_is_replaced_after_a_success_and_processes_that_join_may_fail_then() {
    let mut job = pair(4, 4, 9);
    assert_eq!(job.apply(failed(0, 1)), Decision::Replace(1));
    job.apply(JobEvent::RankSucceeded { node: 1 });
    assert_eq!(job.apply(failed(0, 2)), Decision::Ignore);
    assert_eq!(job.apply(failed(1, 3)), Decision::End);
}

#[test]
fn a_group_without_members_ends_the_job_with_the_first_failure() {
    let mut job = pair(1, 4, 9);
    for (at, rank) in [2, 0, 3].into_iter().enumerate() {
        assert_eq!(job.apply(failed(rank, rank as u32)), Decision::Replace(at as u64 + 1));
        assert!(!job.is_group_in_doubt());
    }
    job.apply(failed(1, 1));
    assert!(job.is_group_in_doubt());
    let event = job.group_lost(&[]).unwrap();
    assert_eq!(job.apply(event), Decision::End);
    assert_eq!(job.end(), Some(&End::RankFailed(failure(2, 2))));
    assert_eq!(job.last_lines(&failure(2, 2)), Some(vec!["of 2".to_owned()]));
}

#[test]
fn a_group_of_processes_that_have_joined_goes_on_and_the_cause_is_the_first_failure_after_that() {
    let mut job = pair(1, 4, 9);
    (0..4).for_each(|rank| drop(job.apply(failed(rank, rank as u32))));
    assert!(job.is_group_in_doubt());
    assert_eq!(job.group_lost(&[2]), None, "process 2 was admitted, and runs");
    // It fails, and no other one was admitted. The failures before it had been overcome.
    assert_eq!(job.apply(failed(1, 7)), Decision::Replace(5));
    assert_eq!(job.group_lost(&[2]), Some(JobEvent::GroupLost { failure: 2 }));
}

#[test]
fn the_first_failure_of_a_node_is_one_that_was_not_replaced() {
    let mut job = pair(1, 4, 1);
    assert_eq!(job.apply(failed(2, 1)), Decision::Replace(1));
    job.stop_replacing();
    [(0, 2), (3, 3), (2, 4)].into_iter().for_each(|(rank, pid)| drop(job.apply(failed(rank, pid))));
    assert_eq!(job.first_failure_of(1), Some(&failure(3, 3)));
    job.apply(JobEvent::RankSucceeded { node: 0 });
    assert_eq!(job.first_failure_of(1), None);
}
