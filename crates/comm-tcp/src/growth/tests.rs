//! Decisions about networks that are simulated in steps of a look.

use super::*;

/// A network, and a sender that offers bytes for a part of the time.
struct Network {
    per_flow: f64,
    link: f64,
    /// The part of the time in which bytes are on their way.
    busy: f64,
    /// The part of that time in which the receiver has no space.
    window_limited: f64,
}

const GIGABIT: f64 = 1e9 / 8.0;

const LIMITED: Network =
    Network { per_flow: 0.5 * GIGABIT, link: 2.0 * GIGABIT, busy: 1.0, window_limited: 0.0 };

/// Lets a stream grow for some seconds. Returns the numbers of sockets that carried it, with the
/// times at which they changed.
fn grow(network: &Network, seconds: f64) -> Vec<(f64, usize)> {
    let mut growth = Growth::new(Sockets::Tuned);
    let start = Instant::now();
    let (mut elapsed, mut sent, mut used, mut connected) = (0.0, 0_u64, 1_usize, 1_usize);
    let mut sample = Sample::default();
    let mut history = vec![(0.0, 1)];
    while elapsed < seconds {
        let rate = (network.per_flow * used as f64).min(network.link);
        let step = LOOK_BYTES as f64 / rate / network.busy;
        elapsed += step;
        sent += LOOK_BYTES;
        let busy = Duration::from_secs_f64(step * network.busy) * used as u32;
        sample.acked += LOOK_BYTES;
        sample.busy += busy;
        sample.window_limited += busy.mul_f64(network.window_limited);
        sample.sockets = used as u32;
        let now = start + Duration::from_secs_f64(elapsed);
        if !growth.is_due(sent) {
            continue;
        }
        if let Some(wanted) = growth.look(now, sent, || sample) {
            connected = connected.max(wanted);
            if growth.end_connecting(now, wanted.min(connected)) && wanted != used {
                used = wanted;
                history.push((elapsed, used));
            }
        }
    }
    history
}

#[test]
fn a_stream_uses_as_many_sockets_as_fill_the_link() {
    let history = grow(&LIMITED, 2.0);
    let (at, sockets) = *history.last().unwrap();
    assert_eq!(sockets, 4, "{history:?}");
    assert!(at < 1.5, "{history:?}");
    let used: Vec<usize> = history.iter().map(|(_, sockets)| *sockets).collect();
    assert_eq!(used, [1, 2, 4, 8, 4]);
    let wide = Network { link: 25.0 * GIGABIT, per_flow: 5.0 * GIGABIT, ..LIMITED };
    assert_eq!(grow(&wide, 2.0).last().unwrap().1, 8);
}

#[test]
fn one_socket_that_fills_the_link_stays_alone() {
    let network = Network { per_flow: 2.0 * GIGABIT, ..LIMITED };
    let history = grow(&network, 2.0);
    let used: Vec<usize> = history.iter().map(|(_, sockets)| *sockets).collect();
    assert_eq!(used, [1, 2, 1]);
    // It tries again from time to time, ever more seldom.
    let tries = grow(&network, 60.0).iter().filter(|(_, sockets)| *sockets == 2).count();
    assert!((2..=6).contains(&tries), "{tries}");
}

#[test]
fn a_stream_that_the_network_does_not_limit_tries_nothing() {
    for network in [Network { busy: 0.3, ..LIMITED }, Network { window_limited: 0.8, ..LIMITED }] {
        assert_eq!(grow(&network, 10.0), [(0.0, 1)]);
    }
}

#[test]
fn a_fixed_number_of_sockets_is_connected_once() {
    let mut growth = Growth::new(Sockets::Fixed(3));
    let now = Instant::now();
    assert!(!growth.is_due(0) && growth.is_due(1));
    assert_eq!(growth.look(now, 1, Sample::default), Some(3));
    assert_eq!(growth.look(now, 1 << 30, Sample::default), None, "they are being connected");
    // Two of three could be connected.
    assert!(growth.end_connecting(now, 2));
    assert_eq!(growth.look(now + 2 * RETRY_MAX, 1 << 40, Sample::default), None);
    for one in [Sockets::One, Sockets::Fixed(1)] {
        assert!(!Growth::new(one).is_due(1 << 40));
    }
}

#[test]
fn sockets_that_cannot_be_connected_are_tried_again_later() {
    let mut growth = Growth::new(Sockets::Tuned);
    let start = Instant::now();
    let at = |millis| start + Duration::from_millis(millis);
    let sample = |millis, acked| Sample {
        acked,
        busy: Duration::from_millis(millis),
        sockets: 1,
        ..Sample::default()
    };
    assert_eq!(growth.look(at(0), LOOK_BYTES, || sample(0, 0)), None);
    assert_eq!(growth.look(at(100), 2 * LOOK_BYTES, || sample(100, LOOK_BYTES)), Some(2));
    assert!(!growth.end_connecting(at(100), 0));
    for (millis, wanted) in [(1000, None), (5200, None), (5300, None), (5400, Some(2))] {
        assert_eq!(
            growth.look(at(millis), 3 * LOOK_BYTES, || sample(millis, millis << 10)),
            wanted,
            "{millis}"
        );
    }
}

/// A stream in networks with these links; one connection fills each. Returns the numbers of sockets
/// in each network, whenever they changed.
fn spread(links: &[f64], seconds: f64) -> Vec<Vec<usize>> {
    let mut growth = Growth::new(Sockets::Tuned);
    growth.set_networks(links.len());
    let start = Instant::now();
    let (mut elapsed, mut sent, mut used) = (0.0, 0_u64, vec![1]);
    let mut sample = Sample { sockets: 1, ..Sample::default() };
    let mut history = vec![used.clone()];
    while elapsed < seconds {
        let rate: f64 = links.iter().zip(&used).filter(|(_, used)| **used > 0).map(|(link, _)| link).sum();
        let step = LOOK_BYTES as f64 / rate;
        (elapsed, sent) = (elapsed + step, sent + LOOK_BYTES);
        sample.acked += LOOK_BYTES;
        sample.sockets = used.iter().sum::<usize>() as u32;
        sample.busy += Duration::from_secs_f64(step) * sample.sockets;
        let now = start + Duration::from_secs_f64(elapsed);
        if let Some(wanted) = growth.look(now, sent, || sample) {
            let networks = growth.networks_used();
            let in_turn = |network: usize| (wanted + networks - 1 - network) / networks;
            if growth.end_connecting(now, wanted) {
                used = (0..networks.min(wanted)).map(in_turn).collect();
                history.push(used.clone());
            }
        }
    }
    history
}

#[test]
fn a_stream_uses_all_networks_that_make_it_faster() {
    let full = [GIGABIT, GIGABIT];
    assert_eq!(spread(&full, 1.0), [vec![1], vec![2, 2], vec![4, 4], vec![2, 2]]);
    let three = [GIGABIT, 0.5 * GIGABIT, 0.5 * GIGABIT];
    assert_eq!(spread(&three, 1.0)[..2], [vec![1], vec![2, 2, 2]]);
}

#[test]
fn a_network_that_makes_a_stream_hardly_faster_is_left_out_of_the_next_attempt() {
    let history = spread(&[GIGABIT, 0.1 * GIGABIT], 1.0);
    assert_eq!(history, [vec![1], vec![2, 2], vec![2], vec![1]]);
    // It is tried again.
    let again = spread(&[GIGABIT, 0.1 * GIGABIT], 5.0);
    assert_eq!(again[4..], [vec![2, 2], vec![2], vec![1]]);
}

/// The second network is so busy at first that a stream over both is slow.
#[test]
fn a_network_is_tried_again_after_the_first_one_has_got_more_sockets() {
    let mut growth = Growth::new(Sockets::Tuned);
    growth.set_networks(2);
    let start = Instant::now();
    let (mut elapsed, mut sent, mut used) = (0.0, 0_u64, vec![1]);
    let mut sample = Sample { sockets: 1, ..Sample::default() };
    while elapsed < 10.0 {
        // Four sockets fill a network.
        let full: f64 = used.iter().map(|&sockets: &usize| (sockets as f64 / 4.0).min(1.0)).sum();
        let is_slow = used.len() == 2 && elapsed < 2.0;
        let step = LOOK_BYTES as f64 / GIGABIT / if is_slow { 0.1 } else { full };
        (elapsed, sent) = (elapsed + step, sent + LOOK_BYTES);
        sample.acked += LOOK_BYTES;
        sample.sockets = used.iter().sum::<usize>() as u32;
        sample.busy += Duration::from_secs_f64(step) * sample.sockets;
        let now = start + Duration::from_secs_f64(elapsed);
        if let Some(wanted) = growth.look(now, sent, || sample)
            && growth.end_connecting(now, wanted)
        {
            let networks = growth.networks_used().min(wanted);
            used = vec![wanted / networks; networks];
        }
    }
    assert_eq!(used, [4, 4]);
}

#[test]
fn a_fixed_number_of_sockets_is_completed_in_the_networks_that_lead_to_the_peer() {
    let mut growth = Growth::new(Sockets::Fixed(4));
    growth.set_networks(2);
    let now = Instant::now();
    assert_eq!(growth.look(now, 1, Sample::default), Some(4));
    growth.set_networks(1);
    assert!(growth.end_connecting(now, 2));
    assert_eq!(growth.look(now, 1 << 30, Sample::default), Some(4));
    assert!(growth.end_connecting(now, 4));
    assert_eq!(growth.look(now, 1 << 40, Sample::default), None);
}
