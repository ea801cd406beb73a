//! The faults of a network in virtual time.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::io::IoSlice;
use std::time::Duration;

use comm_core::{Error, Fabric, Loss, Transport};
use comm_sim::network::{self, FaultPlan, Incident, Network, NetworkTransport};

const MS: Duration = Duration::from_millis(1);

fn pair(plan: &FaultPlan) -> (Network, NetworkTransport, NetworkTransport) {
    let (network, mut transports) = Network::new(2, 0, plan).unwrap();
    let second = transports.remove(1);
    (network, transports.remove(0), second)
}

fn send(transport: &mut NetworkTransport, to: usize, bytes: &[u8]) {
    assert_eq!(transport.try_send(to, &[IoSlice::new(bytes)]).unwrap(), bytes.len());
}

fn recv(transport: &mut NetworkTransport, from: usize) -> Result<Vec<u8>, Error> {
    let mut into = [0; 99];
    let len = transport.try_recv(from, &mut into)?;
    Ok(into[..len].to_vec())
}

#[test]
fn a_cut_delays_bytes_in_one_direction_and_loses_none() {
    let plan = FaultPlan::calm().latency(MS);
    let plan = plan.and(MS / 2, Incident::Cut { from: 0, to: 1, lasting: 100 * MS });
    let (mut network, mut first, mut second) = pair(&plan);
    send(&mut first, 1, b"before");
    network.advance_by(MS);
    send(&mut first, 1, b"+during");
    send(&mut second, 0, b"back");
    network.advance_by(90 * MS);
    assert_eq!(recv(&mut second, 0).unwrap(), b"");
    assert_eq!(recv(&mut first, 1).unwrap(), b"back");
    network.advance_by(12 * MS);
    assert_eq!(recv(&mut second, 0).unwrap(), b"before+during");
}

#[test]
fn ranks_that_cannot_reach_each_other_lose_each_other_after_the_keepalive_time() {
    let cut = Incident::Cut { from: 0, to: 1, lasting: Duration::from_secs(9) };
    for incident in [cut, Incident::Vanish { rank: 0 }] {
        let plan = FaultPlan::calm().keepalive(100 * MS).and(MS, incident);
        let (mut network, mut first, mut second) = pair(&plan);
        network.advance_by(100 * MS);
        assert_eq!(recv(&mut second, 0).unwrap(), b"");
        network.advance_by(2 * MS);
        let outcomes = [recv(&mut first, 1), recv(&mut second, 0)];
        let is_lost = |outcome: &Result<_, Error>| {
            matches!(outcome, Err(Error::PeerLost { loss: Loss::HostUnreachable { .. }, .. }))
        };
        assert!(is_lost(&outcomes[1]) && outcomes[0].is_err(), "{incident}: {outcomes:?}");
        assert!(network.is_dead(0) || is_lost(&outcomes[0]), "{incident}: {outcomes:?}");
    }
}

#[test]
fn changed_bytes_break_a_stream_with_checksums_and_are_delivered_without() {
    let incidents = [Incident::Corruption { from: 0, to: 1 }, Incident::Duplication { from: 0, to: 1 }];
    for incident in incidents {
        for checksums in [true, false] {
            let plan = FaultPlan::calm().checksums(checksums).and(MS, incident);
            let (mut network, mut first, mut second) = pair(&plan);
            send(&mut first, 1, b"a");
            network.advance_by(2 * MS);
            send(&mut first, 1, b"b");
            network.advance_by(2 * MS);
            send(&mut first, 1, b"c");
            network.advance_by(2 * MS);
            let received = recv(&mut second, 0).unwrap();
            let end = recv(&mut second, 0);
            match (checksums, incident) {
                (true, _) => {
                    assert_eq!(received, b"a");
                    assert!(end.unwrap_err().to_string().contains("checksum"));
                }
                (false, Incident::Duplication { .. }) => assert_eq!(received, b"abbc"),
                (false, _) => {
                    assert_eq!((received.len(), (received[1] ^ b'b').count_ones()), (3, 1));
                    assert_eq!((received[0], received[2]), (b'a', b'c'));
                }
            }
        }
    }
}

#[test]
fn a_clock_jumps_only_on_its_rank() {
    let plan = FaultPlan::calm().and(MS, Incident::ClockJump { rank: 1, by: 50 * MS });
    let (mut network, first, second) = pair(&plan);
    let start = first.now();
    network.advance_by(2 * MS);
    assert_eq!((first.now() - start, second.now() - start), (2 * MS, 52 * MS));
}

#[test]
fn a_stopped_rank_does_nothing_until_it_continues() {
    let plan = FaultPlan::calm().and(MS, Incident::Stop { rank: 1, lasting: 50 * MS });
    let run = network::simulate(2, 0, &plan, |_, clock| {
        clock.sleep(2 * MS);
        let woke = clock.elapsed();
        if woke == 2 * MS {
            clock.inject(Incident::Stop { rank: 0, lasting: 7 * MS });
        }
        (woke, clock.elapsed(), clock.delayed())
    });
    assert_eq!(run.results, [(2 * MS, 9 * MS, 7 * MS), (51 * MS, 51 * MS, 50 * MS)]);
    assert_eq!(run.incidents.len(), 2);
    assert_eq!((run.log[0].at, run.log[0].rank), (MS, None));
}

#[test]
fn each_operation_of_a_slow_rank_takes_its_time() {
    let plan = FaultPlan::calm().and(Duration::ZERO, Incident::Slow { rank: 1, per_operation: MS });
    let run = network::simulate(2, 0, &plan, |fabric, clock| {
        clock.sleep(MS);
        let deadline = fabric.now() + 1000 * MS;
        let channel =
            comm_core::ChannelId { group: comm_core::GroupId::WORLD, kind: comm_core::ChannelKind::Control };
        let mut transport = fabric.open(channel, deadline).unwrap();
        let start = clock.elapsed();
        for _ in 0..600 {
            let _ = transport.try_recv(1 - transport.group().rank(), &mut [0]);
        }
        (clock.elapsed() - start).as_millis()
    });
    assert!(run.results[0] < 10 && (300..1200).contains(&run.results[1]), "{:?}", run.results);
}

#[test]
fn several_actions_run_before_their_operations() {
    let run = network::simulate(1, 0, &FaultPlan::calm(), |fabric, clock| {
        let rank = fabric.group().rank();
        for operation in [3, 2, 2] {
            let own = clock.clone();
            clock.before_operation(operation, move || own.log(format!("{operation} of {rank}")));
        }
        let channel =
            comm_core::ChannelId { group: comm_core::GroupId::WORLD, kind: comm_core::ChannelKind::Control };
        let mut transport = fabric.open(channel, fabric.now() + MS).unwrap();
        for _ in 0..3 {
            transport.arm(&comm_core::Interest::default()).unwrap();
        }
        clock.operations()
    });
    assert_eq!(run.results, [4]);
    let texts: Vec<_> = run.log.iter().map(|entry| entry.text.as_str()).collect();
    assert_eq!(texts, ["2 of 0", "2 of 0", "3 of 0"]);
}
