//! Tests of every variable: absent, empty, not UTF-8, out of range and misspelled; and of every
//! launcher.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use comm_core::VariableFault;

use super::launcher::{LAUNCHERS, Launcher};
use super::variables::{ALL, MASTER_ADDR, MASTER_PORT, Values, Variable};
use super::*;

pub(super) const TORCH: [(&str, &str); 6] = [
    ("RANK", "1"),
    ("WORLD_SIZE", "4"),
    ("LOCAL_RANK", "1"),
    ("LOCAL_WORLD_SIZE", "4"),
    ("MASTER_ADDR", "10.1.2.3"),
    ("MASTER_PORT", "29500"),
];

/// Returns torchrun's variables with one of them or another variable set or removed.
fn with(name: &str, value: Option<OsString>) -> Result<Config> {
    let others = TORCH.iter().filter(|(other, _)| *other != name);
    let mut variables: Vec<(OsString, OsString)> =
        others.map(|(name, value)| (name.into(), value.into())).collect();
    variables.extend(value.map(|value| (name.into(), value)));
    config(&variables.into_iter().collect())
}

fn set(name: &str, value: &str) -> Result<Config> {
    with(name, Some(value.into()))
}

pub(super) fn from(variables: &[(&str, &str)]) -> Result<Config> {
    config(&variables.iter().copied().collect())
}

pub(super) fn fault_of(result: Result<Config>) -> (String, VariableFault) {
    match result {
        Err(Error::Invalid(Invalid::Variable { name, fault, .. })) => (name, fault),
        other => panic!("expected an error about a variable, got {other:?}"),
    }
}

/// Returns the variable of an error, its value, and the message.
fn refused(result: Result<Config>) -> (String, String, String) {
    match result {
        Err(error) => match &error {
            Error::Invalid(Invalid::Setting { name, value, .. }) => {
                (name.clone(), value.clone(), error.to_string())
            }
            _ => panic!("expected a rejected value, got {error:?}"),
        },
        Ok(config) => panic!("expected a rejected value, got {config:?}"),
    }
}

/// Returns the variables that this crate reads if RANK is set.
fn read() -> impl Iterator<Item = &'static Variable> {
    let [torch, ..] = &LAUNCHERS;
    let Launcher { rank, size, local_rank, local_size, .. } = torch;
    let launchers = [rank, size, local_rank, &MASTER_ADDR, &MASTER_PORT].into_iter().chain(local_size);
    // nccl-sys reads its own variables, and variables of disabled features are ignored.
    let ours = ALL
        .into_iter()
        .filter(|ours| ours.name != "COMM_NCCL_PATH" && ours.feature.is_none_or(|(_, is_on)| is_on));
    launchers.chain(ours)
}

#[test]
fn a_variable_that_is_not_set_has_its_default_or_is_named_as_missing() {
    for variable in read() {
        let result = with(variable.name, None);
        if ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"].contains(&variable.name) {
            assert_eq!(fault_of(result), (variable.name.into(), VariableFault::NotSet));
        } else {
            assert_eq!(result.unwrap().rank, 1, "{}", variable.name);
        }
    }
}

#[test]
fn a_variable_that_is_empty_is_named_as_empty() {
    for variable in read() {
        assert_eq!(fault_of(set(variable.name, "")), (variable.name.into(), VariableFault::Empty));
    }
}

#[test]
fn a_variable_that_is_not_text_is_named_as_not_text() {
    for variable in read() {
        for bytes in [vec![0xff], vec![b'1', 0xc3], b"\x80abc".to_vec()] {
            let fault = fault_of(with(variable.name, Some(OsString::from_vec(bytes))));
            assert_eq!(fault, (variable.name.into(), VariableFault::NotText));
        }
    }
}

#[test]
fn a_value_out_of_range_is_named_with_its_variable() {
    for variable in read() {
        let wrong: Vec<String> = match variable.values {
            Values::Number { min, max } => {
                let beyond = [i128::from(min) - 1, i128::from(max) + 1, 1 << 64, -1];
                let texts = ["many", "1.5", " ", "0x10", "1 2"].map(str::to_owned);
                beyond.into_iter().map(|number| number.to_string()).chain(texts).collect()
            }
            Values::Hexadecimal => ["xyz", "10000000000000000", "-1"].map(str::to_owned).into(),
            Values::OneOf(_) => ["carrier pigeon", "TCP", "rank1", " tcp"].map(str::to_owned).into(),
            Values::Ports => {
                ["0", "0-5", "6-5", "1-65536", "a-b", "1-", "-1", "1-2-3"].map(str::to_owned).into()
            }
            Values::Text(_) => continue,
        };
        for wrong in wrong {
            let (name, value, message) = refused(set(variable.name, &wrong));
            assert_eq!((name.as_str(), &value), (variable.name, &wrong));
            assert!(message.contains("it must be"), "{message}");
        }
    }
}

#[test]
fn the_ends_of_a_range_belong_to_it() {
    for variable in ALL.iter().filter(|ours| ours.feature.is_none_or(|(_, is_on)| is_on)) {
        if let Values::Number { min, max } = variable.values {
            for end in [min, max] {
                assert_eq!(set(variable.name, &end.to_string()).unwrap().rank, 1, "{}", variable.name);
            }
        }
        if let Values::OneOf(words) = variable.values {
            for word in words {
                assert_eq!(set(variable.name, word).unwrap().rank, 1, "{} = {word}", variable.name);
            }
        }
    }
}

#[test]
fn a_range_of_ports_is_one_port_or_two() {
    let ports = |text: &str| set("COMM_PORT_RANGE", text).unwrap().ports;
    assert_eq!(ports("29600-29699"), Some(29_600..=29_699));
    assert_eq!((ports("1"), ports("65535-65535")), (Some(1..=1), Some(65_535..=65_535)));
    assert_eq!(with("COMM_PORT_RANGE", None).unwrap().ports, None);
}

#[test]
fn an_advertised_address_is_an_address() {
    let advertise = |text: &str| set("COMM_ADVERTISE_ADDR", text).map(|config| config.advertise);
    assert_eq!(advertise("192.0.2.1").unwrap(), Some("192.0.2.1".parse().unwrap()));
    assert_eq!(advertise("2001:db8::1").unwrap(), Some("2001:db8::1".parse().unwrap()));
    for wrong in ["router", "192.0.2.1:29600", "192.0.2"] {
        let error = advertise(wrong).unwrap_err().to_string();
        assert!(error.contains("COMM_ADVERTISE_ADDR") && error.contains(wrong), "{error}");
    }
}

#[test]
fn an_error_of_a_setting_names_its_variable() {
    let settings = [
        ("ports", "COMM_PORT_RANGE"),
        ("interface", "COMM_SOCKET_IFNAME"),
        ("advertise", "COMM_ADVERTISE_ADDR"),
        ("keepalive_timeout", "COMM_KEEPALIVE_TIMEOUT_S"),
        ("x", "x"),
    ];
    for (setting, variable) in settings {
        let error = name_variable(Error::setting(setting, "1", "no"));
        assert_eq!(error.to_string(), format!("invalid: {variable} = \"1\": no"));
    }
}

/// Returns the likely misspellings of a name.
fn slips(name: &str) -> Vec<String> {
    let mut slips = Vec::new();
    for at in "COMM_".len()..name.len() {
        slips.push([&name[..at], &name[at + 1..]].concat());
        slips.push([&name[..at], "X", &name[at..]].concat());
        slips.push([&name[..at], "X", &name[at + 1..]].concat());
        if at + 1 < name.len() {
            slips.push([&name[..at], &name[at + 1..=at + 1], &name[at..=at], &name[at + 2..]].concat());
        }
    }
    slips.retain(|slip| ALL.iter().all(|known| known.name != slip.as_str()));
    slips
}

#[test]
fn a_misspelt_variable_is_refused_with_the_nearest_name_and_without_its_value() {
    for variable in ALL {
        for slip in slips(variable.name) {
            let error = set(&slip, "hunter2").unwrap_err();
            assert!(!error.to_string().contains("hunter2"), "{error}");
            let nearest = variable.name.to_owned();
            assert_eq!(fault_of(Err(error)), (slip, VariableFault::Misspelt { nearest }));
        }
    }
    for (former, nearest) in [("COMM_HOST_PART", "COMM_HOSTID"), ("COMM_LEND_BYTES", "COMM_ZERO_COPY_BYTES")]
    {
        let nearest = nearest.to_owned();
        assert_eq!(fault_of(set(former, "1")), (former.into(), VariableFault::Misspelt { nearest }));
    }
    let alone = from(&[("COMM_SECRT", "x")]);
    let nearest = "COMM_SECRET".into();
    assert_eq!(fault_of(alone), ("COMM_SECRT".into(), VariableFault::Misspelt { nearest }));
}

#[test]
fn an_unknown_name_is_not_an_error() {
    for name in ["COMM_WORLD", "COMM_TEST_PORT", "COMM_", "COMMA", "COM_SECRET", "MY_COMM_SECRT"] {
        assert_eq!(set(name, "x").unwrap().rank, 1, "{name}");
    }
}

#[test]
fn ranks_out_of_range_are_refused_with_both_variables() {
    for (changed, name, parts) in [
        (("RANK", "4"), "RANK", ["\"4\"", "WORLD_SIZE = 4"]),
        (("LOCAL_RANK", "7"), "LOCAL_RANK", ["\"7\"", "LOCAL_WORLD_SIZE = 4"]),
        (("LOCAL_WORLD_SIZE", "5"), "LOCAL_WORLD_SIZE", ["\"5\"", "WORLD_SIZE = 4"]),
        (("WORLD_SIZE", "18446744073709551615"), "WORLD_SIZE", ["18446744073709551615", "from 1 to"]),
        (("WORLD_SIZE", "0"), "WORLD_SIZE", ["\"0\"", "from 1 to"]),
        (("MASTER_PORT", "0"), "MASTER_PORT", ["\"0\"", "from 1 to 65535"]),
    ] {
        let (named, _, message) = refused(set(changed.0, changed.1));
        assert_eq!(named, name);
        assert!(parts.iter().all(|part| message.contains(part)), "{message}");
    }
    // Rank 3 of 4, on a host with two ranks.
    let hosts = [("RANK", "3"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "1")];
    let two = from(&[&hosts[..], &[("LOCAL_WORLD_SIZE", "2")]].concat());
    assert_eq!(fault_of(two), ("LOCAL_RANK".into(), VariableFault::NotSet));
    let (name, _, message) = refused(from(&[&hosts[..], &[("LOCAL_RANK", "4")]].concat()));
    assert!(name == "LOCAL_RANK" && message.contains("WORLD_SIZE = 4"), "{message}");
}

#[test]
fn a_process_without_a_launcher_is_a_world_of_one() {
    let config = from(&[]).unwrap();
    assert_eq!((config.rank, config.world_size, config.local_rank, config.local_world_size), (0, 1, 0, 1));
    let config = from(&[("COMM_TRANSPORT", "tcp"), ("COMM_TIMEOUT_S", "7"), ("PATH", "/bin")]).unwrap();
    assert_eq!((config.world_size, config.transport), (1, TransportKind::Tcp));
    assert_eq!(config.timeout, Duration::from_secs(7));
}

#[test]
fn variables_that_need_a_rank_name_the_missing_one() {
    for (half, rank) in [
        ("WORLD_SIZE", "RANK"),
        ("LOCAL_RANK", "RANK"),
        ("LOCAL_WORLD_SIZE", "RANK"),
        ("MASTER_ADDR", "RANK"),
        ("MASTER_PORT", "RANK"),
        ("COMM_RENDEZVOUS", "RANK"),
        ("COMM_STORE", "RANK"),
        ("COMM_JOB_ID", "RANK"),
        ("TORCHELASTIC_RUN_ID", "RANK"),
        ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
        ("PMI_SIZE", "PMI_RANK"),
        ("SLURM_STEP_ID", "SLURM_PROCID"),
    ] {
        let result = from(&[(half, "1")]);
        let message = result.as_ref().unwrap_err().to_string();
        assert_eq!(fault_of(result), (rank.into(), VariableFault::NotSet), "{half}");
        assert!(half == "SLURM_STEP_ID" || message.contains(half), "{message}");
    }
    for launcher in &LAUNCHERS {
        let step = (launcher.kind == Kind::Slurm).then_some(("SLURM_STEP_ID", "0"));
        let rank = (launcher.rank.name, "0");
        let result = config(&[rank].into_iter().chain(step).collect());
        assert_eq!(fault_of(result), (launcher.size.name.into(), VariableFault::NotSet));
    }
}

#[test]
fn the_documentation_equals_the_table_of_variables() {
    let expected = markdown();
    assert!(
        expected == include_str!("variables.md"),
        "crates/comm/src/env/variables.md must be:\n{expected}"
    );
}

/// Returns the documentation of `Config::from_env`.
fn markdown() -> String {
    let row = |variable: &Variable| {
        let values = match variable.values {
            Values::Number { max: u64::MAX, .. } => "a whole number".to_owned(),
            Values::Number { min, max } => format!("{min} to {max}"),
            Values::Hexadecimal => "a hexadecimal number of at most 64 bits".to_owned(),
            Values::OneOf(words) => {
                words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
            }
            Values::Ports => "a port, or two as in 29600-29699".to_owned(),
            Values::Text(what) => what.to_owned(),
        };
        let Variable { name, default, meaning, feature, .. } = variable;
        let needs = feature.map_or(String::new(), |(feature, _)| format!(" (feature `{feature}`)"));
        format!("| `{name}` | {meaning}{needs} | {values} | {default} |\n")
    };
    let launcher = |launcher: &Launcher| {
        let program = match launcher.kind {
            Kind::Torch => "torchrun, `commctl run`, or by hand",
            Kind::OpenMpi => "Open MPI's `mpirun`",
            Kind::Hydra => "`mpiexec` of MPICH or Intel MPI",
            Kind::Slurm => "Slurm's `srun`",
            Kind::Kubernetes => "an indexed Job of Kubernetes",
        };
        let Launcher { rank, size, local_rank, local_size, .. } = launcher;
        let local_size = local_size.as_ref().map_or("SLURM_STEP_TASKS_PER_NODE", |local| local.name);
        format!(
            "| {program} | `{}` | `{}` | `{}` | `{local_size}` |\n",
            rank.name, size.name, local_rank.name
        )
    };
    let launchers: String = LAUNCHERS.iter().map(launcher).collect();
    let variables: String = [&MASTER_ADDR, &MASTER_PORT].into_iter().chain(ALL).map(row).collect();
    format!("{}{launchers}{}{variables}{}", INTRODUCTION, RENDEZVOUS_DEFAULTS, MISTAKES)
}

const INTRODUCTION: &str = "\
Reads the configuration of this rank from the environment.

Rank and size come from the first launcher of this table whose variables are set:

| launcher | rank | size | rank on its host | ranks on its host |
|---|---|---|---|---|
";

const RENDEZVOUS_DEFAULTS: &str = "\
| an indexed Job of Kubernetes | `JOB_COMPLETION_INDEX` | `WORLD_SIZE`, set by hand | 0 | 1 |

Under `mpiexec -pmi-port` of MPICH, the process manager at `PMI_PORT` is asked for the rank and the size. Slurm's
variables are used only in a step that `srun` has started, not in a batch script. A process without any of these
is a world of one rank, and logs this.

Under `srun` the address of the store defaults to the first host of the step (loopback if there is one host), under `mpirun`
on a single host to loopback, and the port is derived from the job id. Under `mpiexec`, and under `mpirun` on several
hosts, the ranks exchange the address through the process manager, for which Open MPI's needs `libpmix.so.2`. In all
other cases, set `MASTER_ADDR` and `MASTER_PORT`, or `COMM_RENDEZVOUS` alone. Under torchrun with `TORCHELASTIC_USE_AGENT_STORE=True`, ranks
use the store of the agent, also after a restart.

| variable | meaning | values | if not set |
|---|---|---|---|
";

const MISTAKES: &str = "
A variable that is empty, is not UTF-8 or has another value is an error that names it. A variable whose name begins with
`COMM_` and is a likely misspelling of one of these is an error, too; other unknown names with this prefix cause a warning.
";
