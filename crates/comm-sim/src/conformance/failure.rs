//! Tests of peers that exit and callers that abort.

use std::time::Duration;

use comm_core::{Armed, Error, Fabric, Result, Transport};

use super::CreateFabrics;
use super::port::{Gate, Port, bytes, each, limit, lost, open};
use super::sleep::fill;

/// The last bytes from a peer that exits arrive before the error that names it.
pub fn bytes_sent_before_a_death_are_delivered<L: Fabric>(create: CreateFabrics<'_, L>) -> Result<()> {
    const LAST: usize = 200;
    let dead = Gate::new(3);
    each(create, 3, |fabric| {
        let mut port = open(fabric)?;
        let rank = port.rank();
        if rank == 1 {
            for survivor in [0, 2] {
                port.send(survivor, &bytes(1, survivor, LAST))?;
            }
            drop(port);
            dead.wait();
            return Ok(());
        }
        dead.wait();
        // A rank that has detected the exit still gets the bytes.
        port.arm(&[], &[])?;
        let mut into = [0; LAST];
        port.recv(1, &mut into)?;
        assert_eq!(into[..], bytes(1, rank, LAST));
        let error = Err::<(), _>(port.recv_error(1)?);
        assert_eq!(lost(&error), Some(1), "{error:?}");
        assert_eq!(lost(&port.transport.fill_buf(1, 1)), Some(1));
        let error = loop_until_error(&mut port, 1);
        assert_eq!(lost(&error), Some(1), "{error:?}");
        // No rank sleeps on a stream that has ended.
        for _ in 0..3 {
            port.wait(&[1], &[])?;
            port.wait(&[], &[1])?;
        }
        Ok(())
    })?;
    Ok(())
}

/// A sender that waits for capacity detects that its peer has exited, and does not sleep on that
/// stream again.
pub fn a_death_wakes_a_sender_without_capacity<L: Fabric>(create: CreateFabrics<'_, L>) -> Result<()> {
    let full = Gate::new(2);
    each(create, 2, |fabric| {
        let mut port = open(fabric)?;
        if port.rank() == 1 {
            full.wait();
            std::thread::sleep(Duration::from_millis(30));
            return Ok(());
        }
        fill(&mut port, 1)?;
        full.wait();
        let limit = limit();
        let error = loop {
            port.wait(&[], &[1])?;
            let sent = port.transport.try_send(1, &[std::io::IoSlice::new(&[0])]);
            if sent.is_err() || std::time::Instant::now() > limit {
                break sent;
            }
        };
        assert_eq!(lost(&error), Some(1), "{error:?}");
        for _ in 0..3 {
            port.wait(&[], &[1])?;
        }
        Ok(())
    })?;
    Ok(())
}

/// Sends until an attempt fails: a kernel may accept a few bytes for a peer that has exited.
fn loop_until_error<T: Transport>(port: &mut Port<T>, to: usize) -> Result<()> {
    let limit = limit();
    while std::time::Instant::now() < limit {
        port.send(to, &[0; 64])?;
    }
    Ok(())
}

/// The exit of a peer that no rank waits for wakes a sleeping rank.
pub fn death_of_an_uninvolved_peer_wakes_a_sleeper<L: Fabric>(create: CreateFabrics<'_, L>) -> Result<()> {
    let received = Gate::new(2);
    each(create, 3, |fabric| {
        let mut port = open(fabric)?;
        match port.rank() {
            0 => {
                while lost(&port.transport.try_recv(2, &mut [0])) != Some(2) {
                    port.wait(&[1], &[])?;
                }
                received.wait();
            }
            1 => received.wait(),
            _ => std::thread::sleep(Duration::from_millis(50)),
        }
        Ok(())
    })?;
    Ok(())
}

/// A rank that goes to sleep after a peer has exited still detects the exit.
pub fn a_death_before_sleep_prevents_sleep<L: Fabric>(create: CreateFabrics<'_, L>) -> Result<()> {
    let (dead, received) = (Gate::new(3), Gate::new(2));
    each(create, 3, |fabric| {
        let mut port = open(fabric)?;
        if port.rank() == 2 {
            drop(port);
            dead.wait();
            return Ok(());
        }
        dead.wait();
        // A kernel may need a moment to report the exit.
        std::thread::sleep(Duration::from_millis(50));
        let peer = 1 - port.rank();
        loop {
            port.wait(&[peer], &[])?;
            if lost(&port.transport.try_recv(2, &mut [0])) == Some(2) {
                break;
            }
        }
        received.wait();
        Ok(())
    })?;
    Ok(())
}

/// After an exit, the survivors continue, and still sleep while they wait.
pub fn other_streams_survive_a_death<L: Fabric>(create: CreateFabrics<'_, L>) -> Result<()> {
    const TOTAL: usize = 1 << 20;
    each(create, 3, |fabric| {
        let mut port = open(fabric)?;
        let rank = port.rank();
        if rank == 2 {
            return Ok(());
        }
        let error = Err::<(), _>(port.recv_error(2)?);
        assert_eq!(lost(&error), Some(2), "{error:?}");
        let (peer, mut into) = (1 - rank, vec![0; TOTAL]);
        port.exchange(peer, &bytes(rank, peer, TOTAL), &mut into)?;
        assert!(into == bytes(peer, rank, TOTAL), "the received bytes differ from the sent ones");
        if rank == 0 {
            std::thread::sleep(Duration::from_millis(100));
            port.send(1, &[7])?;
            return port.recv_byte(1).map(drop);
        }
        let before = port.sleeps;
        assert_eq!(port.recv_byte(0)?, 7);
        let wakeups = port.sleeps - before;
        assert!(wakeups < 1000, "the dead peer woke a sleeping rank {wakeups} times");
        port.send(0, &[7])
    })?;
    Ok(())
}

fn cause(reason: &str) -> Error {
    Error::Aborted { by: 0, reason: reason.into() }
}

/// Returns whether a result is an abort with this reason.
fn aborted<T>(result: &Result<T>, expected: &str) -> bool {
    matches!(result, Err(Error::Aborted { reason, .. }) if reason == expected)
}

/// After an abort every method fails with the cause, and a second abort does not change it.
pub fn abort_fails_everything_with_the_first_cause<L: Fabric>(create: CreateFabrics<'_, L>) -> Result<()> {
    let done = Gate::new(2);
    each(create, 2, |fabric| {
        let mut port = open(fabric)?;
        let peer = 1 - port.rank();
        port.send(peer, &[1; 16])?;
        if port.rank() == 0 {
            let handle = port.transport.abort_handle();
            handle.abort(cause("first"));
            handle.abort(cause("second"));
            port.transport.abort_handle().abort(cause("third"));
            assert!(aborted(&port.transport.try_send(1, &[std::io::IoSlice::new(&[1])]), "first"));
            assert!(aborted(&port.transport.try_recv(1, &mut [0]), "first"));
            assert!(aborted(&port.transport.fill_buf(1, 1), "first"));
            assert!(aborted(&port.transport.consume(1, 0), "first"));
            assert!(aborted(&port.arm(&[1], &[1]), "first"));
            assert!(aborted(&port.arm(&[], &[]), "first"));
            port.transport.revoke();
        }
        done.wait();
        Ok(())
    })?;
    Ok(())
}

/// An abort by another thread wakes a sleeping rank.
pub fn abort_wakes_a_sleeper<L: Fabric>(create: CreateFabrics<'_, L>) -> Result<()> {
    let woken = Gate::new(2);
    each(create, 2, |fabric| {
        let mut port = open(fabric)?;
        let peer = 1 - port.rank();
        if port.rank() == 0 {
            let handle = port.transport.abort_handle();
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    std::thread::sleep(Duration::from_millis(50));
                    handle.abort(cause("enough"));
                });
                let limit = limit();
                let end = loop {
                    let woken = port.wait(&[peer], &[]);
                    if woken.is_err() || std::time::Instant::now() > limit {
                        break woken;
                    }
                };
                assert!(aborted(&end, "enough"), "{end:?}");
            });
        } else {
            while port.arm(&[peer], &[])? == Armed::Ready {}
        }
        woken.wait();
        Ok(())
    })?;
    Ok(())
}
