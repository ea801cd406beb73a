//! Tests of the environment of ranks, and of errors before they start.

use std::collections::HashMap;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use comm::Store;
use comm::tcp::{Secret, StoreConfig, TcpStore};
use comm_cli::launch::{Launch, LaunchError, ProcessExit};

use crate::harness::{FOREVER, Launched, commctl, launch, start, wait_until_dead};

const DUMP: &str = r#"env > "$DIR/env.new.$RANK"; mv "$DIR/env.new.$RANK" "$DIR/env.$RANK""#;

fn variables(text: &str) -> HashMap<String, String> {
    text.lines()
        .filter_map(|line| line.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

#[test]
fn each_rank_gets_its_variables() {
    let mut launched = launch(&["-n", "3", "--env", "GREETING=a=b c"], DUMP);
    let ended = launched.end();
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    let ranks: Vec<_> = (0..3).map(|rank| variables(&launched.report(&format!("env.{rank}")))).collect();
    for (rank, found) in ranks.iter().enumerate() {
        assert_eq!(found["RANK"], rank.to_string());
        assert_eq!(found["LOCAL_RANK"], rank.to_string());
        assert_eq!(found["WORLD_SIZE"], "3");
        assert_eq!(found["LOCAL_WORLD_SIZE"], "3");
        assert_eq!(found["MASTER_ADDR"], "127.0.0.1");
        assert_eq!(found["COMM_STORE"], "launcher");
        assert_eq!(found["GREETING"], "a=b c");
        assert_eq!(found["COMM_SECRET"], ranks[0]["COMM_SECRET"]);
        assert_eq!(found["MASTER_PORT"], ranks[0]["MASTER_PORT"]);
        assert_eq!(found["COMM_JOB_ID"], ranks[0]["COMM_JOB_ID"]);
    }
    assert_ne!(u64::from_str_radix(&ranks[0]["COMM_JOB_ID"], 16).expect("hexadecimal"), 0);
    assert_ne!(ranks[0]["MASTER_PORT"].parse::<u16>().expect("a port"), 0);
}

#[test]
fn two_launches_are_two_jobs() {
    let script = format!("{DUMP}; {FOREVER}");
    let launched = [launch(&["-n", "1"], &script), launch(&["-n", "1"], &script)];
    let [first, second] = launched.each_ref().map(|launched| variables(&launched.report("env.0")));
    assert_ne!(first["COMM_JOB_ID"], second["COMM_JOB_ID"]);
    assert_ne!(first["MASTER_PORT"], second["MASTER_PORT"]);
    assert_ne!(first["COMM_SECRET"], second["COMM_SECRET"]);
}

/// Connects to the store that ranks with these variables would use.
fn connect(rank: &HashMap<String, String>, secret: Option<&str>) -> comm::Result<TcpStore> {
    let address = IpAddr::from_str(&rank["MASTER_ADDR"]).expect("an address");
    let address = SocketAddr::new(address, rank["MASTER_PORT"].parse().expect("a port"));
    let job = u64::from_str_radix(&rank["COMM_JOB_ID"], 16).expect("hexadecimal");
    let secret = secret.map(|secret| Secret::new(secret).expect("not empty"));
    TcpStore::connect(address, StoreConfig::job(job).secret(secret), Duration::from_secs(30))
}

#[test]
fn the_store_is_served_at_the_master_address() {
    let launched = launch(&["-n", "1", "--master-addr", "::1"], &format!("{DUMP}; {FOREVER}"));
    let mut rank = variables(&launched.report("env.0"));
    assert_eq!(rank["MASTER_ADDR"], "::1");
    let secret = rank["COMM_SECRET"].clone();
    let store = connect(&rank, Some(&secret)).expect("a store of this job");
    store.set("key", b"value").expect("a store that works");
    assert_eq!(store.get("key", Duration::from_secs(30)).expect("a value"), b"value");

    rank.insert("COMM_JOB_ID".to_owned(), "1".to_owned());
    let other = connect(&rank, Some(&secret));
    assert!(matches!(other, Err(comm::Error::Handshake { .. })), "a process of another job");
}

#[test]
fn the_store_outlives_rank_0() {
    let script = format!("{DUMP}; [ $RANK = 0 ] && exit 0; {FOREVER}");
    let launched = launch(&["-n", "2"], &script);
    wait_until_dead(launched.pid("pid.0"));
    let rank = variables(&launched.report("env.1"));
    let store = connect(&rank, Some(&rank["COMM_SECRET"])).expect("a store without rank 0");
    assert_eq!(store.add("counter", 2).expect("a store that works"), 2);
}

#[test]
fn the_secret_is_passed_to_ranks_and_required() {
    let inherited = start(|dir| {
        let mut command = commctl();
        command.args(["run", "-n", "1", "--", "sh", "-c", &format!("{DUMP}; {FOREVER}")]);
        command.env("DIR", dir.path()).env("COMM_SECRET", "hush");
        command
    });
    let given = launch(&["-n", "1", "--env", "COMM_SECRET=hush"], &format!("{DUMP}; {FOREVER}"));
    for launched in [inherited, given] {
        let rank = variables(&launched.report("env.0"));
        assert_eq!(rank["COMM_SECRET"], "hush");
        connect(&rank, Some("hush")).expect("the secret opens the store");
        assert!(matches!(connect(&rank, None), Err(comm::Error::Handshake { .. })));
        assert!(matches!(connect(&rank, Some("loud")), Err(comm::Error::Handshake { .. })));
    }
}

#[test]
fn a_random_secret_is_required_and_is_no_argument() {
    let script =
        format!("{DUMP}; tr '\\0' ' ' < /proc/$PPID/cmdline > $DIR/parent; report args x; {FOREVER}");
    let launched = launch(&["-n", "1"], &script);
    let rank = variables(&launched.report("env.0"));
    let secret = &rank["COMM_SECRET"];
    assert!(secret.len() == 32 && secret.bytes().all(|byte| byte.is_ascii_hexdigit()), "{secret}");
    connect(&rank, Some(secret)).expect("the secret opens the store");
    assert!(matches!(connect(&rank, None), Err(comm::Error::Handshake { .. })));
    launched.report("args");
    let arguments = launched.report("parent");
    assert!(arguments.contains("run -n 1") && !arguments.contains(secret.as_str()), "{arguments}");
}

#[test]
fn debug_omits_the_values_of_variables() {
    let shown = format!("{:?}", Launch::new("sh").env("COMM_SECRET", "hush"));
    assert!(shown.contains("COMM_SECRET") && !shown.contains("hush"), "{shown}");
}

#[test]
fn a_variable_given_by_name_has_the_value_of_the_launcher() {
    let run = |value: Option<&str>| {
        start(|dir| {
            let mut command = commctl();
            command.args(["run", "-n", "1", "--env", "GREETING", "--", "sh", "-c", DUMP]);
            command.env("DIR", dir.path()).envs(value.map(|value| ("GREETING", value)));
            command
        })
    };
    assert_eq!(variables(&run(Some("a=b c")).report("env.0"))["GREETING"], "a=b c");
    let ended = run(None).end();
    assert_eq!(ended.status.code(), Some(2), "{ended:?}");
    assert!(ended.stderr.contains("it is not set in the environment of commctl"), "{ended:?}");
}

#[test]
fn ranks_share_the_cores_by_default() {
    let threads = |flags: &[&str], inherited: Option<&str>| {
        let launched = start(|dir| {
            let mut command = commctl();
            command.arg("run").args(flags).args(["--", "sh", "-c", DUMP]).env("DIR", dir.path());
            command.env_remove("OMP_NUM_THREADS").env_remove("RAYON_NUM_THREADS");
            command.envs(inherited.map(|value| ("RAYON_NUM_THREADS", value)));
            command
        });
        let found = variables(&launched.report("env.0"));
        ["OMP_NUM_THREADS", "RAYON_NUM_THREADS"].map(|name| found[name].clone())
    };
    let cores = std::thread::available_parallelism().expect("a number of cores").get();
    assert_eq!(threads(&["-n", "1"], None), [cores.to_string(), cores.to_string()]);
    let half = (cores / 2).max(1).to_string();
    assert_eq!(threads(&["-n", "2"], None), [half.clone(), half.clone()]);
    let many = (cores + 1).to_string();
    assert_eq!(threads(&["-n", &many, "--env", "OMP_NUM_THREADS=7"], Some("9")), ["7", "9"]);
    assert_eq!(threads(&["-n", &many], None), ["1", "1"]);
}

#[test]
fn more_ranks_than_the_limits_allow_are_an_error_before_any_rank_starts() {
    let mut launched = start(|dir| {
        let mut command = std::process::Command::new("sh");
        let script = r#"ulimit -n 256; exec "$0" run -n 200 -- sh -c ': > "$DIR/started"'"#;
        command.args(["-c", script, env!("CARGO_BIN_EXE_commctl")]).env("DIR", dir.path());
        command
    });
    let ended = launched.end();
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert!(ended.stderr.contains("cannot start 200 ranks: the limit of open files"), "{ended:?}");
    assert!(!launched.path("started").exists());
}

#[test]
fn an_empty_secret_is_an_error() {
    let ended = launch(&["-n", "1", "--env", "COMM_SECRET="], "").end();
    assert_eq!(ended.status.code(), Some(1));
    assert!(ended.stderr.contains("COMM_SECRET is set, but empty"), "{ended:?}");
}

#[test]
fn standard_input_is_empty() {
    let ended = launch(&["-n", "2"], "if read -r line; then exit 1; fi").end();
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
}

#[test]
fn variables_of_the_launcher_cannot_be_overridden() {
    let ended = launch(&["-n", "1", "--env", "RANK=7"], "").end();
    assert_eq!(ended.status.code(), Some(1));
    assert!(ended.stderr.contains("RANK is set by the launcher"), "{ended:?}");
}

#[test]
fn a_missing_program_has_the_exit_code_of_a_shell() {
    let mut launched = start(|_| {
        let mut command = commctl();
        command.args(["run", "-n", "3", "--", "no-such-program-anywhere"]);
        command
    });
    let ended = launched.end();
    assert_eq!(ended.status.code(), Some(127));
    assert_eq!(ended.stderr, "commctl: program not found: no-such-program-anywhere\n");
}

#[test]
fn a_program_without_permission_has_the_exit_code_of_a_shell() {
    let mut launched = start(|dir| {
        let script = dir.path().join("script");
        fs::write(&script, "#!/bin/sh\n").expect("a file without the execute bit");
        let mut command = commctl();
        command.args(["run", "-n", "2", "--"]).arg(script);
        command
    });
    let ended = launched.end();
    assert_eq!(ended.status.code(), Some(126));
    assert!(ended.stderr.contains("cannot start rank 0"), "{ended:?}");
}

#[test]
fn an_unusable_master_address_is_reported() {
    // An address of the documentation range, which no interface has.
    let ended = launch(&["-n", "1", "--master-addr", "192.0.2.1"], "").end();
    assert_eq!(ended.status.code(), Some(1));
    assert!(ended.stderr.contains("cannot serve the store at 192.0.2.1:0"), "{ended:?}");
}

#[test]
fn the_library_returns_typed_errors() {
    let shell = |script: &str| Launch::new("sh").args(["-c", script]);
    assert!(shell("exit 0").ranks(2).run().is_ok());
    assert!(matches!(shell("exit 0").ranks(0).run(), Err(LaunchError::NoRanks)));
    assert!(matches!(
        shell("exit 0").env("MASTER_PORT", "1").run(),
        Err(LaunchError::ReservedVariable("MASTER_PORT"))
    ));
    assert!(matches!(
        Launch::new("no-such-program-anywhere").ranks(2).run(),
        Err(LaunchError::ProgramNotFound { program }) if program == "no-such-program-anywhere"
    ));
    let failed = shell("exit $((RANK * 5))").ranks(2).run();
    let Err(LaunchError::RankFailed(failure)) = failed else { panic!("{failed:?}") };
    assert_eq!((failure.rank, failure.exit), (1, ProcessExit::Code(5)));
}

/// Launches scripts that record their devices, with `visible` as the launcher's
/// CUDA_VISIBLE_DEVICES.
fn launch_with_devices(visible: Option<&str>, flags: &[&str]) -> Launched {
    start(|dir| {
        let mut command = commctl();
        command.arg("run").args(flags).args(["--", "sh", "-c", DUMP]).env("DIR", dir.path());
        match visible {
            Some(visible) => command.env("CUDA_VISIBLE_DEVICES", visible),
            None => command.env_remove("CUDA_VISIBLE_DEVICES"),
        };
        command
    })
}

/// Returns the devices of all ranks.
fn shown(visible: Option<&str>, flags: &[&str], ranks: usize) -> Vec<Option<String>> {
    let mut launched = launch_with_devices(visible, flags);
    let ended = launched.end();
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    let ranks = (0..ranks).map(|rank| variables(&launched.report(&format!("env.{rank}"))));
    ranks
        .enumerate()
        .map(|(rank, mut found)| {
            assert_eq!(found["LOCAL_RANK"], rank.to_string());
            found.remove("CUDA_VISIBLE_DEVICES")
        })
        .collect()
}

#[test]
fn each_rank_sees_its_device() {
    let some = |devices: &[&str]| devices.iter().map(|device| Some((*device).to_owned())).collect::<Vec<_>>();
    assert_eq!(shown(None, &["-n", "2"], 2), [None, None]);
    assert_eq!(shown(Some("4,5"), &["-n", "2"], 2), some(&["4,5", "4,5"]));
    assert_eq!(shown(None, &["-n", "3", "--devices", "2,0,GPU-7a"], 3), some(&["2", "0", "GPU-7a"]));
    assert_eq!(shown(Some("4,5,6"), &["-n", "2", "--devices", "2,0"], 2), some(&["6", "4"]));
    assert_eq!(shown(None, &["-n", "2", "--devices=per-rank"], 2), some(&["0", "1"]));
    let shared = ["-n", "3", "--devices", "1,0", "--share-devices"];
    assert_eq!(shown(None, &shared, 3), some(&["1", "0", "1"]));
}

#[test]
fn too_few_devices_are_an_error_before_any_rank_starts() {
    for (visible, flags, code, words) in [
        (None, ["-n", "3", "--devices", "0,1"].as_slice(), 1, "there are 2 devices for 3 ranks"),
        (Some("7"), &["-n", "2", "--devices", "per-rank"], 1, "--share-devices"),
        (Some("7"), &["-n", "2", "--devices", "0,1"], 1, "there is no device 1"),
        (None, &["-n", "2", "--devices", "0,0"], 1, "device 0 is listed twice"),
        (None, &["-n", "2", "--devices", "0,gpu1"], 2, "\"gpu1\" is not a device"),
        (None, &["-n", "2", "--share-devices"], 2, "--devices"),
        (
            None,
            &["-n", "1", "--devices", "0", "--env", "CUDA_VISIBLE_DEVICES=1"],
            1,
            "CUDA_VISIBLE_DEVICES is set by the launcher",
        ),
    ] {
        let mut launched = launch_with_devices(visible, flags);
        let ended = launched.end();
        assert_eq!(ended.status.code(), Some(code), "{ended:?}");
        assert!(ended.stderr.contains(words), "{ended:?}");
        assert!(!launched.path("env.0").exists());
    }
}
