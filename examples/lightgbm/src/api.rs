//! The functions of LightGBM's C API that the program calls.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr;

use comm_lightgbm::{AllGather, Functions, NetworkFree, ReduceScatter};
use libloading::Library;

/// `C_API_DTYPE_FLOAT32`.
const FLOAT32: c_int = 0;
/// `C_API_PREDICT_NORMAL`.
const NORMAL: c_int = 0;
/// All trees of a booster.
const ALL: c_int = -1;

/// A handle of LightGBM.
type Handle = *mut c_void;

/// An error of LightGBM.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum ApiError {
    /// The library cannot be loaded.
    #[error(
        "cannot load LightGBM from {}: {reason}; pass the file lib_lightgbm.so of the package lightgbm with --library",
        path.display()
    )]
    Load {
        /// The file.
        path: PathBuf,
        /// The message of the loader.
        reason: String,
    },
    /// A function failed.
    #[error("LightGBM: {message}")]
    Failed {
        /// LightGBM's message.
        message: String,
    },
    /// There are more rows, features or ranks than LightGBM can number.
    #[error("{0} is a number that LightGBM cannot represent, or a text with a zero byte")]
    Unrepresentable(String),
}

type Result<T, E = ApiError> = std::result::Result<T, E>;

/// Declares the struct of functions, and its loading.
macro_rules! functions {
    ($($field:ident = $symbol:literal: fn($($argument:ty),*) -> $result:ty;)*) => {
        /// The functions of a library, which is never unloaded.
        struct Symbols {
            $($field: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl Symbols {
            fn of(library: &'static Library) -> Result<Self, libloading::Error> {
                Ok(Self {
                    $($field: {
                        // SAFETY: the types are those of LightGBM's header.
                        *unsafe { library.get($symbol) }?
                    },)*
                })
            }
        }
    };
}

functions! {
    last_error = "LGBM_GetLastError": fn() -> *const c_char;
    set_log = "LGBM_RegisterLogCallback": fn(unsafe extern "C" fn(*const c_char)) -> c_int;
    init_sockets = "LGBM_NetworkInit": fn(*const c_char, c_int, c_int, c_int) -> c_int;
    init_functions = "LGBM_NetworkInitWithFunctions": fn(c_int, c_int, ReduceScatter, AllGather) -> c_int;
    free_network = "LGBM_NetworkFree": fn() -> c_int;
    create_dataset = "LGBM_DatasetCreateFromMat":
        fn(*const c_void, c_int, i32, i32, c_int, *const c_char, Handle, *mut Handle) -> c_int;
    set_field = "LGBM_DatasetSetField": fn(Handle, *const c_char, *const c_void, c_int, c_int) -> c_int;
    free_dataset = "LGBM_DatasetFree": fn(Handle) -> c_int;
    create_booster = "LGBM_BoosterCreate": fn(Handle, *const c_char, *mut Handle) -> c_int;
    update = "LGBM_BoosterUpdateOneIter": fn(Handle, *mut c_int) -> c_int;
    save = "LGBM_BoosterSaveModelToString":
        fn(Handle, c_int, c_int, c_int, i64, *mut i64, *mut c_char) -> c_int;
    predict = "LGBM_BoosterPredictForMat":
        fn(
            Handle, *const c_void, c_int, i32, i32, c_int, c_int, c_int, c_int, *const c_char, *mut i64, *mut f64
        ) -> c_int;
    free_booster = "LGBM_BoosterFree": fn(Handle) -> c_int;
}

/// A loaded LightGBM.
pub(crate) struct LightGbm {
    symbols: Symbols,
}

impl LightGbm {
    /// Loads a library, which no longer logs, and leaves it loaded until the process ends, because
    /// it starts threads.
    pub(crate) fn load(path: &Path) -> Result<Self> {
        let failed =
            |error: libloading::Error| ApiError::Load { path: path.to_owned(), reason: error.to_string() };
        // SAFETY: the caller, who names the file, vouches for the code that runs when it is loaded.
        let library = unsafe { Library::new(path) }.map_err(failed)?;
        let symbols = Symbols::of(Box::leak(Box::new(library))).map_err(failed)?;
        let lightgbm = Self { symbols };
        // SAFETY: it is a function of this type.
        lightgbm.check(unsafe { (lightgbm.symbols.set_log)(ignore) })?;
        Ok(lightgbm)
    }

    /// Returns the functions with which comm becomes the network.
    pub(crate) fn network(&self) -> Functions {
        let free: NetworkFree = self.symbols.free_network;
        // SAFETY: both are functions of this library, which stays loaded.
        unsafe { Functions::new(self.symbols.init_functions, free) }
    }

    /// Connects this thread to the others of a list by LightGBM's own sockets.
    pub(crate) fn connect_sockets(&self, machines: &[(String, u16)], rank: usize) -> Result<Sockets<'_>> {
        let list: Vec<String> = machines.iter().map(|(host, port)| format!("{host}:{port}")).collect();
        let (list, size) = (text(&list.join(","))?, number(machines.len())?);
        let port = c_int::from(machines[rank].1);
        // SAFETY: the text is one of C.
        self.check(unsafe { (self.symbols.init_sockets)(list.as_ptr(), port, MINUTES, size) })?;
        Ok(Sockets(self))
    }

    /// Creates a dataset of rows with equally many features, and a label for each.
    pub(crate) fn dataset(&self, rows: &[f32], labels: &[f32], parameters: &str) -> Result<Dataset<'_>> {
        let (number_of_rows, parameters) = (number(labels.len())?, text(parameters)?);
        let features = number(rows.len() / labels.len().max(1))?;
        let mut handle = ptr::null_mut();
        // SAFETY: there are so many rows and features, the text is one of C, and the dataset copies
        // both.
        self.check(unsafe {
            (self.symbols.create_dataset)(
                rows.as_ptr().cast(),
                FLOAT32,
                number_of_rows,
                features,
                1,
                parameters.as_ptr(),
                ptr::null_mut(),
                &raw mut handle,
            )
        })?;
        let dataset = Dataset { api: self, handle };
        let labels = labels.as_ptr().cast();
        // SAFETY: there is a label for each row, and the dataset copies them.
        self.check(unsafe {
            (self.symbols.set_field)(handle, c"label".as_ptr(), labels, number_of_rows, FLOAT32)
        })?;
        Ok(dataset)
    }

    fn check(&self, code: c_int) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: the function has no arguments.
        let message = unsafe { (self.symbols.last_error)() };
        // SAFETY: it returns a text of C of this thread.
        let message = unsafe { CStr::from_ptr(message) };
        Err(ApiError::Failed { message: message.to_string_lossy().into_owned() })
    }
}

/// Ignores a line of LightGBM's log, which tells of networks whatever `verbosity` is.
unsafe extern "C" fn ignore(_line: *const c_char) {}

/// The minutes for which LightGBM's sockets wait.
const MINUTES: c_int = 2;

/// A connection by LightGBM's own sockets, which ends when it is dropped.
pub(crate) struct Sockets<'a>(&'a LightGbm);

impl Drop for Sockets<'_> {
    fn drop(&mut self) {
        // SAFETY: the function has no arguments. It cannot fail.
        unsafe { (self.0.symbols.free_network)() };
    }
}

/// The training data of this rank.
pub(crate) struct Dataset<'a> {
    api: &'a LightGbm,
    handle: Handle,
}

impl<'a> Dataset<'a> {
    pub(crate) fn booster(&'a self, parameters: &str) -> Result<Booster<'a>> {
        let (parameters, mut handle) = (text(parameters)?, ptr::null_mut());
        // SAFETY: the dataset outlives the booster, and the text is one of C.
        self.api.check(unsafe {
            (self.api.symbols.create_booster)(self.handle, parameters.as_ptr(), &raw mut handle)
        })?;
        Ok(Booster { api: self.api, handle })
    }
}

impl Drop for Dataset<'_> {
    fn drop(&mut self) {
        // SAFETY: it is a dataset that nothing uses any more.
        unsafe { (self.api.symbols.free_dataset)(self.handle) };
    }
}

/// A model in training.
pub(crate) struct Booster<'a> {
    api: &'a LightGbm,
    handle: Handle,
}

impl Booster<'_> {
    /// Adds a tree.
    pub(crate) fn update(&mut self) -> Result<()> {
        let mut is_finished = 0;
        // SAFETY: it is a booster.
        self.api.check(unsafe { (self.api.symbols.update)(self.handle, &raw mut is_finished) })
    }

    /// Returns the trees as a text, without the parameters of training, and without the values of
    /// inner nodes, which predictions do not use: with the learner `voting`, LightGBM computes that
    /// of the root from the rows of one rank.
    pub(crate) fn trees(&self) -> Result<String> {
        let mut text = Vec::<u8>::new();
        // The second call has the length of which the first one tells.
        for _ in 0..2 {
            let (capacity, mut len) = (text.len() as i64, 0);
            let to = text.as_mut_ptr().cast();
            // SAFETY: the text has this capacity.
            self.api.check(unsafe {
                (self.api.symbols.save)(self.handle, 0, ALL, 0, capacity, &raw mut len, to)
            })?;
            text.resize(usize::try_from(len).unwrap_or(0), 0);
        }
        let text = String::from_utf8_lossy(&text);
        let trees = text.split("\nparameters:").next().unwrap_or_default();
        let is_left_out = |line: &str| line.starts_with("internal_value=") || line.starts_with("tree_sizes=");
        Ok(trees.lines().filter(|line| !is_left_out(line)).collect::<Vec<_>>().join("\n"))
    }

    /// Returns the predictions of rows.
    pub(crate) fn predict(&self, rows: &[f32], features: usize) -> Result<Vec<f64>> {
        let number_of_rows = rows.len() / features;
        let (mut predictions, mut len) = (vec![0.0; number_of_rows], 0);
        let (number_of_rows, features) = (number(number_of_rows)?, number(features)?);
        // SAFETY: there are so many rows and features, and a prediction for each row.
        self.api.check(unsafe {
            (self.api.symbols.predict)(
                self.handle,
                rows.as_ptr().cast(),
                FLOAT32,
                number_of_rows,
                features,
                1,
                NORMAL,
                0,
                ALL,
                c"".as_ptr(),
                &raw mut len,
                predictions.as_mut_ptr(),
            )
        })?;
        Ok(predictions)
    }
}

impl Drop for Booster<'_> {
    fn drop(&mut self) {
        // SAFETY: it is a booster that nothing uses any more.
        unsafe { (self.api.symbols.free_booster)(self.handle) };
    }
}

fn text(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| ApiError::Unrepresentable(text.to_owned()))
}

fn number(number: usize) -> Result<i32> {
    i32::try_from(number).map_err(|_| ApiError::Unrepresentable(number.to_string()))
}
