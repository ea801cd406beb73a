//! Environment variables. No other file of this crate reads them.

use std::env;
use std::ffi::OsString;

use comm_core::{Error, Invalid, Result, VariableFault};

/// The variable with the rank of this process on its host, for each launcher.
const LOCAL_RANK: [&str; 4] =
    ["LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"];

/// Returns the local rank that the launcher gave this process, or 0 without a launcher.
pub(crate) fn local_rank() -> Result<usize> {
    local_rank_of(&|name| env::var_os(name))
}

/// The variable that allows NCCL to place several ranks on one device.
pub(crate) const SHARE_DEVICES: &str = "NCCL_MULTI_RANK_GPU_ENABLE";

/// Returns whether NCCL allows ranks to share a device. Like NCCL, it takes any number except 0 as
/// yes.
pub(crate) fn devices_may_be_shared() -> bool {
    env::var(SHARE_DEVICES).is_ok_and(|value| is_on(&value))
}

fn is_on(value: &str) -> bool {
    value.trim().parse::<i64>().is_ok_and(|number| number != 0)
}

fn local_rank_of(lookup: &dyn Fn(&str) -> Option<OsString>) -> Result<usize> {
    let Some((name, value)) = LOCAL_RANK.iter().find_map(|name| Some((*name, lookup(name)?))) else {
        return Ok(0);
    };
    let fault =
        |fault| Invalid::Variable { name: name.to_owned(), fault, advice: "set it to a number".into() };
    match value.to_str() {
        None => Err(fault(VariableFault::NotText).into()),
        Some("") => Err(fault(VariableFault::Empty).into()),
        Some(text) => text.trim().parse().map_err(|error| Error::setting(name, text, error)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    #[test]
    fn the_first_launcher_that_says_a_number_is_taken_at_its_word() {
        let local_rank = |set: &[(&str, &str)]| {
            local_rank_of(&|name| {
                set.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value))
            })
        };
        assert_eq!(local_rank(&[]).unwrap(), 0);
        assert_eq!(local_rank(&[("SLURM_LOCALID", "3")]).unwrap(), 3);
        assert_eq!(local_rank(&[("SLURM_LOCALID", "3"), ("LOCAL_RANK", "1")]).unwrap(), 1);
        let refused = local_rank(&[("LOCAL_RANK", "one")]).unwrap_err().to_string();
        assert!(refused.contains("LOCAL_RANK = \"one\""), "{refused}");
        let empty = local_rank(&[("LOCAL_RANK", ""), ("SLURM_LOCALID", "3")]).unwrap_err().to_string();
        assert!(empty.contains("LOCAL_RANK is set, but empty"), "{empty}");
        let bytes = |name: &str| (name == "LOCAL_RANK").then(|| OsString::from_vec(vec![b'1', 0xff]));
        let not_text = local_rank_of(&bytes).unwrap_err().to_string();
        assert!(not_text.contains("LOCAL_RANK is not text"), "{not_text}");
    }

    #[test]
    fn a_setting_of_nccl_is_on_for_every_number_but_zero() {
        assert!(["1", " 2 ", "-1"].iter().all(|value| is_on(value)));
        assert!(!["0", "", "yes"].iter().any(|value| is_on(value)));
    }
}
