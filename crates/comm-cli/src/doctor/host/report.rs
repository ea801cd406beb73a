//! Prints a diagnosis.

use std::io::{self, Write};

use comm_cli::__private::units;

use super::Diagnosis;
use super::facts::Facts;
use super::problems::Severity;
use crate::error::{CliError, Result};

pub(super) fn write(diagnosis: &Diagnosis, json: bool) -> Result<()> {
    let mut out = io::stdout().lock();
    let write = if json { as_json } else { as_text };
    write(&mut out, diagnosis).and_then(|()| out.flush()).map_err(CliError::write("standard output"))
}

fn as_json(out: &mut dyn Write, diagnosis: &Diagnosis) -> io::Result<()> {
    serde_json::to_writer(&mut *out, diagnosis)?;
    writeln!(out)
}

/// Writes the worst problem first, because many read only the first line.
fn as_text(out: &mut dyn Write, diagnosis: &Diagnosis) -> io::Result<()> {
    if diagnosis.problems.is_empty() {
        writeln!(out, "no problem was found")?;
    }
    for problem in &diagnosis.problems {
        let severity = match problem.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        writeln!(out, "{severity}: {}", problem.text)?;
        writeln!(out, "  remedy: {}", problem.remedy)?;
    }
    for facts in &diagnosis.hosts {
        host(out, facts)?;
    }
    links(out, diagnosis)
}

fn host(out: &mut dyn Write, facts: &Facts) -> io::Result<()> {
    let unknown = || "unknown".to_owned();
    let addresses: Vec<String> = facts.addresses.iter().map(ToString::to_string).collect();
    let interfaces: Vec<String> = facts
        .interfaces
        .iter()
        .map(|it| {
            let state = if it.is_up { "up" } else { "down" };
            format!("{} ({state}, MTU {})", it.name, it.mtu.map_or_else(unknown, |mtu| mtu.to_string()))
        })
        .collect();
    let rows = [
        ("addresses", addresses.join(", ")),
        ("address for other hosts", facts.outward.map_or_else(|| "none".into(), |ip| ip.to_string())),
        ("interfaces", interfaces.join(", ")),
        ("cores", facts.cores.to_string()),
        ("available memory", facts.memory.map_or_else(unknown, |bytes| units::about(bytes as f64))),
        ("open files", facts.open_files.map_or_else(|| "unlimited".into(), |most| most.to_string())),
        ("CUDA driver", facts.gpu.driver_text()),
        ("NCCL", facts.gpu.nccl_text()),
        ("congestion control", facts.congestion_control.clone()),
    ];
    writeln!(out, "{}", facts.host)?;
    for (name, value) in rows {
        writeln!(out, "  {name:<24}{value}")?;
    }
    Ok(())
}

fn links(out: &mut dyn Write, diagnosis: &Diagnosis) -> io::Result<()> {
    if diagnosis.links.is_empty() {
        return Ok(());
    }
    writeln!(out, "  ranks       latency     bandwidth")?;
    for link in &diagnosis.links {
        let [a, b] = link.ranks;
        let (latency, gigabits) = (units::time(link.latency), 8e-9 * link.bandwidth);
        writeln!(out, "  {a:>4} {b:>4}  {latency:>10}  {gigabits:>7.2} Gbit/s")?;
    }
    Ok(())
}
