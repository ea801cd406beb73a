//! Errors for libraries that do not exist, are not NCCL, or are too old. These tests do not need
//! NCCL.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "helpers of tests")]

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use nccl_sys::{LoadError, Nccl, Origin, Refusal, Search, Version, ncclComm_t, ncclResult_t};
use tempfile::TempDir;

fn refused(search: &Search) -> LoadError {
    Nccl::load(search).expect_err("nothing here is NCCL")
}

/// Returns the only reason why the library at `path` is rejected.
#[track_caller]
fn refusal_of(path: &Path) -> Refusal {
    let error = refused(&Search::new().at(path));
    assert_eq!(error.attempts.len(), 1, "{error}");
    assert_eq!((&*error.attempts[0].path, error.attempts[0].origin), (path, Origin::Given));
    assert!(error.to_string().contains(&path.display().to_string()), "{error}");
    error.attempts[0].refusal.clone()
}

/// Compiles a library, and returns it with its folder.
fn library(source: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().canonicalize().unwrap().join("libnccl.so.2");
    let file = folder.path().join("source.rs");
    fs::write(&file, source).unwrap();
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut command = Command::new(rustc);
    command.args(["--edition=2024", "--crate-type=cdylib", "--crate-name=fake", "-Cpanic=abort", "-o"]);
    let status = command.arg(&path).arg(&file).status().unwrap();
    assert!(status.success(), "rustc does not take {source}");
    (folder, path)
}

/// Compiles a library with this version code and one more call.
fn library_of_version(code: i32, result: u32) -> (TempDir, PathBuf) {
    library(&format!(
        "#[unsafe(no_mangle)] pub unsafe extern \"C\" fn ncclGetVersion(version: *mut i32) -> u32 {{
             unsafe {{ *version = {code} }}; {result}
         }}
         #[unsafe(no_mangle)] pub extern \"C\" fn ncclCommFinalize(_: *mut u8) -> u32 {{ 77 }}"
    ))
}

#[test]
fn the_error_of_a_missing_file_has_its_path_and_the_message_of_the_loader() {
    let path = Path::new("/nowhere/libnccl.so.2");
    let Refusal::Loader { message } = refusal_of(path) else { panic!("something is there") };
    assert!(message.contains("/nowhere/libnccl.so.2: cannot open shared object file"), "{message}");
}

#[test]
fn the_error_lists_every_attempted_path() {
    let error = refused(&Search::new().with_variable(Some("/nowhere/nccl".into())));
    assert_eq!(error.attempts.iter().map(|attempt| attempt.origin).collect::<Vec<_>>(), [Origin::Variable]);
    let text = error.to_string();
    assert!(text.contains("/nowhere/nccl (COMM_NCCL_PATH): /nowhere/nccl: cannot open"), "{text}");

    // If the loader finds NCCL, there is no error.
    if let Err(error) = Nccl::load(&Search::new()) {
        let tried: Vec<_> = error.attempts.iter().map(|attempt| attempt.path.as_os_str()).collect();
        assert_eq!(tried, Search::NAMES.map(OsStr::new));
        let text = error.to_string();
        assert!(text.contains("\n  libnccl.so.2 (the system's loader): libnccl.so.2: "), "{text}");
        assert!(text.contains("\n  libnccl.so (the system's loader): libnccl.so: "), "{text}");
    }
}

#[test]
fn a_file_that_is_not_a_library_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("libnccl.so.2");
    fs::write(&path, [b'x'; 4096]).unwrap();
    let Refusal::Loader { message } = refusal_of(&path) else { panic!("it was loaded") };
    assert!(message.contains("invalid ELF header"), "{message}");
    fs::write(&path, "").unwrap();
    let Refusal::Loader { message } = refusal_of(&path) else { panic!("it was loaded") };
    assert!(message.contains("file too short"), "{message}");
}

#[test]
fn another_library_is_an_error() {
    let refusal = refusal_of(Path::new("libm.so.6"));
    let Refusal::NotNccl { symbol, .. } = &refusal else { panic!("{refusal}") };
    assert_eq!(*symbol, "ncclGetVersion");
}

#[test]
fn the_error_of_an_old_library_has_both_versions() {
    let (_folder, path) = library_of_version(21703, 0);
    let refusal = refusal_of(&path);
    assert_eq!(refusal, Refusal::TooOld { path, found: Version::new(2, 17, 3) });
    let text = refusal.to_string();
    assert!(text.contains("2.17.3") && text.contains("2.18.0"), "{text}");
}

#[test]
fn a_library_without_version_is_an_error() {
    let (_folder, path) = library_of_version(21803, 3);
    assert_eq!(refusal_of(&path), Refusal::NoVersion { path, result: ncclResult_t::ncclInternalError });
    let (_folder, path) = library_of_version(-1, 0);
    assert!(matches!(refusal_of(&path), Refusal::NoVersion { .. }));
}

#[test]
fn a_library_reports_version_and_path() {
    let (folder, path) = library_of_version(22809, 0);
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let nccl = Nccl::load(&Search::new().with_variable(Some(link.into()))).unwrap();
    assert_eq!((nccl.version(), nccl.path()), (Version::new(2, 28, 9), &*path));
}

#[test]
fn the_error_of_a_missing_call_has_both_versions() {
    let (_folder, path) = library_of_version(21803, 0);
    let nccl = Nccl::load(&Search::new().at(&path)).unwrap();
    // SAFETY: the library lacks the call, so nothing is called.
    let missing = unsafe { nccl.ncclCommRevoke(ncclComm_t::NULL, 0) }.unwrap_err();
    assert_eq!((missing.symbol, missing.found), ("ncclCommRevoke", nccl.version()));
    assert_eq!((missing.since, &missing.path), (Version::new(2, 28, 7), &path));
    let text = missing.to_string();
    assert!(text.contains("2.18.3") && text.contains("ncclCommRevoke") && text.contains("2.28.7"), "{text}");
    assert_eq!(nccl.require("ncclCommRevoke"), Err(missing));

    assert_eq!(nccl.require("ncclCommFinalize"), Ok(()));
    // SAFETY: the call of this library ignores its arguments.
    let result = unsafe { nccl.ncclCommFinalize(ncclComm_t::NULL) };
    assert_eq!(result, Ok(ncclResult_t(77)));
    let present: Vec<_> = nccl.calls().filter(|call| call.present).map(|call| call.name).collect();
    assert_eq!(present, ["ncclGetVersion", "ncclCommFinalize"]);

    // The library lacks the descriptions too.
    assert_eq!(nccl.error_string(ncclResult_t(77)), "NCCL result 77");
    assert_eq!(nccl.last_error(), None);
}

#[test]
fn handles_are_send() {
    fn assert_send<T: Send>() {}
    fn assert_shared<T: Send + Sync>() {}
    assert_send::<ncclComm_t>();
    assert_send::<nccl_sys::ncclWindow_t>();
    assert_shared::<Nccl>();
}
