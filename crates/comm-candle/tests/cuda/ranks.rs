//! Ranks as processes with CUDA devices: the test program starts itself once per rank.

use std::fs::File;
use std::io::{Write, stderr};
use std::path::Path;
use std::process::{Child, Command};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use std::{env, fs};

use candle_core::{Device, Tensor};
use comm::{Comm, Config, Cuda, DeviceChoice, HybridCommunicator, Membership, StoreHost, init_devices_with};
use comm_nccl::Library;

/// The rank of a process that a test starts, as `RANK SIZE DEVICE FOLDER`.
const RANK: &str = "COMM_CANDLE_TEST_RANK";
/// The time after which an operation counts as hanging.
const SOON: Duration = Duration::from_secs(30);
/// The time after which a process is killed.
const LIMIT: Duration = Duration::from_secs(120);
/// The first version of NCCL with several ranks on one device, if this variable is set.
const SHARED_SINCE: [u32; 3] = [2, 30, 3];
const SHARED: &str = "NCCL_MULTI_RANK_GPU_ENABLE";

/// A rank in its own process.
pub(crate) struct RankContext {
    pub(crate) group: HybridCommunicator,
    /// The ordinal of its device.
    pub(crate) ordinal: usize,
    /// candle's device, with the stream of this thread.
    pub(crate) device: Device,
}

impl RankContext {
    fn connect(spec: &str) -> Self {
        let fields: Vec<&str> = spec.splitn(4, ' ').collect();
        let [rank, size, ordinal] = [0, 1, 2].map(|at| fields[at].parse().unwrap());
        let mut config = Config::new(Membership { rank, size }, "localhost", 0).unwrap();
        config.store = StoreHost::Folder(fields[3].into());
        config.devices.device = DeviceChoice::Ordinal(ordinal);
        (config.timeout, config.rendezvous_timeout) = (SOON, SOON);
        let group = init_devices_with(&config).unwrap();
        Self { group, ordinal, device: Device::new_cuda(ordinal).unwrap() }
    }

    pub(crate) fn rank(&self) -> usize {
        self.group.group().rank()
    }

    pub(crate) fn size(&self) -> usize {
        self.group.group().size()
    }

    pub(crate) const fn host(&self) -> &Comm {
        self.group.host()
    }

    pub(crate) const fn cuda(&self) -> &Comm<Cuda> {
        self.group.cuda()
    }

    /// Fails if these numbers are not the same on all ranks.
    pub(crate) fn assert_same(&self, numbers: &[f64]) {
        let bits: Vec<u64> = numbers.iter().map(|number| number.to_bits()).collect();
        let mut all = vec![0; bits.len() * self.size()];
        self.host().all_gather(&bits, &mut all).unwrap();
        assert!(all.chunks_exact(bits.len()).all(|other| other == bits), "the ranks differ");
    }
}

/// Copies a tensor to host memory.
pub(crate) fn on_cpu(tensor: &Tensor) -> Tensor {
    tensor.to_device(&Device::Cpu).unwrap()
}

/// Runs the test of this name with one rank, and with two if there are two devices or NCCL can
/// share one. Without a device or NCCL it prints that to standard error.
pub(crate) fn on_ranks(test: &str, rank_main: impl FnOnce(&RankContext)) {
    on_worlds(test, &[1, 2], rank_main);
}

/// Like [`on_ranks`], with these numbers of ranks.
pub(crate) fn on_worlds(test: &str, sizes: &[usize], rank_main: impl FnOnce(&RankContext)) {
    if let Ok(spec) = env::var(RANK) {
        return rank_main(&RankContext::connect(&spec));
    }
    // One test at a time uses the devices.
    static DEVICES: Mutex<()> = Mutex::new(());
    let _devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
    for &size in sizes {
        match placement(size) {
            Ok(devices) => run(test, &devices),
            // The test harness shows the output of failed tests only.
            Err(why) => stderr()
                .write_all(format!("{test}: {size} ranks are not tested: {why}\n").as_bytes())
                .unwrap(),
        }
    }
}

/// Returns the devices of the ranks.
fn placement(size: usize) -> Result<Vec<usize>, String> {
    let text = |error: comm_core::Error| error.to_string();
    let devices = comm_nccl::Device::count().map_err(text)?;
    let version = Library::from_env().map_err(text)?.version();
    match devices {
        0 => Err("there is no device".into()),
        _ if devices >= size => Ok((0..size).collect()),
        _ if [version.major, version.minor, version.patch] >= SHARED_SINCE => Ok(vec![0; size]),
        _ => Err(format!("there are {devices} devices, and NCCL {version} does not share them")),
    }
}

/// Runs the test in one process per rank.
#[track_caller]
fn run(test: &str, devices: &[usize]) {
    let folder = tempfile::tempdir().unwrap();
    let output = |rank: usize| folder.path().join(format!("output of rank {rank}"));
    let start = |(rank, device): (usize, &usize)| {
        let spec = format!("{rank} {} {device} {}", devices.len(), folder.path().display());
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", test, "--nocapture"]).env(RANK, spec);
        // The memory of two communicators must fit on one device.
        for (name, value) in [(SHARED, "1"), ("NCCL_MAX_CTAS", "8"), ("NCCL_SOCKET_IFNAME", "lo")] {
            if env::var_os(name).is_none() {
                command.env(name, value);
            }
        }
        let file = File::create(output(rank)).unwrap();
        command.stdout(file.try_clone().unwrap()).stderr(file).spawn().unwrap()
    };
    let mut ranks: Vec<Child> = devices.iter().enumerate().map(start).collect();
    let until = Instant::now() + LIMIT;
    while Instant::now() < until && ranks.iter_mut().any(|rank| rank.try_wait().unwrap().is_none()) {
        thread::sleep(Duration::from_millis(5));
    }
    let mut failed = String::new();
    for (rank, child) in ranks.iter_mut().enumerate() {
        // It succeeds or fails here, after its output is complete.
        drop(child.kill());
        let (status, output) = (child.wait().unwrap(), read(&output(rank)));
        if !status.success() || !output.contains("1 passed") {
            failed += &format!("rank {rank} of {}, {status}:\n{output}\n", devices.len());
        }
    }
    assert!(failed.is_empty(), "{test}:\n{failed}");
}

fn read(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap()).into_owned()
}
