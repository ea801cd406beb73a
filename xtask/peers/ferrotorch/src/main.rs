//! Measures the ring all-reduce of ferrotorch-distributed: `ferrotorch-peer RANKS all_reduce
//! SAMPLES SAMPLE_MS 0 BYTES...`
//!
//! Starts the ranks on this machine. Measures as `commctl perf` does, with sums of `f32`: after two
//! warm-up calls, a sample is the average time of consecutive calls over SAMPLE_MS on the slowest
//! rank, and the time is the median of the samples. Rank 0 prints a JSON object per size. Every
//! result is checked once, bit for bit, before the measurement.

#![forbid(unsafe_code)]

use std::env;
use std::error::Error;
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

use ferrotorch_distributed::backend::Backend;
use ferrotorch_distributed::gloo_backend::GlooBackend;

type Outcome<T> = Result<T, Box<dyn Error>>;

const RANK: &str = "COMPARE_RANK";
const MASTER: &str = "COMPARE_MASTER";
const WARMUP: usize = 2;
const GROWTH_MAX: u64 = 16;
const CALLS_MAX: u64 = 1 << 24;

/// The command line.
struct Wanted {
    ranks: usize,
    samples: usize,
    least: Duration,
    sizes: Vec<usize>,
}

impl Wanted {
    fn read() -> Outcome<Self> {
        let words: Vec<String> = env::args().skip(1).collect();
        let [ranks, collective, samples, sample_ms, rotated, sizes @ ..] = &words[..] else {
            return Err("usage: ferrotorch-peer RANKS all_reduce SAMPLES SAMPLE_MS 0 BYTES...".into());
        };
        if rotated != "0" {
            return Err("all calls use the same buffer".into());
        }
        if collective != "all_reduce" {
            return Err(format!("{collective}: there is only a ring for all_reduce").into());
        }
        Ok(Self {
            ranks: ranks.parse()?,
            samples: samples.parse()?,
            least: Duration::from_secs_f64(sample_ms.parse::<f64>()? / 1e3),
            sizes: sizes.iter().map(|size| size.parse()).collect::<Result<_, _>>()?,
        })
    }
}

fn main() -> ExitCode {
    let outcome = Wanted::read().and_then(|wanted| match env::var(RANK) {
        Ok(rank) => measure_all(&wanted, rank.parse()?),
        Err(_) => launch(wanted.ranks),
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ferrotorch-peer: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs this program once per rank, and terminates all of them if one fails.
fn launch(ranks: usize) -> Outcome<()> {
    // The port was free a moment ago.
    let master = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.to_string();
    let start = |rank: usize| {
        let mut command = Command::new(env::current_exe()?);
        command.args(env::args().skip(1)).env(RANK, rank.to_string()).env(MASTER, &master).spawn()
    };
    let mut running = (0..ranks).map(start).collect::<Result<Vec<Child>, _>>()?;
    while !running.is_empty() {
        let mut failed = false;
        let mut left = Vec::with_capacity(running.len());
        for mut child in running {
            match child.try_wait()? {
                None => left.push(child),
                Some(status) => failed |= !status.success(),
            }
        }
        running = left;
        if failed {
            for child in &mut running {
                child.kill()?;
            }
            return Err("a rank failed".into());
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn measure_all(wanted: &Wanted, rank: usize) -> Outcome<()> {
    let group = GlooBackend::new(rank, wanted.ranks, &env::var(MASTER)?)?;
    for &bytes in &wanted.sizes {
        let mut buffer = vec![0.0; bytes / size_of::<f32>()];
        check(&group, &mut buffer)?;
        // As measure.h does.
        buffer.fill(-0.0);
        let seconds = measure(&group, wanted, &mut buffer)?;
        if rank == 0 {
            let (ranks, us) = (wanted.ranks, seconds * 1e6);
            println!(
                r#"{{"collective":"all_reduce","ranks":{ranks},"bytes":{bytes},"time_us":{{"p50":{us}}}}}"#
            );
        }
    }
    group.barrier()?;
    Ok(())
}

/// A small integer, so that every sum is exact.
fn contribution(rank: usize, index: usize) -> f32 {
    ((index * 7 + rank * 3) % 16) as f32
}

fn check(group: &GlooBackend, buffer: &mut [f32]) -> Outcome<()> {
    for (index, element) in buffer.iter_mut().enumerate() {
        *element = contribution(group.rank(), index);
    }
    group.ring_allreduce_sum_f32(buffer)?;
    let expected = |index| (0..group.world_size()).map(|rank| contribution(rank, index)).sum::<f32>();
    match buffer.iter().enumerate().find(|(index, element)| element.to_bits() != expected(*index).to_bits()) {
        Some((index, _)) => Err(format!("element {index} of the result is wrong").into()),
        None => Ok(()),
    }
}

fn measure(group: &GlooBackend, wanted: &Wanted, buffer: &mut [f32]) -> Outcome<f64> {
    for _ in 0..WARMUP {
        group.ring_allreduce_sum_f32(buffer)?;
    }
    let calls = agree_on_calls(group, wanted.least, buffer)?;
    let mut samples = Vec::with_capacity(wanted.samples);
    for _ in 0..wanted.samples {
        group.barrier()?;
        let own = elapsed(group, buffer, calls)?.as_secs_f64() / calls as f64;
        samples.push(slowest(group, own)?);
    }
    samples.sort_unstable_by(f64::total_cmp);
    let count = samples.len();
    Ok((samples[(count - 1) / 2] + samples[count / 2]) / 2.0)
}

/// Returns the time of consecutive calls on this rank.
fn elapsed(group: &GlooBackend, buffer: &mut [f32], calls: u64) -> Outcome<Duration> {
    let start = Instant::now();
    for _ in 0..calls {
        group.ring_allreduce_sum_f32(buffer)?;
    }
    Ok(start.elapsed())
}

/// Returns the number of calls of a sample, which rank 0 determines.
fn agree_on_calls(group: &GlooBackend, least: Duration, buffer: &mut [f32]) -> Outcome<u64> {
    let mut calls = 1;
    loop {
        group.barrier()?;
        let took = elapsed(group, buffer, calls)?;
        let mut next = more_calls(calls, took, least).to_le_bytes();
        for peer in 1..group.world_size() {
            match group.rank() {
                0 => group.send(&next, peer)?,
                rank if rank == peer => group.recv(&mut next, 0)?,
                _ => {}
            }
        }
        let next = u64::from_le_bytes(next);
        if next == calls {
            return Ok(calls);
        }
        calls = next;
    }
}

/// Returns `calls` if they took long enough, and otherwise a larger number.
fn more_calls(calls: u64, took: Duration, least: Duration) -> u64 {
    if took >= least || calls >= CALLS_MAX {
        return calls;
    }
    let needed = 1.1 * calls as f64 * least.as_secs_f64() / took.as_secs_f64().max(1e-9);
    (needed.ceil() as u64).clamp(calls + 1, calls * GROWTH_MAX).min(CALLS_MAX)
}

/// Returns the maximum over all ranks on rank 0, and the own number on others.
fn slowest(group: &GlooBackend, own: f64) -> Outcome<f64> {
    if group.rank() > 0 {
        group.send(&own.to_le_bytes(), 0)?;
        return Ok(own);
    }
    let mut most = own;
    for peer in 1..group.world_size() {
        let mut bytes = [0; 8];
        group.recv(&mut bytes, peer)?;
        most = most.max(f64::from_le_bytes(bytes));
    }
    Ok(most)
}
