//! Measures the limits of this machine, with which the speed of collectives is compared, and prints
//! them as JSON lines.
//!
//! Every number is the best of several tries, so that it shows the speed of the undisturbed
//! machine.

#![deny(unsafe_code)]

mod copies;
mod exchange;
mod memory;
mod shared;
mod sockets;

use std::error::Error;
use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};

/// Measure the limits of this machine, and print them as JSON lines
#[derive(Debug, Parser)]
#[command(name = "limits", version)]
struct Args {
    /// Limits to measure quickly, in few tries [default: all limits, in many tries]
    #[arg(value_enum)]
    quick: Vec<Quick>,

    /// Number of threads of the triad
    #[arg(long, value_name = "N", default_value = "2")]
    threads: NonZeroUsize,
}

/// A limit that takes a fraction of a second to measure.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Quick {
    /// The bandwidth of memory
    Triad,
    /// The round trip of a flag in memory
    Flag,
    /// Two threads that send each other a few bytes
    Exchange,
    /// A few bytes from one thread to another
    Message,
    /// The round trip of a flag between the first two cores
    Cores,
    /// A TCP connection that carries data both ways
    Duplex,
    /// A byte over TCP, there and back
    TcpTrip,
    /// A byte over TCP from each of two threads to the other
    TcpExchange,
}

/// A limit with its unit.
#[derive(Debug)]
struct Limit {
    name: &'static str,
    detail: String,
    value: f64,
    unit: &'static str,
}

impl Limit {
    /// Creates a limit in 10^9 bytes per second.
    fn speed(name: &'static str, detail: String, bytes: usize, seconds: f64) -> Self {
        Self { name, detail, value: bytes as f64 / seconds / 1e9, unit: "GB/s" }
    }

    /// Creates a limit in microseconds.
    fn time(name: &'static str, detail: String, seconds: f64) -> Self {
        Self { name, detail, value: seconds * 1e6, unit: "us" }
    }

    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let Self { name, detail, value, unit } = self;
        let object = serde_json::json!({"limit": name, "detail": detail, "value": value, "unit": unit});
        writeln!(out, "{object}")?;
        out.flush()
    }
}

fn main() -> ExitCode {
    match measure(&Args::parse(), &mut io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // If standard error is closed, the exit code still reports the error.
            drop(writeln!(io::stderr(), "limits: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn measure(args: &Args, out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    let mut print = |limits: Vec<Limit>| limits.iter().try_for_each(|limit| limit.print(out));
    if args.quick.is_empty() {
        print(memory::limits())?;
        print(shared::limits())?;
        print(exchange::exchanges())?;
        print(exchange::messages())?;
        print(sockets::limits()?)?;
    }
    for quick in &args.quick {
        print(match quick {
            Quick::Triad => vec![memory::quick_triad(args.threads.get())],
            Quick::Flag => vec![shared::quick_flag()],
            Quick::Exchange => exchange::exchanges(),
            Quick::Message => exchange::messages(),
            Quick::Cores => shared::first_cores().into_iter().collect(),
            Quick::Duplex => sockets::quick_duplex()?,
            Quick::TcpTrip => vec![sockets::trip()?],
            Quick::TcpExchange => vec![sockets::exchange()?],
        })?;
    }
    Ok(())
}
