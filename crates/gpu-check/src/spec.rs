//! The arguments of a rank's process. No other file of this crate reads the environment.

use std::env;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The arguments of the process of one rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaseSpec {
    /// The name of the case, or of another task of [`run_rank`](crate::run_rank).
    pub name: String,
    /// The rank.
    pub rank: usize,
    /// The number of ranks.
    pub size: usize,
    /// The index of the device.
    pub device: usize,
    /// The folder of this run, for the store and the results of ranks.
    pub folder: PathBuf,
    /// The timeout of calls that must succeed.
    pub call_timeout: Duration,
}

impl CaseSpec {
    /// The environment variable with the arguments as JSON.
    pub const VARIABLE: &str = "GPU_CHECK_PART";

    /// Returns the arguments of this process, if it runs a rank.
    ///
    /// # Errors
    /// If the variable is not valid.
    pub fn from_env() -> Result<Option<Self>, serde_json::Error> {
        let json = env::var(Self::VARIABLE).ok();
        json.map(|text| serde_json::from_str(&text)).transpose()
    }

    /// Passes the arguments to a process.
    ///
    /// # Errors
    /// If the path of the folder is not UTF-8.
    pub fn give_to(&self, command: &mut Command) -> Result<(), serde_json::Error> {
        command.env(Self::VARIABLE, serde_json::to_string(self)?);
        Ok(())
    }

    /// Returns the file for the result.
    pub(crate) fn result_path(&self) -> PathBuf {
        self.folder.join(format!("outcome-{}.json", self.rank))
    }

    /// Returns the file for the output of the process.
    pub(crate) fn output_path(&self) -> PathBuf {
        self.folder.join(format!("output-{}.txt", self.rank))
    }
}
