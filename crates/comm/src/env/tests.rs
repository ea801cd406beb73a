//! Tests of each variable.

use super::table_tests::from;
use super::*;

const TORCH: [(&str, &str); 4] =
    [("RANK", "1"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "localhost"), ("MASTER_PORT", "29500")];

#[test]
fn torchrun_style() {
    let config = from(&TORCH).unwrap();
    assert_eq!((config.rank, config.world_size, config.master_port), (1, 4, 29500));
    assert_eq!(config.store, StoreHost::RankZero);
}

#[test]
fn the_agent_of_torchrun_serves_the_store_unless_configured_otherwise() {
    let elastic = [
        ("TORCHELASTIC_USE_AGENT_STORE", "True"),
        ("TORCHELASTIC_RUN_ID", "foobar"),
        ("TORCHELASTIC_RESTART_COUNT", "2"),
    ];
    let with = |more: &[(&str, &str)]| from(&[&TORCH[..], &elastic, more].concat()).unwrap();
    let config = with(&[]);
    assert_eq!(config.store, StoreHost::TorchElastic);
    // Each agent counts its own restarts, so ranks with different counts must connect.
    assert_eq!((config.job, config.round), (0x8594_4171_f739_67e8, 0));
    assert_eq!(with(&[("COMM_JOB_ID", "a")]).job, 10);
    let fresh = with(&[("COMM_STORE", "rank0")]);
    assert_eq!((fresh.store, fresh.round), (StoreHost::RankZero, 0));
    assert_eq!(with(&[("COMM_STORE", "launcher")]).store, StoreHost::Launcher);
    let own = [&TORCH[..], &[("TORCHELASTIC_USE_AGENT_STORE", "False")]].concat();
    assert_eq!(from(&own).unwrap().store, StoreHost::RankZero);
    let named = [&TORCH[..], &[("COMM_STORE", "torch")]].concat();
    assert_eq!(from(&named).unwrap().store, StoreHost::TorchElastic);
}

#[test]
fn the_rendezvous_determines_the_store() {
    let elastic = [("RANK", "1"), ("WORLD_SIZE", "4"), ("TORCHELASTIC_USE_AGENT_STORE", "True")];
    let with = |url| from(&[&elastic[..], &[("COMM_RENDEZVOUS", url)]].concat());
    let by_url = |url| with(url).map(|config| (config.master_addr, config.master_port, config.store));
    assert_eq!(by_url("tcp://node1:29500").unwrap(), ("node1".into(), 29500, StoreHost::RankZero));
    assert_eq!(by_url("tcp://[::1]:1").unwrap(), ("[::1]".into(), 1, StoreHost::RankZero));
    let folder = StoreHost::Folder("/shared/job 17".into());
    assert_eq!(by_url("file:///shared/job 17").unwrap(), (String::new(), 0, folder));
    let both = [&TORCH[..], &[("COMM_RENDEZVOUS", "env://")]].concat();
    assert_eq!(from(&both).unwrap().master_addr, "localhost");
    let error = with("env://").unwrap_err().to_string();
    assert!(error.contains("MASTER_ADDR"), "{error}");
    for url in ["tcp://node1", "tcp://:29500", "tcp://node1:0", "tcp://node1:65536", "tcp://node1:1/x?rank=0"]
    {
        let error = with(url).unwrap_err().to_string();
        assert!(error.contains("COMM_RENDEZVOUS") && error.contains("a host and a port"), "{error}");
    }
    let error = with("file://relative").unwrap_err().to_string();
    assert!(error.contains("COMM_RENDEZVOUS") && error.contains("slash"), "{error}");
    for url in ["node1:29500", "http://node1:29500", "env://x", "/shared/job"] {
        let error = with(url).unwrap_err().to_string();
        assert!(error.contains("tcp://HOST:PORT or file:///PATH"), "{error}");
    }
}

#[test]
fn the_number_of_sockets_is_tuned_unless_it_is_configured() {
    let with = |count| from(&[&TORCH[..], &[("COMM_TCP_SOCKETS", count)]].concat()).unwrap();
    assert_eq!(from(&TORCH).unwrap().tcp.sockets_per_peer, None);
    assert_eq!(with("4").tcp.sockets_per_peer, Some(4));
}

#[test]
fn connections_have_checksums_if_configured() {
    let with = |name| from(&[&TORCH[..], &[("COMM_CHECKSUM", name)]].concat()).unwrap();
    assert!(!from(&TORCH).unwrap().tcp.checksums);
    assert!(!with("none").tcp.checksums && with("crc32c").tcp.checksums);
}

#[test]
fn the_transport_can_be_set() {
    let with = |name| from(&[&TORCH[..], &[("COMM_TRANSPORT", name)]].concat());
    assert_eq!(from(&TORCH).unwrap().transport, TransportKind::Auto);
    assert_eq!(with("auto").unwrap().transport, TransportKind::Auto);
    assert_eq!(with("tcp").unwrap().transport, TransportKind::Tcp);
    #[cfg(feature = "shm")]
    assert_eq!(with("shm").unwrap().transport, TransportKind::SharedMemory);
    let error = with("carrier pigeon").unwrap_err().to_string();
    assert!(error.contains("COMM_TRANSPORT") && error.contains("carrier pigeon"), "{error}");
}

#[cfg(feature = "nccl")]
#[test]
fn the_path_of_device_buffers_can_be_set() {
    use comm_hybrid::DevicePath;

    let with = |name| from(&[&TORCH[..], &[("COMM_DEVICE_PATH", name)]].concat());
    assert_eq!(from(&TORCH).unwrap().devices.path, DevicePath::Nccl, "NCCL is the default path");
    for path in DevicePath::ALL {
        assert_eq!(with(path.name()).unwrap().devices.path, path);
    }
    let error = with("pcie").unwrap_err().to_string();
    assert!(error.contains("COMM_DEVICE_PATH") && error.contains("pcie"), "{error}");
}

#[cfg(feature = "shm")]
#[test]
fn the_least_size_of_single_copies_can_be_set() {
    let with = |bytes: &str| from(&[&TORCH[..], &[("COMM_SINGLE_COPY_BYTES", bytes)]].concat());
    assert_eq!(from(&TORCH).unwrap().shm.single_copy_bytes, None);
    for bytes in [0, 65_536, usize::MAX] {
        assert_eq!(with(&bytes.to_string()).unwrap().shm.single_copy_bytes, Some(bytes));
    }
    assert!(with("never").unwrap_err().to_string().contains("COMM_SINGLE_COPY_BYTES"));
}

#[test]
fn a_launched_process_is_detected() {
    let is = |variables: &[(&str, &str)]| is_launched(&variables.iter().copied().collect());
    assert!(is(&[("PMI_RANK", "0")]) && is(&[("RANK", "")]) && is(&[("OMPI_COMM_WORLD_RANK", "x")]));
    assert!(!is(&[]) && !is(&[("WORLD_SIZE", "1"), ("MASTER_ADDR", "localhost")]));
    assert!(!is(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4")]));
    assert!(is(&[("SLURM_PROCID", "0"), ("SLURM_STEP_ID", "0")]) && is(&[("SLURM_PROCID", "1")]));
}

#[test]
fn a_world_of_one_needs_no_master() {
    assert_eq!(from(&[("RANK", "0"), ("WORLD_SIZE", "1")]).unwrap().world_size, 1);
}

#[test]
fn the_model_of_the_links_is_text_or_in_a_file() {
    let link = "latency_us:5,overhead_us:1,gb_per_s:4";
    let text = format!("within={link} between={link} reduce_gb_per_s=8 ranks_per_host=2");
    let with = |links: &str| from(&[&TORCH[..], &[("COMM_LINKS", links)]].concat());
    assert_eq!(from(&TORCH).unwrap().ring.links, None);
    let model = with(&text).unwrap().ring.links.unwrap();
    assert_eq!((model.within.latency, model.ranks_per_host), (5e-6, 2));

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("links");
    let named = format!("@{}", file.display());
    let missing = with(&named).unwrap_err().to_string();
    assert!(missing.contains("COMM_LINKS") && missing.contains(&named), "{missing}");
    fs::write(&file, text + "\n").unwrap();
    assert_eq!(with(&named).unwrap().ring.links, Some(model));
    fs::write(&file, "fast").unwrap();
    let nonsense = with(&named).unwrap_err();
    assert!(!nonsense.is_fatal());
    assert!(nonsense.to_string().contains("COMM_LINKS"), "{nonsense}");
}

#[test]
fn the_record_of_calls_is_configured() {
    let with = |variable: (&str, &str)| from(&[&TORCH[..], &[variable]].concat()).unwrap().ring;
    let default = from(&TORCH).unwrap().ring;
    assert_eq!((default.recorded_calls, default.exact_times, default.record_on_close), (512, false, false));
    assert_eq!(with(("COMM_FLIGHT_CALLS", "4096")).recorded_calls, 4096);
    assert!(with(("COMM_FLIGHT_TIMES", "exact")).exact_times);
    #[cfg(feature = "flight")]
    assert!(with(("COMM_FLIGHT_ON_CLOSE", "1")).record_on_close);
}
