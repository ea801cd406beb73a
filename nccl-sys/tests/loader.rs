//! What is said of libraries that are not there, are not NCCL, or are too old. None of this needs
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

/// The one reason why the library at `path` is refused.
#[track_caller]
fn refusal_of(path: &Path) -> Refusal {
    let error = refused(&Search::new().at(path));
    assert_eq!(error.attempts.len(), 1, "{error}");
    assert_eq!((&*error.attempts[0].path, error.attempts[0].origin), (path, Origin::Given));
    assert!(error.to_string().contains(&path.display().to_string()), "{error}");
    error.attempts[0].refusal.clone()
}

/// A library made of `source`, and the folder that it lies in.
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

/// A library that says it is the version of this code, and has one call more.
fn library_of_version(code: i32, result: u32) -> (TempDir, PathBuf) {
    library(&format!(
        "#[unsafe(no_mangle)] pub unsafe extern \"C\" fn ncclGetVersion(version: *mut i32) -> u32 {{
             unsafe {{ *version = {code} }}; {result}
         }}
         #[unsafe(no_mangle)] pub extern \"C\" fn ncclCommFinalize(_: *mut u8) -> u32 {{ 77 }}"
    ))
}

#[test]
fn a_path_that_leads_nowhere_is_named_with_the_words_of_the_loader() {
    let path = Path::new("/nowhere/libnccl.so.2");
    let Refusal::Loader { words } = refusal_of(path) else { panic!("something is there") };
    assert!(words.contains("/nowhere/libnccl.so.2: cannot open shared object file"), "{words}");
}

#[test]
fn every_path_that_was_tried_is_named() {
    let error = refused(&Search::new().with_variable(Some("/nowhere/nccl".into())));
    assert_eq!(error.attempts.iter().map(|attempt| attempt.origin).collect::<Vec<_>>(), [Origin::Variable]);
    let text = error.to_string();
    assert!(text.contains("/nowhere/nccl (COMM_NCCL_PATH): /nowhere/nccl: cannot open"), "{text}");

    // With NCCL in a folder that the loader knows, there is no error to look at.
    if let Err(error) = Nccl::load(&Search::new()) {
        let tried: Vec<_> = error.attempts.iter().map(|attempt| attempt.path.as_os_str()).collect();
        assert_eq!(tried, Search::NAMES.map(OsStr::new));
        let text = error.to_string();
        assert!(text.contains("\n  libnccl.so.2 (the system's loader): libnccl.so.2: "), "{text}");
        assert!(text.contains("\n  libnccl.so (the system's loader): libnccl.so: "), "{text}");
    }
}

#[test]
fn a_file_that_is_no_library_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("libnccl.so.2");
    fs::write(&path, [b'x'; 4096]).unwrap();
    let Refusal::Loader { words } = refusal_of(&path) else { panic!("it was loaded") };
    assert!(words.contains("invalid ELF header"), "{words}");
    fs::write(&path, "").unwrap();
    let Refusal::Loader { words } = refusal_of(&path) else { panic!("it was loaded") };
    assert!(words.contains("file too short"), "{words}");
}

#[test]
fn a_library_that_is_something_else_is_refused() {
    let refusal = refusal_of(Path::new("libm.so.6"));
    let Refusal::NotNccl { symbol, .. } = &refusal else { panic!("{refusal}") };
    assert_eq!(*symbol, "ncclGetVersion");
}

#[test]
fn a_library_below_the_floor_is_refused_with_both_versions() {
    let (_folder, path) = library_of_version(21703, 0);
    let refusal = refusal_of(&path);
    assert_eq!(refusal, Refusal::TooOld { path, found: Version::new(2, 17, 3) });
    let text = refusal.to_string();
    assert!(text.contains("2.17.3") && text.contains("2.18.0"), "{text}");
}

#[test]
fn a_library_that_does_not_tell_its_version_is_refused() {
    let (_folder, path) = library_of_version(21803, 3);
    assert_eq!(refusal_of(&path), Refusal::NoVersion { path, result: ncclResult_t::ncclInternalError });
    let (_folder, path) = library_of_version(-1, 0);
    assert!(matches!(refusal_of(&path), Refusal::NoVersion { .. }));
}

#[test]
fn a_library_is_known_by_version_and_place_whatever_it_was_asked_for_by() {
    let (folder, path) = library_of_version(22809, 0);
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let nccl = Nccl::load(&Search::new().with_variable(Some(link.into()))).unwrap();
    assert_eq!((nccl.version(), nccl.path()), (Version::new(2, 28, 9), &*path));
}

#[test]
fn calls_that_a_library_lacks_are_errors_that_name_both_versions() {
    let (_folder, path) = library_of_version(21803, 0);
    let nccl = Nccl::load(&Search::new().at(&path)).unwrap();
    // SAFETY: the library has no such call, so that none is made.
    let missing = unsafe { nccl.ncclCommRevoke(ncclComm_t::NULL, 0) }.unwrap_err();
    assert_eq!((missing.symbol, missing.found), ("ncclCommRevoke", nccl.version()));
    assert_eq!((missing.since, &missing.path), (Version::new(2, 28, 7), &path));
    let text = missing.to_string();
    assert!(text.contains("2.18.3") && text.contains("ncclCommRevoke") && text.contains("2.28.7"), "{text}");
    assert_eq!(nccl.require("ncclCommRevoke"), Err(missing));

    assert_eq!(nccl.require("ncclCommFinalize"), Ok(()));
    // SAFETY: the call of this library looks at nothing.
    let result = unsafe { nccl.ncclCommFinalize(ncclComm_t::NULL) };
    assert_eq!(result, Ok(ncclResult_t(77)));
    let present: Vec<_> = nccl.calls().filter(|call| call.present).map(|call| call.name).collect();
    assert_eq!(present, ["ncclGetVersion", "ncclCommFinalize"]);

    // The words are missing too, and nothing panics.
    assert_eq!(nccl.error_string(ncclResult_t(77)), "NCCL result 77");
    assert_eq!(nccl.last_error(), None);
}

#[test]
fn handles_may_be_sent_to_other_threads() {
    fn assert_send<T: Send>() {}
    fn assert_shared<T: Send + Sync>() {}
    assert_send::<ncclComm_t>();
    assert_send::<nccl_sys::ncclWindow_t>();
    assert_shared::<Nccl>();
}
