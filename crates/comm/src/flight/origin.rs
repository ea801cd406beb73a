//! The job and the world to which the records of a rank belong.

use std::path::PathBuf;

use comm_core::{FlightRecord, FlightSink, GroupId};

use super::{FlightDump, write_or_log};
use crate::config::{Config, Subgroup};

/// The origin of the records of all communicators of a world.
#[derive(Debug, Clone)]
pub(crate) struct Origin {
    job: u64,
    subgroup: Option<Subgroup>,
}

impl Origin {
    pub(crate) fn of(config: &Config) -> Self {
        Self { job: config.job, subgroup: config.subgroup.clone() }
    }

    /// Converts a record to the form of a file. If this world is a group of a larger one, the file
    /// has the id of the group and the ranks in the larger world.
    pub(crate) fn dump(&self, record: &FlightRecord) -> FlightDump {
        let mut dump = FlightDump::new(record, self.job);
        if let Some(Subgroup { id, members }) = &self.subgroup {
            if dump.group == GroupId::WORLD.0 {
                dump.group = id.0;
            }
            for member in &mut dump.members {
                *member = members.get(*member).copied().unwrap_or(*member);
            }
        }
        dump
    }

    /// Returns a sink that writes a file to this folder for each record that it gets.
    pub(crate) fn sink(self, folder: PathBuf) -> FlightSink {
        FlightSink::new(move |record| write_or_log(&folder, &self.dump(record)))
    }
}
