//! What a process is told that plays one rank of a case. No other file of this crate reads the environment.

use std::env;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What a process is told that plays one rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The name of the case, or another thing that [`play`](crate::play) knows.
    pub name: String,
    /// Which rank it is.
    pub rank: usize,
    /// Of how many.
    pub size: usize,
    /// The number of its device.
    pub device: usize,
    /// A folder of this run of the case, where ranks meet, and write down how it went.
    pub folder: PathBuf,
    /// How long a call may take that is to succeed.
    pub patience: Duration,
}

impl Part {
    /// The variable that has a part, as JSON.
    pub const VARIABLE: &str = "GPU_CHECK_PART";

    /// The part that this process is to play, if it is to play one.
    ///
    /// # Errors
    /// If the variable is there and says something else.
    pub fn from_env() -> Result<Option<Self>, serde_json::Error> {
        let said = env::var(Self::VARIABLE).ok();
        said.map(|text| serde_json::from_str(&text)).transpose()
    }

    /// Tells a process its part.
    ///
    /// # Errors
    /// If the path of the folder is no text.
    pub fn give_to(&self, command: &mut Command) -> Result<(), serde_json::Error> {
        command.env(Self::VARIABLE, serde_json::to_string(self)?);
        Ok(())
    }

    /// The file for how it went.
    pub(crate) fn outcome(&self) -> PathBuf {
        self.folder.join(format!("outcome-{}.json", self.rank))
    }

    /// The file for what the process says besides.
    pub(crate) fn said(&self) -> PathBuf {
        self.folder.join(format!("said-{}.txt", self.rank))
    }
}
