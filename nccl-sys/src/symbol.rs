//! The calls of a library, and the versions that introduced them.

#![allow(unsafe_code)]

use std::path::PathBuf;

use crate::Version;

/// Calls that the oldest supported library lacks, with the version that introduced them.
///
/// If packages of a release differ, this is the first version that is known to have the call.
const SINCE: [(Version, &[&str]); 10] = [
    (Version::new(2, 19, 0), &["ncclMemAlloc", "ncclMemFree", "ncclCommRegister", "ncclCommDeregister"]),
    (Version::new(2, 22, 0), &["ncclGroupSimulateEnd"]),
    (Version::new(2, 23, 0), &["ncclCommInitRankScalable"]),
    (Version::new(2, 27, 0), &["ncclCommShrink", "ncclCommWindowRegister", "ncclCommWindowDeregister"]),
    (Version::new(2, 28, 3), &["ncclAlltoAll", "ncclGather", "ncclScatter"]),
    (Version::new(2, 28, 7), &["ncclCommRevoke"]),
    (
        Version::new(2, 29, 2),
        &[
            "ncclCommGetUniqueId",
            "ncclCommGrow",
            "ncclPutSignal",
            "ncclSignal",
            "ncclWaitSignal",
            "ncclWinGetUserPtr",
        ],
    ),
    (Version::new(2, 29, 7), &["ncclCommSuspend", "ncclCommResume", "ncclCommMemStats"]),
    (
        Version::new(2, 31, 2),
        &[
            "ncclAllReduceConfig",
            "ncclBroadcastConfig",
            "ncclReduceConfig",
            "ncclAllGatherConfig",
            "ncclReduceScatterConfig",
            "ncclAlltoAllConfig",
            "ncclGatherConfig",
            "ncclScatterConfig",
        ],
    ),
    (Version::new(2, 32, 3), &["ncclSetEncryption"]),
];

/// A call of NCCL in these bindings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Call {
    /// Its name.
    pub name: &'static str,
    /// The version that introduced it, or [`Version::FLOOR`] if that is older.
    pub since: Version,
    /// Whether the loaded library has it.
    pub present: bool,
}

impl Call {
    pub(crate) fn new(name: &'static str, present: bool) -> Self {
        Self { name, since: since(name), present }
    }
}

/// The error of a call that the loaded library lacks. The call had no effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("NCCL {found} at {} has no {symbol}, which came with {since}", path.display())]
#[non_exhaustive]
pub struct MissingSymbol {
    /// The name of the call.
    pub symbol: &'static str,
    /// The version of the library.
    pub found: Version,
    /// The version that introduced the call.
    pub since: Version,
    /// The path of the library.
    pub path: PathBuf,
}

impl MissingSymbol {
    pub(crate) fn new(symbol: &'static str, found: Version, path: PathBuf) -> Self {
        Self { symbol, found, since: since(symbol), path }
    }
}

/// Returns the version that introduced a call, or the oldest supported one.
fn since(symbol: &str) -> Version {
    let row = SINCE.iter().find(|(_, symbols)| symbols.contains(&symbol));
    row.map_or(Version::FLOOR, |(version, _)| *version)
}

/// Defines `Symbols`, the addresses of calls in a loaded library, and the methods of
/// [`Nccl`](crate::Nccl) that make these calls.
macro_rules! calls {
    ($(pub fn $name:ident($($argument:ident: $kind:ty),* $(,)?) -> $result:ty;)+) => {
        /// The addresses of the calls in a loaded library.
        #[derive(Clone, Copy, Debug)]
        pub(crate) struct Symbols {
            $(pub(crate) $name: Option<unsafe extern "C" fn($($argument: $kind),*) -> $result>,)+
        }

        impl Symbols {
            /// Looks up all calls.
            ///
            /// # Safety
            ///
            /// Symbols of `library` with these names have NCCL's signatures, and no call runs after
            /// the library is unloaded.
            pub(crate) unsafe fn of(library: &::libloading::Library) -> Self {
                Self { $($name: unsafe { crate::symbol::address(library, stringify!($name)) },)+ }
            }

            /// Returns every call of these bindings, and whether the library has it.
            pub(crate) fn present(&self) -> impl Iterator<Item = (&'static str, bool)> + use<> {
                [$((stringify!($name), self.$name.is_some()),)+].into_iter()
            }
        }

        impl crate::Nccl {
            $(
                #[doc = concat!("Calls `", stringify!($name), "`, if the library has it.")]
                pub unsafe fn $name(
                    &self,
                    $($argument: $kind),*
                ) -> Result<$result, crate::MissingSymbol> {
                    match self.symbols().$name {
                        Some(call) => Ok(unsafe { call($($argument),*) }),
                        None => Err(self.missing(stringify!($name))),
                    }
                }
            )+
        }
    };
}

pub(crate) use calls;

/// Returns the address of `symbol` in `library`, if it has one.
///
/// # Safety
///
/// `T` is a function pointer with the signature of the symbol. It is called only while the library
/// is loaded.
pub(crate) unsafe fn address<T: Copy>(library: &libloading::Library, symbol: &str) -> Option<T> {
    // SAFETY: the caller guarantees the type.
    unsafe { library.get::<T>(symbol) }.ok().map(|found| *found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_rise_and_none_is_newer_than_the_header() {
        let versions = SINCE.map(|(version, _)| version);
        assert!(versions.is_sorted_by(|a, b| a < b), "{versions:?}");
        assert!(Version::FLOOR < versions[0] && versions[versions.len() - 1] <= Version::BINDINGS);
        assert_eq!(since("ncclCommShrink"), Version::new(2, 27, 0));
        assert_eq!(since("ncclAllReduce"), Version::FLOOR);
    }
}
