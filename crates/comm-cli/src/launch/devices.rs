//! Which GPUs each rank is shown.

use std::collections::HashSet;
use std::str::FromStr;

/// What the driver of CUDA reads to know which devices it shows to a process.
pub(super) const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// Which GPUs the ranks are shown: one each, which every rank then finds under the number 0.
///
/// Parsed from a list such as `0,1,2,3` or `GPU-5b6c...,GPU-77aa...`, of which rank *r* gets the
/// *r*-th, or from `per-rank`. Numbers count among the devices that the launcher itself is shown,
/// which its own `CUDA_VISIBLE_DEVICES` may restrict and put in another order; names are those of
/// `nvidia-smi -L`, of whole devices or of MIG instances. More devices than ranks are allowed; what
/// is left over stays unused.
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
    /// None for as many as there are ranks, in their order.
    list: Option<Vec<Device>>,
    shared: bool,
}

/// A device, as a user names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Device {
    /// Its number among those that the launcher is shown.
    Number(usize),
    /// The name that it has everywhere.
    Name(String),
}

/// What is wrong with a list of devices.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DevicesError {
    /// An entry that names no device.
    #[error("{0:?} is no device: expected a number, or a name that begins with GPU- or MIG-")]
    NoDevice(String),
    /// A device that is listed twice, although ranks are not to share any.
    #[error("device {0} is listed twice; ranks share devices only if asked to (--share-devices)")]
    Repeated(String),
    /// A number that is too large for what the launcher is shown.
    #[error("there is no device {number}: CUDA_VISIBLE_DEVICES shows {shown} to the launcher")]
    NotShown {
        /// The number, from 0.
        number: usize,
        /// How many devices the launcher is shown.
        shown: usize,
    },
    /// More ranks than devices, although ranks are not to share any.
    #[error(
        "{ranks} ranks need as many devices, and there are {devices}; to let ranks share them, ask for it (--share-devices)"
    )]
    TooFew {
        /// How many ranks there are to be.
        ranks: usize,
        /// How many devices were listed, or are shown to the launcher.
        devices: usize,
    },
    /// Devices were to be shared, and nobody said which.
    #[error("which devices are to be shared is not known: list them, or set CUDA_VISIBLE_DEVICES")]
    Unknown,
}

impl Devices {
    /// Rank *r* gets device *r* of those that the launcher is shown.
    pub fn per_rank() -> Self {
        Self { list: None, shared: false }
    }

    /// Whether ranks may share devices, which they then take in turns. Without this, there must be
    /// one for each.
    #[must_use]
    pub fn shared(mut self, shared: bool) -> Self {
        self.shared = shared;
        self
    }

    /// What each rank is shown. `visible` is what the launcher is shown, if anybody restricts that.
    pub(super) fn assign(&self, ranks: usize, visible: Option<&str>) -> Result<Vec<String>, DevicesError> {
        let visible: Option<Vec<&str>> = visible.map(entries);
        let devices = match (&self.list, &visible) {
            (Some(list), _) => self.named(list, visible.as_deref())?,
            (None, Some(visible)) => visible.iter().map(|name| (*name).to_owned()).collect(),
            (None, None) if self.shared => return Err(DevicesError::Unknown),
            // How many there are is known to the driver; a rank that finds none says so.
            (None, None) => (0..ranks).map(|number| number.to_string()).collect(),
        };
        if devices.is_empty() || !self.shared && devices.len() < ranks {
            return Err(DevicesError::TooFew { ranks, devices: devices.len() });
        }
        Ok(devices.iter().cycle().take(ranks).cloned().collect())
    }

    /// The names of listed devices for the driver.
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

/// The entries of a list as the driver reads it: up to the first that names no device.
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
    fn each_rank_gets_one_of_the_list_in_its_order() {
        assert_eq!(assigned("3, 0,GPU-5b", 3, None).unwrap(), ["3", "0", "GPU-5b"]);
        assert_eq!(assigned("MIG-1,0,7", 2, None).unwrap(), ["MIG-1", "0"], "what is left over is not used");
        assert_eq!(assigned("per-rank", 3, None).unwrap(), ["0", "1", "2"]);
    }

    #[test]
    fn numbers_count_among_what_the_launcher_is_shown() {
        assert_eq!(assigned("1,0,GPU-5b", 3, Some("6, GPU-77")).unwrap(), ["GPU-77", "6", "GPU-5b"]);
        assert_eq!(assigned("per-rank", 2, Some("6,4,5")).unwrap(), ["6", "4"]);
        let not_shown = DevicesError::NotShown { number: 2, shown: 2 };
        assert_eq!(assigned("0,2", 2, Some("6,4")), Err(not_shown));
        // The driver reads no further than to the first entry that is no device.
        assert_eq!(assigned("0,1", 2, Some("6,-1,4")), Err(DevicesError::NotShown { number: 1, shown: 1 }));
    }

    #[test]
    fn fewer_devices_than_ranks_are_shared_only_if_asked_for() {
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
    fn a_device_is_listed_twice_only_if_it_is_shared() {
        assert_eq!(assigned("0,1,0", 3, None), Err(DevicesError::Repeated("0".into())));
        let twice = assigned("GPU-77,0", 2, Some("GPU-77"));
        assert_eq!(twice, Err(DevicesError::Repeated("GPU-77".into())), "under two names");
        let shared = "0,0,1".parse::<Devices>().unwrap().shared(true);
        assert_eq!(shared.assign(3, None).unwrap(), ["0", "0", "1"]);
    }

    #[test]
    fn what_names_no_device_is_refused() {
        for wrong in ["", "0,", "a", "-1", "GPU-", "gpu-5b", "0-3", "0;1"] {
            assert!(matches!(wrong.parse::<Devices>(), Err(DevicesError::NoDevice(_))), "{wrong:?}");
        }
    }
}
