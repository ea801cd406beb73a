//! What the environment says. No other file of this crate reads it.

use std::env;

use comm_core::{Error, Result};

/// The number of this process among those of its host, by launcher.
const LOCAL_RANK: [&str; 4] =
    ["LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"];

/// The number that a launcher gave this process on its host; 0 if no launcher did.
pub(crate) fn local_rank() -> Result<usize> {
    local_rank_of(&|name| env::var(name).ok())
}

/// Tells NCCL that ranks may share a device.
pub(crate) const SHARE_DEVICES: &str = "NCCL_MULTI_RANK_GPU_ENABLE";

/// Whether NCCL is told that ranks may share a device: by any number but 0, as it reads its settings.
pub(crate) fn devices_may_be_shared() -> bool {
    env::var(SHARE_DEVICES).is_ok_and(|value| is_on(&value))
}

fn is_on(value: &str) -> bool {
    value.trim().parse::<i64>().is_ok_and(|number| number != 0)
}

fn local_rank_of(lookup: &dyn Fn(&str) -> Option<String>) -> Result<usize> {
    let Some((name, value)) = LOCAL_RANK.iter().find_map(|name| Some((*name, lookup(name)?))) else {
        return Ok(0);
    };
    value.trim().parse().map_err(|error| Error::setting(name, value.clone(), error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_launcher_that_says_a_number_is_taken_at_its_word() {
        let local_rank = |set: &[(&str, &str)]| {
            local_rank_of(&|name| {
                set.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
            })
        };
        assert_eq!(local_rank(&[]).unwrap(), 0);
        assert_eq!(local_rank(&[("SLURM_LOCALID", "3")]).unwrap(), 3);
        assert_eq!(local_rank(&[("SLURM_LOCALID", "3"), ("LOCAL_RANK", "1")]).unwrap(), 1);
        let refused = local_rank(&[("LOCAL_RANK", "one")]).unwrap_err().to_string();
        assert!(refused.contains("LOCAL_RANK = \"one\""), "{refused}");
    }

    #[test]
    fn a_setting_of_nccl_is_on_for_every_number_but_zero() {
        assert!(["1", " 2 ", "-1"].iter().all(|value| is_on(value)));
        assert!(!["0", "", "yes"].iter().any(|value| is_on(value)));
    }
}
