//! `unsafe` lives in a few named files; every other crate forbids it.

use std::path::Path;

use super::Finding;
use super::source::Mentions;
use super::tree::Tree;
use crate::packages::Package;

/// The files and folders that may contain `unsafe`, and what for.
const ALLOWED: [(&str, &str); 37] = [
    ("crates/comm-candle/src/cuda.rs", "memory of candle's tensors is handed on by address"),
    ("crates/comm-cli/src/launch/process.rs", "between fork and exec, so that ranks die with their launcher"),
    ("crates/comm-core/src/allocation.rs", "memory whose owner is known at run time"),
    ("crates/comm-core/src/recv_buf.rs", "bytes that another process may write never become a slice"),
    ("crates/comm-core/src/process.rs", "a page that the kernel clears for the child of a fork"),
    ("crates/comm-core/src/reduce", "vector instructions, chosen at run time"),
    ("crates/comm-nccl/src/allocation.rs", "memory of a device is numbers until it is freed"),
    ("crates/comm-nccl/src/handle", "every call of NCCL is one of C"),
    ("crates/comm-nccl/src/pinned.rs", "a device reads and writes pinned memory by its address"),
    ("crates/comm-nccl/src/probe.rs", "whether there is a driver is known when it is loaded"),
    ("crates/comm-nccl/src/stream.rs", "streams of other libraries come as handles"),
    ("crates/comm-nccl/src/transfer.rs", "copies name memory of a device by numbers"),
    ("crates/comm-nccl/src/view.rs", "memory of other libraries comes as numbers"),
    ("crates/comm-nccl/tests", "stand in for a framework, whose memory comes as numbers"),
    ("crates/comm-shm/src/credentials.rs", "rustix cannot say who a peer of another process namespace is"),
    (
        "crates/comm-shm/src/region.rs",
        "memory that other processes read is mapped, and theirs is read by address",
    ),
    ("crates/comm-shm/src/cma.rs", "rustix cannot read the memory of another process"),
    ("crates/comm-shm/src/segment.rs", "memory that another process writes is mapped, and copied by address"),
    ("crates/comm-shm/src/non_temporal.rs", "non-temporal stores are instructions of the processor"),
    ("crates/comm/tests/fork.rs", "a fork is unsafe, and is what is tried"),
    ("crates/gpu-check/src/gpu", "stands in for a user's kernels, and for a framework's memory"),
    ("crates/gpu-emu/src/client/mod.rs", "a test calls the loaded library by its symbols"),
    ("crates/gpu-emu/src/control.rs", "these are the symbols that it calls"),
    (
        "crates/gpu-emu/src/device/pinned.rs",
        "host memory whose address is handed out, and that devices reach by address",
    ),
    (
        "crates/gpu-emu/src/driver",
        "exports the C functions of CUDA, and copies from and to what their callers pass",
    ),
    ("crates/gpu-emu/src/ffi.rs", "addresses that C callers pass"),
    ("crates/gpu-emu/src/kernel.rs", "arguments of a kernel cross the border of a library"),
    ("crates/gpu-emu/src/nccl/abi", "exports the C functions of NCCL"),
    ("crates/gpu-emu/tests", "much of cudarc is unsafe, and breaking its rules is what is tried"),
    ("examples/digits/src/matmul.rs", "the crate matrixmultiply takes pointers"),
    ("nccl-sys/src/bindings.rs", "every call of NCCL is one of C"),
    ("nccl-sys/src/handle.rs", "only NCCL's authors know which handles may change threads"),
    ("nccl-sys/src/library.rs", "what is loaded runs, and answers with addresses of texts"),
    ("nccl-sys/src/locate.rs", "the loader of the system says in C where code was loaded from"),
    ("nccl-sys/src/symbol.rs", "a symbol has no type"),
    ("nccl-sys/tests", "call NCCL as it is"),
    ("xtask/nccl-bindgen/src/calls.rs", "writes that code, and has none of its own"),
];

const FORBID: &str = "#![forbid(unsafe_code)]";

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let stray = tree
        .texts_with_extension("rs")
        .filter(|(path, _)| !is_allowed(path))
        .flat_map(|(path, text)| stray_uses(path, text));
    let missing = tree.packages.iter().flat_map(|package| roots_that_do_not_forbid(tree, package));
    stray.chain(missing).collect()
}

fn is_allowed(path: &Path) -> bool {
    ALLOWED.iter().any(|(allowed, _)| path.starts_with(allowed))
}

fn stray_uses(path: &Path, text: &str) -> Vec<Finding> {
    let finding = |line| {
        Finding::new(path, line, "unsafe outside of the files listed in xtask/src/tidy/unsafe_code.rs")
    };
    match Mentions::everywhere(text) {
        Ok(mentions) => mentions.lines("unsafe").map(finding).collect(),
        Err(error) => vec![Finding::new(path, error.span().start().line, format!("not Rust: {error}"))],
    }
}

fn roots_that_do_not_forbid<'a>(tree: &'a Tree, package: &'a Package) -> impl Iterator<Item = Finding> + 'a {
    // Other packages may lie within the folder of this one, but not beside its roots.
    let has_allowed_files = |root: &&Path| {
        let folder = root.parent().unwrap_or(root);
        ALLOWED.iter().any(|(allowed, _)| Path::new(allowed).starts_with(folder))
    };
    let roots = package.crate_roots().filter(move |root| !has_allowed_files(root));
    roots
        .filter(|root| !tree.text(root).lines().any(|line| line == FORBID))
        .map(|root| Finding::new(root, 1, format!("a crate root without unsafe files says {FORBID}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packages::Target;

    #[test]
    fn unsafe_is_found_outside_of_the_list() {
        let text =
            "/// unsafe\nfn f() {\n    unsafe { g() }\n}\n#[cfg(test)] mod tests { unsafe fn f() {} }\n";
        let findings = check(&Tree::with_texts([("crates/comm-ring/src/a.rs", text)]));
        assert_eq!(findings.iter().map(|finding| finding.line).collect::<Vec<_>>(), [3, 5]);
        assert_eq!(check(&Tree::with_texts([("crates/comm-core/src/recv_buf.rs", text)])), []);
        assert_eq!(check(&Tree::with_texts([("crates/comm-core/src/reduce/simd.rs", text)])), []);
    }

    #[test]
    fn forbidding_it_is_no_use_of_it() {
        assert_eq!(check(&Tree::with_texts([("a.rs", FORBID)])), []);
    }

    #[test]
    fn crates_without_unsafe_files_forbid_it() {
        let check_root = |name: &str, text: &str| {
            let source = format!("{name}/src/lib.rs");
            let mut tree = Tree::with_texts([(&source, text)]);
            let target = Target { kind: vec!["lib".to_owned()], source: source.into() };
            tree.packages =
                vec![Package { targets: vec![target], ..Package::with_dependencies(name, Vec::new()) }];
            check(&tree).len()
        };
        assert_eq!(check_root("crates/comm-ring", "//! Docs.\n#![forbid(unsafe_code)]\n"), 0);
        assert_eq!(check_root("crates/comm-ring", "//! Docs.\n// #![forbid(unsafe_code)]\n"), 1);
        assert_eq!(check_root("crates/comm-core", "//! Docs.\n"), 0);
        // There are such files in a package below, and none in this one.
        assert_eq!(check_root("xtask", "//! Docs.\n"), 1);
    }
}
