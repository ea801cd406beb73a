//! Generates the bindings of the crate `nccl-sys` from NCCL's header: `nccl-bindgen NCCL_H` writes
//! them to standard output.
//!
//! bindgen translates types, constants and declarations. This program then moves declarations into
//! a macro whose calls are looked up at run time ([`calls`]), and translates the initializers of
//! structs to constants ([`initializers`]), which bindgen ignores.

#![forbid(unsafe_code)]

mod calls;
mod initializers;

use std::io::{self, Write, stderr, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs};

use bindgen::{EnumVariation, MacroTypeVariation, NonCopyUnionStyle, RustEdition, RustTarget};

/// The start of the generated code.
const HEAD: &str = "// Written by `cargo xtask nccl-bindings` from nccl.h of NCCL";
const NOTICE: &str = "//
// Names, values and layouts are NCCL's, whose header is Copyright (c) NVIDIA CORPORATION &
// AFFILIATES, Apache-2.0 (https://github.com/NVIDIA/nccl/blob/master/LICENSE.txt).

";

/// The error of the generation.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("usage: nccl-bindgen NCCL_H")]
    Usage,
    #[error("{}", path.display())]
    Header { path: PathBuf, source: io::Error },
    #[error("the header has no `#define {0}`")]
    NotDefined(&'static str),
    #[error("no target: {0}")]
    Target(io::Error),
    #[error("bindgen")]
    Bindgen(#[from] bindgen::BindgenError),
    #[error("what bindgen wrote is not Rust")]
    NotRust(#[from] syn::Error),
    #[error(transparent)]
    Initializer(#[from] initializers::InitializerError),
    #[error("cannot write")]
    Output(#[from] io::Error),
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // If standard error is closed, the exit code still reports the error.
            drop(writeln!(stderr(), "nccl-bindgen: {}", chain(&failure)));
            ExitCode::FAILURE
        }
    }
}

/// Formats an error and its sources on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |&cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

fn run() -> Result<(), Failure> {
    let mut arguments = env::args_os().skip(1);
    let (Some(path), None) = (arguments.next().map(PathBuf::from), arguments.next()) else {
        return Err(Failure::Usage);
    };
    let header =
        fs::read_to_string(&path).map_err(|source| Failure::Header { path: path.clone(), source })?;
    let mut file = syn::parse_file(&translate(&path)?)?;
    let calls = calls::take(&mut file);
    initializers::append(&mut file, &header)?;
    let version = ["NCCL_MAJOR", "NCCL_MINOR", "NCCL_PATCH"].map(|name| defined(&header, name));
    let [major, minor, patch] = version;
    let code = prettyplease::unparse(&file);
    write!(stdout().lock(), "{HEAD} {}.{}.{}.\n{NOTICE}{code}\n{calls}", major?, minor?, patch?)?;
    Ok(())
}

/// Runs bindgen on the header, for 64-bit Linux and without system headers.
fn translate(header: &Path) -> Result<String, Failure> {
    let stubs = Path::new(env!("CARGO_MANIFEST_DIR")).join("stubs");
    let target = "1.85".parse::<RustTarget>().map_err(Failure::Target)?;
    let bindings = bindgen::builder()
        .header(header.to_string_lossy())
        .clang_args(["--target=x86_64-unknown-linux-gnu", "-nostdinc", "-I"])
        .clang_arg(stubs.to_string_lossy())
        .rust_target(target)
        .rust_edition(RustEdition::Edition2024)
        .use_core()
        .raw_line("use core::ffi;")
        .ctypes_prefix("ffi")
        // Later libraries return codes that this header does not define.
        .default_enum_style(EnumVariation::NewType { is_bitfield: false, is_global: false })
        .default_non_copy_union_style(NonCopyUnionStyle::BindgenWrapper)
        .default_macro_constant_type(MacroTypeVariation::Signed)
        .new_type_alias("nccl(Comm|Window)_t")
        .must_use_type("ncclResult_t")
        .allowlist_type("nccl[A-Z].*")
        .allowlist_function("nccl[A-Z].*")
        .allowlist_var("NCCL_.*")
        // Its signature changed in a patch release, and NCCL reads its environment itself.
        .blocklist_item("ncclParam.*")
        // A text, which is empty in releases.
        .blocklist_item("NCCL_SUFFIX")
        // Texts of NCCL are static.
        .generate_comments(false)
        .layout_tests(true)
        .disable_header_comment()
        .formatter(bindgen::Formatter::None)
        .generate()?;
    Ok(bindings.to_string())
}

/// Returns the number that the header defines under this name.
fn defined(header: &str, name: &'static str) -> Result<u32, Failure> {
    let number = |line: &str| line.strip_prefix("#define ")?.strip_prefix(name)?.trim().parse().ok();
    header.lines().find_map(number).ok_or(Failure::NotDefined(name))
}
