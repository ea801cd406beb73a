//! Every case passes on the emulated device: with and without disorder, on two devices, and with
//! two ranks on one.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use gpu_check::record::{Record, Subject, Verdict};
use gpu_check::run::Measure;
use gpu_check::{CASES, Placement};

use common::{CALM, DISORDER, SHARED, WITHOUT, assert_passed, groups, named, on_emulator, run_spec};

/// The process of a rank that other tests start; not a separate test.
#[test]
fn a_process_runs_its_rank() {
    run_spec();
}

fn all(settings: &[(&str, &str)], two: &'static [usize]) {
    on_emulator(settings, |runner| {
        for case in &CASES {
            for devices in groups(case, two) {
                assert_passed(&runner.case(case, devices, &[]).unwrap());
            }
        }
    });
}

#[test]
fn every_case_passes_on_two_devices() {
    all(&CALM, &[0, 1]);
}

#[test]
fn every_case_passes_with_disorder() {
    all(&DISORDER, &[1, 0]);
}

#[test]
fn every_case_passes_with_two_ranks_on_one_device() {
    all(&SHARED, &[0, 0]);
}

#[test]
fn every_case_passes_with_three_ranks() {
    let settings = [("GPU_EMU_DEVICES", "3")];
    on_emulator(&settings, |runner| {
        for name in [
            "all_reduce",
            "all_to_all",
            "split",
            "shrink",
            "elastic_group",
            "different_calls",
            "killed_rank",
            "absent_rank",
            "hybrid_shrink",
        ] {
            assert_passed(&runner.case(named(name), &[0, 1, 2], &[]).unwrap());
        }
    });
}

#[test]
fn the_machine_is_inspected_and_places_several_ranks() {
    let one = on_emulator(&[("GPU_EMU_DEVICES", "1"), ("GPU_EMU_NCCL_VERSION", "22809")], |runner| {
        runner.inspect().unwrap()
    });
    assert_eq!((one.gpu.as_str(), one.gpus, one.memory_mib), ("Emulated device 0", 1, 1024));
    assert_eq!((one.compute.as_str(), one.cuda.as_str()), ("9.0", "13.0"));
    assert!(one.libcuda.ends_with("libgpu_emu.so"), "{}", one.libcuda.display());
    assert!(one.placement().unwrap_err().contains("2.28.9"));
    let two = on_emulator(&CALM, |runner| runner.inspect().unwrap());
    assert_eq!(two.placement().unwrap().devices, [0, 1]);
    let none = on_emulator(&[("GPU_EMU_DEVICES", "0")], |runner| runner.inspect().unwrap_err().to_string());
    assert!(none.contains("no device"), "{none}");
}

#[test]
fn cases_without_enough_devices_are_not_run_with_a_reason() {
    let mut ends = Vec::new();
    on_emulator(&CALM, |runner| {
        let none = Err("there is no second rank".to_owned());
        let mut keep = |record| {
            ends.push(record);
            Ok(())
        };
        runner.cases(&["barrier".into()], &none, &mut keep).unwrap();
    });
    let told = ends.iter().map(|record| match record {
        Record::Case(ended) => (ended.case.as_str(), ended.verdict, ended.message.as_str()),
        other => panic!("{other:?}"),
    });
    let why = "there is no second rank";
    assert_eq!(
        told.collect::<Vec<_>>(),
        [
            ("barrier_device", Verdict::Passed, ""),
            ("barrier_device", Verdict::NotRun, why),
            ("barrier_ranks", Verdict::NotRun, why),
        ]
    );
}

#[test]
fn calls_that_an_older_library_lacks_are_not_run() {
    let settings = [("GPU_EMU_DEVICES", "1"), (WITHOUT, "ncclCommRegister")];
    on_emulator(&settings, |runner| {
        let ended = runner.case(named("registration"), &[0], &[]).unwrap();
        assert_eq!(ended.verdict, Verdict::NotRun, "{}", ended.message);
        assert!(ended.message.contains("ncclCommRegister"), "{}", ended.message);
    });
}

/// A script replaces PyTorch and reports one second for every call.
#[test]
fn times_are_measured_in_turns_and_only_with_the_same_library() {
    let folder = tempfile::tempdir().unwrap();
    on_emulator(&CALM, |runner| {
        let place = runner.inspect().unwrap();
        let several = Ok(Placement { devices: vec![0, 1], environment: Vec::new() });
        let measure = |nccl: &str| {
            let python = folder.path().join("python");
            let script = format!(
                "#!/bin/sh\nunset LD_PRELOAD\necho ready {nccl}\nwhile read q; do echo measured 1; done\n"
            );
            std::fs::write(&python, script).unwrap();
            let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            std::fs::set_permissions(&python, executable).unwrap();
            let what = Measure { sizes: vec![4096], rounds: 2, python };
            let mut records = Vec::new();
            let mut keep = |record| {
                records.push(record);
                Ok(())
            };
            runner.measure(&what, &place, &several, &mut keep).unwrap();
            records
        };
        let records = measure(&place.libnccl.display().to_string());
        let of = |subject| {
            records.iter().filter(|record| matches!(record, Record::Speed(speed) if speed.subject == subject && speed.seconds > 0.0)).count()
        };
        // Two collectives of one rank and four of two, in two rounds.
        assert_eq!([of(Subject::Ours), of(Subject::Copy), of(Subject::Torch)], [12; 3], "{records:?}");
        let records = measure("/another/libnccl.so.2");
        let left_out = records.iter().filter(
            |record| matches!(record, Record::NotMeasured(why) if why.contains("PyTorch: it loads /another/libnccl.so.2")),
        );
        assert_eq!(left_out.count(), 2, "{records:?}");
    });
}

/// A device may be only as large as the two buffers of a measurement.
#[test]
fn only_the_measured_buffers_are_allocated() {
    let size = 256 << 10;
    let memory = (2 * size + (64 << 10)).to_string();
    on_emulator(&[CALM[0], ("GPU_EMU_DEVICE_MEMORY", &memory)], |runner| {
        let place = runner.inspect().unwrap();
        let several = Ok(Placement { devices: vec![0, 1], environment: Vec::new() });
        let what = Measure { sizes: vec![size], rounds: 1, python: "/no/such/python".into() };
        let mut failed = Vec::new();
        let mut keep = |record| {
            failed.extend(if let Record::NotMeasured(why) = record { Some(why) } else { None });
            Ok(())
        };
        runner.measure(&what, &place, &several, &mut keep).unwrap();
        failed.retain(|why| !why.contains("PyTorch"));
        assert_eq!(failed, Vec::<String>::new());
    });
}
