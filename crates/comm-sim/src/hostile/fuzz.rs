//! Runs a test on many inputs, and keeps those on which it fails.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use super::input::Input;
use crate::random::Random;
use crate::swarm::Watchdog;
use crate::threads::message;

/// The most bytes of a generated input.
const BYTES_MAX_LOG2: usize = 9;
/// The time after which a run counts as hanging.
const HANG_TIMEOUT: Duration = Duration::from_secs(120);
/// The most runs to make a failing input smaller, and the most time.
const MINIMIZE_RUNS_MAX: usize = 300;
const MINIMIZE_TIMEOUT: Duration = Duration::from_secs(20);

/// Defines a test that must hold for every [`Input`](crate::hostile::Input), given the number of
/// inputs that are tried in a short run.
///
/// The inputs on which it has failed are files in the folder `corpus/NAME` of the package, and are
/// tried first. A new one is added there, after it was made smaller. With `COMM_FUZZ_SECONDS` in
/// the environment, other inputs are tried in each run, for that long.
///
/// ```
/// comm_sim::hostile_input!(altered_bytes_have_a_length: 100, |input| {
///     assert!(input.alter(b"bytes").len() < 1000);
/// });
/// ```
#[macro_export]
macro_rules! hostile_input {
    ($name:ident: $cases:expr, $target:expr) => {
        #[test]
        fn $name() {
            let package = ::std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
            let seconds = ::std::env::var("COMM_FUZZ_SECONDS").ok();
            let seconds = seconds.map(|seconds| seconds.parse().expect("COMM_FUZZ_SECONDS"));
            let corpus = package.join("corpus").join(stringify!($name));
            $crate::hostile::fuzz(&corpus, $cases, seconds, $target);
        }
    };
}

/// Runs the test that [`hostile_input!`](crate::hostile_input) defines: on the files in the folder
/// `corpus`, and then on `cases` inputs that are the same in every run, or for `seconds` on others.
///
/// # Panics
/// If the test fails, with the name of the file that has the input.
#[expect(clippy::panic, reason = "documented, for tests")]
pub fn fuzz(corpus: &Path, cases: u64, seconds: Option<u64>, target: impl Fn(&mut Input)) {
    let run = |bytes: &[u8]| {
        let run = catch_unwind(AssertUnwindSafe(|| target(&mut Input::new(bytes))));
        run.map_err(|panic| message(&panic).to_owned())
    };
    let watchdog = Watchdog::new(HANG_TIMEOUT);
    for (number, (path, bytes)) in (0..).zip(files(corpus)) {
        watchdog.begin(number);
        if let Err(failure) = run(&bytes) {
            panic!("{path} fails: {failure}");
        }
    }
    let began = Instant::now();
    let first = if seconds.is_some() { time_of_day() } else { 0 };
    let is_due = |number: u64| match seconds {
        Some(seconds) => began.elapsed() < Duration::from_secs(seconds),
        None => number < cases,
    };
    for number in (0..).take_while(|number| is_due(*number)) {
        let seed = first.wrapping_add(number);
        watchdog.begin(seed);
        let bytes = input_of(seed);
        if let Err(failure) = run(&bytes) {
            drop(watchdog);
            let (bytes, failure) = minimize(bytes, failure, run);
            panic!("{} fails: {failure}", keep(corpus, &bytes));
        }
    }
}

/// Returns the input of a seed. Short ones are as frequent as long ones.
pub(super) fn input_of(seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed, 1);
    let most = 2 << random.below(BYTES_MAX_LOG2);
    let len = random.below(most);
    (0..len).map(|_| random.next() as u8).collect()
}

/// Returns the files of a folder with their contents, in the order of their names.
fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut files: Vec<_> = entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter_map(|path| Some((path.display().to_string(), fs::read(&path).ok()?)))
        .collect();
    files.sort();
    files
}

/// Adds an input to the folder, and returns its path, or the input if the folder cannot be written.
fn keep(folder: &Path, bytes: &[u8]) -> String {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    let path = folder.join(format!("{:016x}", hasher.finish()));
    match fs::create_dir_all(folder).and_then(|()| fs::write(&path, bytes)) {
        Ok(()) => path.display().to_string(),
        Err(error) => format!("{bytes:?}, which cannot be written to {} ({error}),", path.display()),
    }
}

/// Removes bytes from a failing input, and sets others to zero, as long as it fails.
fn minimize(
    mut bytes: Vec<u8>,
    mut failure: String,
    run: impl Fn(&[u8]) -> Result<(), String>,
) -> (Vec<u8>, String) {
    let (began, mut runs) = (Instant::now(), 0);
    let mut size = bytes.len().div_ceil(2);
    while size > 0 {
        let mut at = 0;
        while at < bytes.len() {
            let end = bytes.len().min(at + size);
            let zeros = [&bytes[..at], &vec![0; end - at], &bytes[end..]].concat();
            let candidates = [[&bytes[..at], &bytes[end..]].concat(), zeros];
            let mut smaller = candidates.into_iter().filter(|candidate| *candidate != bytes);
            let found = smaller.find_map(|candidate| {
                runs += 1;
                if runs > MINIMIZE_RUNS_MAX || began.elapsed() > MINIMIZE_TIMEOUT {
                    return None;
                }
                run(&candidate).err().map(|failure| (candidate, failure))
            });
            match found {
                Some((candidate, found)) => {
                    at += if candidate.len() == bytes.len() { size } else { 0 };
                    (bytes, failure) = (candidate, found);
                }
                None => at += size,
            }
        }
        size /= 2;
    }
    (bytes, failure)
}

/// Returns a number that differs between runs.
fn time_of_day() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0, |now| now.as_nanos() as u64)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Returns an empty folder that the test removes.
    fn folder(name: &str) -> std::path::PathBuf {
        let folder = std::env::temp_dir().join(format!("comm-sim-{name}-{}", std::process::id()));
        drop(fs::remove_dir_all(&folder));
        folder
    }

    #[test]
    fn a_failing_input_is_made_smaller_kept_and_tried_first() {
        let folder = folder("kept");
        let defect = |input: &mut Input| {
            while !input.is_empty() {
                assert!(input.byte() != 7, "seven");
            }
        };
        let failed = catch_unwind(|| fuzz(&folder, 1000, None, defect)).unwrap_err();
        assert!(message(&failed).contains("seven"));
        let kept = files(&folder);
        assert_eq!(kept.iter().map(|(_, bytes)| &bytes[..]).collect::<Vec<_>>(), [[7]]);
        let failed = catch_unwind(|| fuzz(&folder, 0, None, defect)).unwrap_err();
        assert!(message(&failed).contains(&kept[0].0));
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn the_inputs_of_a_short_run_are_the_same_in_every_run() {
        let folder = folder("same");
        let hashes: Vec<u64> = (0..2)
            .map(|_| {
                let (runs, hasher) = (AtomicUsize::new(0), std::sync::Mutex::new(DefaultHasher::new()));
                fuzz(&folder, 50, None, |input| {
                    runs.fetch_add(1, Ordering::Relaxed);
                    input.alter(b"bytes").hash(&mut *hasher.lock().unwrap());
                });
                assert_eq!(runs.into_inner(), 50);
                hasher.into_inner().unwrap().finish()
            })
            .collect();
        assert_eq!(hashes[0], hashes[1]);
    }
}
