//! Measures TCP between two sockets on this host.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::Instant;

use socket2::{Domain, Socket, Type};

use crate::Limit;

const TRIPS: u32 = 2_000;
const TRIES: usize = 5;
const QUICK_TRIES: usize = 3;
/// The bytes of a stream.
const BYTES: usize = 512 << 20;
const QUICK_BYTES: usize = 128 << 20;
/// The bytes per write.
const PIECE: usize = 1 << 20;

pub(crate) fn limits() -> io::Result<Vec<Limit>> {
    let mut limits = Vec::new();
    for (detail, nonblocking) in [("blocking", false), ("spinning", true)] {
        let seconds = best(TRIES, || round_trip(nonblocking))?;
        limits.push(Limit::time("TCP over loopback, round trip", detail.to_owned(), seconds));
    }
    for control in congestion_controls()? {
        let seconds = best(TRIES, || stream(&control))?;
        limits.push(Limit::speed("TCP over loopback, one way", control.clone(), BYTES, seconds));
        limits.push(duplex(control, BYTES, TRIES)?);
    }
    Ok(limits)
}

/// Measures connections that carry data both ways.
pub(crate) fn quick_duplex() -> io::Result<Vec<Limit>> {
    let controls = congestion_controls()?.into_iter();
    controls.map(|control| duplex(control, QUICK_BYTES, QUICK_TRIES)).collect()
}

fn congestion_controls() -> io::Result<Vec<String>> {
    let available = fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control")?;
    Ok(available.split_whitespace().map(str::to_owned).collect())
}

fn duplex(control: String, bytes: usize, tries: usize) -> io::Result<Limit> {
    let seconds = best(tries, || both_ways(&control, bytes))?;
    Ok(Limit::speed("TCP over loopback, both ways", control, bytes, seconds))
}

fn best(tries: usize, mut seconds: impl FnMut() -> io::Result<f64>) -> io::Result<f64> {
    (0..tries).try_fold(f64::INFINITY, |best, _| Ok(best.min(seconds()?)))
}

/// Returns two connected sockets.
fn pair(control: Option<&str>) -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    if let Some(control) = control {
        socket.set_tcp_congestion(control.as_bytes())?;
    }
    socket.connect(&listener.local_addr()?.into())?;
    let ends = (TcpStream::from(socket), listener.accept()?.0);
    ends.0.set_nodelay(true)?;
    ends.1.set_nodelay(true)?;
    Ok(ends)
}

/// Returns the seconds of a round trip of one byte.
fn round_trip(nonblocking: bool) -> io::Result<f64> {
    let (mut near, mut far) = pair(None)?;
    near.set_nonblocking(nonblocking)?;
    far.set_nonblocking(nonblocking)?;
    let echo = thread::spawn(move || -> io::Result<()> {
        for _ in 0..TRIPS {
            receive_byte(&mut far)?;
            far.write_all(&[1])?;
        }
        Ok(())
    });
    let began = Instant::now();
    for _ in 0..TRIPS {
        near.write_all(&[1])?;
        receive_byte(&mut near)?;
    }
    let seconds = began.elapsed().as_secs_f64() / f64::from(TRIPS);
    joined(echo.join())?;
    Ok(seconds)
}

fn receive_byte(socket: &mut TcpStream) -> io::Result<()> {
    let mut byte = [0];
    loop {
        match socket.read_exact(&mut byte) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            ended => return ended,
        }
    }
}

/// Returns the seconds until the receiver has all bytes of a stream.
fn stream(control: &str) -> io::Result<f64> {
    let (mut near, mut far) = pair(Some(control))?;
    let receiver = thread::spawn(move || -> io::Result<()> {
        let (mut piece, mut left) = (vec![1; PIECE], BYTES);
        while left > 0 {
            match far.read(&mut piece)? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                read => left -= read,
            }
        }
        Ok(())
    });
    let piece = vec![1; PIECE];
    let began = Instant::now();
    for _ in 0..BYTES / PIECE {
        near.write_all(&piece)?;
    }
    joined(receiver.join())?;
    Ok(began.elapsed().as_secs_f64())
}

/// Returns the seconds until both ends have all bytes of the stream of the other one. Each end has
/// one thread, which sends and receives in turn.
fn both_ways(control: &str, bytes: usize) -> io::Result<f64> {
    let (near, far) = pair(Some(control))?;
    let other = thread::spawn(move || exchange(far, bytes));
    let began = Instant::now();
    exchange(near, bytes)?;
    joined(other.join())?;
    Ok(began.elapsed().as_secs_f64())
}

fn exchange(mut socket: TcpStream, bytes: usize) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    let (sent, mut received) = (vec![1; PIECE], vec![1; PIECE]);
    let (mut to_send, mut to_receive) = (bytes, bytes);
    while to_send > 0 || to_receive > 0 {
        if to_send > 0 {
            to_send -= moved(socket.write(&sent[..PIECE.min(to_send)]))?;
        }
        if to_receive > 0 {
            to_receive -= moved(socket.read(&mut received))?;
        }
    }
    Ok(())
}

fn moved(outcome: io::Result<usize>) -> io::Result<usize> {
    match outcome {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
        Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
        outcome => outcome,
    }
}

fn joined(outcome: thread::Result<io::Result<()>>) -> io::Result<()> {
    outcome.unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))
}
