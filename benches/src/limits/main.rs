//! What this machine can do, as JSON lines: the limits by which the speed of a collective is
//! judged.
//!
//! Every number is the best of several tries. It says how fast the machine is when nothing disturbs
//! it, and never more than that.

#![forbid(unsafe_code)]

mod memory;
mod shared;
mod sockets;

use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;

/// A number with what it is.
#[derive(Debug)]
struct Limit {
    name: &'static str,
    detail: String,
    value: f64,
    unit: &'static str,
}

impl Limit {
    /// In 10^9 bytes per second.
    fn speed(name: &'static str, detail: String, bytes: usize, seconds: f64) -> Self {
        Self { name, detail, value: bytes as f64 / seconds / 1e9, unit: "GB/s" }
    }

    /// In microseconds.
    fn round_trip(name: &'static str, detail: String, seconds: f64) -> Self {
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
    match measure(&mut io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nowhere is left to say that standard error is closed.
            drop(writeln!(io::stderr(), "limits: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn measure(out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    memory::limits().iter().try_for_each(|limit| limit.print(out))?;
    shared::limits().iter().try_for_each(|limit| limit.print(out))?;
    sockets::limits()?.iter().try_for_each(|limit| limit.print(out))?;
    Ok(())
}
