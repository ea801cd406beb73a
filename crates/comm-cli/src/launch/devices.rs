//! Assigns GPUs to ranks through `CUDA_VISIBLE_DEVICES`.

use std::collections::HashSet;
use std::str::FromStr;

pub(super) const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// An assignment of one GPU to each rank, which the rank sees as device 0.
///
/// Parsed from a list such as `0,1,2,3` or `GPU-5b6c...,GPU-77aa...`, in which entry *r* is the
/// device of rank *r*, or from `per-rank`. An index refers to the devices visible to the launcher,
/// which its own `CUDA_VISIBLE_DEVICES` may restrict and reorder. Names of devices and MIG
/// instances are those that `nvidia-smi -L` lists. Devices beyond the number of ranks stay unused.
///
/// ```
/// use comm_cli::launch::Devices;
///
/// let devices: Devices = "2,3".parse()?;
/// assert!("2,x".parse::<Devices>().is_err());
/// # Ok::<(), comm_cli::launch::DevicesError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Devices {
    /// `None` for `per-rank`.
    list: Option<Vec<Device>>,
    shared: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Device {
    /// The index among the devices visible to the launcher.
    Number(usize),
    Name(String),
}

/// The error for an invalid list of devices.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DevicesError {
    /// An entry is not a device.
    #[error("{0:?} is not a device: expected an index, or a name that begins with GPU- or MIG-")]
    NoDevice(String),
    /// A device is listed twice, and ranks may not share devices.
    #[error("device {0} is listed twice; to let ranks share devices, pass --share-devices")]
    Repeated(String),
    /// An index is out of range of the visible devices.
    #[error("there is no device {number}: CUDA_VISIBLE_DEVICES shows {shown} devices to the launcher")]
    NotShown {
        /// The index.
        number: usize,
        /// The number of devices visible to the launcher.
        shown: usize,
    },
    /// There are fewer devices than ranks, and ranks may not share devices.
    #[error(
        "there are {devices} devices for {ranks} ranks; to let ranks share devices, pass --share-devices"
    )]
    TooFew {
        /// The number of ranks.
        ranks: usize,
        /// The number of devices that are listed, or visible to the launcher.
        devices: usize,
    },
    /// Ranks share devices, and the number of devices is unknown.
    #[error("the number of devices to share is unknown: list them, or set CUDA_VISIBLE_DEVICES")]
    Unknown,
}

impl Devices {
    /// Assigns to rank *r* device *r* of those visible to the launcher.
    pub fn per_rank() -> Self {
        Self { list: None, shared: false }
    }

    /// Sets whether several ranks may share a device. By default each rank needs its own.
    #[must_use]
    pub fn shared(mut self, shared: bool) -> Self {
        self.shared = shared;
        self
    }

    /// Returns the value of `CUDA_VISIBLE_DEVICES` for each rank. `visible` is the launcher's
    /// value.
    pub(super) fn assign(&self, ranks: usize, visible: Option<&str>) -> Result<Vec<String>, DevicesError> {
        let visible: Option<Vec<&str>> = visible.map(entries);
        let devices = match (&self.list, &visible) {
            (Some(list), _) => self.named(list, visible.as_deref())?,
            (None, Some(visible)) => visible.iter().map(|name| (*name).to_owned()).collect(),
            (None, None) if self.shared => return Err(DevicesError::Unknown),
            // The number of devices is unknown here; a rank without a device fails in the driver.
            (None, None) => (0..ranks).map(|number| number.to_string()).collect(),
        };
        if devices.is_empty() || !self.shared && devices.len() < ranks {
            return Err(DevicesError::TooFew { ranks, devices: devices.len() });
        }
        Ok(devices.iter().cycle().take(ranks).cloned().collect())
    }

    /// Resolves listed devices to names that the driver understands.
    fn named(&self, list: &[Device], visible: Option<&[&str]>) -> Result<Vec<String>, DevicesError> {
        let named = list.iter().map(|device| match (device, visible) {
            (Device::Name(name), _) => Ok(name.clone()),
            (Device::Number(number), None) => Ok(number.to_string()),
            (Device::Number(number), Some(visible)) => {
                let not_shown = DevicesError::NotShown { number: *number, shown: visible.len() };
                visible.get(*number).map(|name| (*name).to_owned()).ok_or(not_shown)
            }
        });
        let named: Vec<String> = named.collect::<Result<_, _>>()?;
        let mut seen = HashSet::new();
        match named.iter().find(|name| !seen.insert(*name)) {
            Some(twice) if !self.shared => Err(DevicesError::Repeated(twice.clone())),
            _ => Ok(named),
        }
    }
}

/// Splits a list as the driver does: up to the first entry that is not a device.
fn entries(list: &str) -> Vec<&str> {
    let names = list.split(',').map(str::trim);
    names.take_while(|name| name.parse::<Device>().is_ok()).collect()
}

impl FromStr for Devices {
    type Err = DevicesError;

    fn from_str(text: &str) -> Result<Self, DevicesError> {
        if text == "per-rank" {
            return Ok(Self::per_rank());
        }
        let list = text.split(',').map(|entry| entry.trim().parse()).collect::<Result<_, _>>()?;
        Ok(Self { list: Some(list), shared: false })
    }
}

impl FromStr for Device {
    type Err = DevicesError;

    fn from_str(text: &str) -> Result<Self, DevicesError> {
        let is_name = ["GPU-", "MIG-"].iter().any(|kind| text.len() > kind.len() && text.starts_with(kind));
        match text.parse() {
            Ok(number) => Ok(Self::Number(number)),
            Err(_) if is_name => Ok(Self::Name(text.to_owned())),
            Err(_) => Err(DevicesError::NoDevice(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assigned(list: &str, ranks: usize, visible: Option<&str>) -> Result<Vec<String>, DevicesError> {
        list.parse::<Devices>().and_then(|devices| devices.assign(ranks, visible))
    }

    #[test]
    fn each_rank_gets_its_entry_of_the_list() {
        assert_eq!(assigned("3, 0,GPU-5b", 3, None).unwrap(), ["3", "0", "GPU-5b"]);
        assert_eq!(assigned("MIG-1,0,7", 2, None).unwrap(), ["MIG-1", "0"], "device 7 is not used");
        assert_eq!(assigned("per-rank", 3, None).unwrap(), ["0", "1", "2"]);
    }

    #[test]
    fn indices_refer_to_the_visible_devices() {
        assert_eq!(assigned("1,0,GPU-5b", 3, Some("6, GPU-77")).unwrap(), ["GPU-77", "6", "GPU-5b"]);
        assert_eq!(assigned("per-rank", 2, Some("6,4,5")).unwrap(), ["6", "4"]);
        let not_shown = DevicesError::NotShown { number: 2, shown: 2 };
        assert_eq!(assigned("0,2", 2, Some("6,4")), Err(not_shown));
        // The driver ignores all entries after the first that is not a device.
        assert_eq!(assigned("0,1", 2, Some("6,-1,4")), Err(DevicesError::NotShown { number: 1, shown: 1 }));
    }

    #[test]
    fn ranks_share_devices_only_on_request() {
        let too_few = |ranks, devices| Err(DevicesError::TooFew { ranks, devices });
        assert_eq!(assigned("0,1", 3, None), too_few(3, 2));
        assert_eq!(assigned("per-rank", 3, Some("4,5")), too_few(3, 2));
        assert_eq!(assigned("per-rank", 1, Some("")), too_few(1, 0));
        assert_eq!(assigned("per-rank", 1, Some("-1")), too_few(1, 0));
        let shared = |list: &str, visible| list.parse::<Devices>().unwrap().shared(true).assign(5, visible);
        assert_eq!(shared("7,2", None).unwrap(), ["7", "2", "7", "2", "7"]);
        assert_eq!(shared("per-rank", Some("4,5")).unwrap(), ["4", "5", "4", "5", "4"]);
        assert_eq!(shared("per-rank", None), Err(DevicesError::Unknown));
        assert_eq!(shared("per-rank", Some("")), Err(DevicesError::TooFew { ranks: 5, devices: 0 }));
    }

    #[test]
    fn a_device_is_listed_twice_only_if_devices_are_shared() {
        assert_eq!(assigned("0,1,0", 3, None), Err(DevicesError::Repeated("0".into())));
        let twice = assigned("GPU-77,0", 2, Some("GPU-77"));
        assert_eq!(twice, Err(DevicesError::Repeated("GPU-77".into())), "under two names");
        let shared = "0,0,1".parse::<Devices>().unwrap().shared(true);
        assert_eq!(shared.assign(3, None).unwrap(), ["0", "0", "1"]);
    }

    #[test]
    fn entries_that_are_not_devices_are_errors() {
        for wrong in ["", "0,", "a", "-1", "GPU-", "gpu-5b", "0-3", "0;1"] {
            assert!(matches!(wrong.parse::<Devices>(), Err(DevicesError::NoDevice(_))), "{wrong:?}");
        }
    }
}
