//! Measures TCP between two sockets on this host.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::Instant;

use socket2::{Domain, Socket, Type};

use crate::Limit;

const ROUND_TRIP: &str = "TCP over loopback, round trip";

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
    limits.push(small(ROUND_TRIP, "blocking", false, [ping, pong])?);
    limits.push(trip()?);
    limits.push(exchange()?);
    for control in congestion_controls()? {
        let seconds = best(TRIES, || stream(&control))?;
        limits.push(Limit::speed("TCP over loopback, one way", control.clone(), BYTES, seconds));
        limits.push(duplex(control, BYTES, TRIES)?);
    }
    Ok(limits)
}

/// Measures a byte there and back, between threads that spin.
pub(crate) fn trip() -> io::Result<Limit> {
    small(ROUND_TRIP, "spinning", true, [ping, pong])
}

/// Measures calls in which each of two threads sends the other a byte.
pub(crate) fn exchange() -> io::Result<Limit> {
    small("TCP over loopback, exchange", "spinning", true, [ping, ping])
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

/// A small call of one of two threads.
type Call = fn(&mut TcpStream) -> io::Result<()>;

fn small(name: &'static str, detail: &str, nonblocking: bool, calls: [Call; 2]) -> io::Result<Limit> {
    let seconds = best(TRIES, || seconds_per_call(nonblocking, calls))?;
    Ok(Limit::time(name, detail.to_owned(), seconds))
}

fn ping(socket: &mut TcpStream) -> io::Result<()> {
    socket.write_all(&[1])?;
    receive_byte(socket)
}

fn pong(socket: &mut TcpStream) -> io::Result<()> {
    receive_byte(socket)?;
    socket.write_all(&[1])
}

fn seconds_per_call(nonblocking: bool, [first, second]: [Call; 2]) -> io::Result<f64> {
    let (mut near, mut far) = pair(None)?;
    near.set_nonblocking(nonblocking)?;
    far.set_nonblocking(nonblocking)?;
    let other = thread::spawn(move || (0..TRIPS).try_for_each(|_| second(&mut far)));
    let began = Instant::now();
    (0..TRIPS).try_for_each(|_| first(&mut near))?;
    let seconds = began.elapsed().as_secs_f64() / f64::from(TRIPS);
    joined(other.join())?;
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
    let other = thread::spawn(move || both_directions(far, bytes));
    let began = Instant::now();
    both_directions(near, bytes)?;
    joined(other.join())?;
    Ok(began.elapsed().as_secs_f64())
}

fn both_directions(mut socket: TcpStream, bytes: usize) -> io::Result<()> {
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
