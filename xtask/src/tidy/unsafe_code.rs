//! Only listed files contain `unsafe`, and crates without such files forbid it.

use std::path::Path;

use super::Finding;
use super::source::Mentions;
use super::tree::Tree;
use crate::packages::Package;

/// The files and folders that may contain `unsafe`, and the reason.
const ALLOWED: [(&str, &str); 60] = [
    ("benches/benches/allocator.rs", "calls allocators directly"),
    ("benches/src/limits/copies.rs", "lets two threads copy through the same memory, as processes do"),
    ("crates/comm-candle/src/cuda.rs", "passes memory of candle's tensors by address"),
    ("crates/comm-candle/tests/heap.rs", "forks"),
    (
        "crates/comm-cli/src/launch/process.rs",
        "runs code between fork and exec, so that ranks die with their launcher",
    ),
    (
        "crates/comm-core/src/copy",
        "copies memory that another process may write, by address, and with non-temporal stores",
    ),
    ("crates/comm-core/src/allocation.rs", "frees memory whose owner is known at run time"),
    (
        "crates/comm-core/src/recv_buf.rs",
        "copies bytes that another process may write, without a slice of them",
    ),
    ("crates/comm-core/src/process.rs", "maps a page that the kernel clears for the child of a fork"),
    ("crates/comm-core/src/reduce", "uses vector instructions, selected at run time"),
    ("crates/comm-mpi/src/collectives.rs", "lends memory of callers to MPI"),
    ("crates/comm-mpi/src/raw", "calls C functions of MPI"),
    ("crates/comm-nccl/src/allocation.rs", "handles device memory by address"),
    ("crates/comm-nccl/src/handle", "calls C functions of NCCL"),
    ("crates/comm-nccl/src/kernels/enqueue.rs", "launches kernels and copies on device memory by address"),
    (
        "crates/comm-nccl/src/kernels/module.rs",
        "loads kernels, and declares that their handles may change threads",
    ),
    ("crates/comm-nccl/src/pinned.rs", "passes pinned memory to a device by address"),
    ("crates/comm-nccl/src/probe.rs", "loads the driver"),
    ("crates/comm-nccl/src/stream.rs", "accepts stream handles of other libraries"),
    ("crates/comm-nccl/src/transfer.rs", "copies device memory by address"),
    ("crates/comm-nccl/src/view.rs", "accepts memory of other libraries by address"),
    ("crates/comm-pmi/src/pmix.rs", "calls the library of PMIx, which is loaded at run time"),
    ("crates/comm-pmi/src/wire.rs", "uses the descriptor of a socket that the process inherited"),
    ("crates/comm-nccl/tests", "emulate a framework, whose memory is passed by address"),
    ("crates/comm-heap/src", "replaces the functions of malloc, and calls those of glibc"),
    ("crates/comm-heap/tests", "call the functions of malloc, and fork"),
    (
        "crates/comm-shm/src/credentials.rs",
        "calls getsockopt directly, because rustix rejects peers of other process namespaces",
    ),
    ("crates/comm-shm/src/region.rs", "maps memory that other processes read, and reads theirs by address"),
    ("crates/comm-shm/src/cma.rs", "calls process_vm_readv, which rustix lacks"),
    ("crates/comm-shm/src/heap.rs", "is a global allocator"),
    ("crates/comm-shm/src/heap/arena.rs", "reserves addresses, and maps memory in their place"),
    ("crates/comm-shm/src/heap/fork.rs", "registers handlers of forks, which are C functions"),
    ("crates/comm-shm/src/heap/large.rs", "maps segments in place of reserved addresses"),
    ("crates/comm-shm/src/heap/tests.rs", "forks"),
    ("crates/comm-shm/src/prefetch.rs", "asks the processor for cache lines"),
    ("crates/comm-shm/src/preload.rs", "calls a function of a preloaded library by its symbol"),
    ("crates/comm-shm/src/segment/copy.rs", "copies by address into memory that another process reads"),
    ("crates/comm-shm/src/segment.rs", "maps memory that another process writes, and copies by address"),
    ("crates/comm-shm/tests/heap", "call an allocator, and fork"),
    ("crates/comm-sim/src/network/coroutines.rs", "runs ranks as coroutines, and suspends the running one"),
    ("crates/comm-tcp/src/tcp_info.rs", "calls getsockopt directly, because rustix lacks TCP_INFO"),
    ("crates/comm/tests/fork.rs", "calls fork"),
    ("crates/gpu-check/src/gpu", "emulates a user's kernels and a framework's memory"),
    ("crates/gpu-emu/src/client/mod.rs", "calls the loaded library by its symbols"),
    ("crates/gpu-emu/src/control.rs", "exports these symbols"),
    ("crates/gpu-emu/src/device/pinned.rs", "allocates host memory and accesses it by address"),
    ("crates/gpu-emu/src/driver", "exports the C functions of CUDA, and accesses memory of their callers"),
    ("crates/gpu-emu/src/ffi.rs", "accesses memory of C callers"),
    ("crates/gpu-emu/src/kernel.rs", "reads kernel arguments of C callers"),
    ("crates/gpu-emu/src/nccl/abi", "exports the C functions of NCCL"),
    ("crates/gpu-emu/tests", "call unsafe functions of cudarc, and violate its rules on purpose"),
    ("examples/digits/src/matmul.rs", "passes pointers to the crate matrixmultiply"),
    ("examples/lightgbm/src", "calls C functions of LightGBM, and is called by them"),
    ("nccl-sys/src/handle.rs", "declares that NCCL's handles may change threads"),
    ("nccl-sys/src/library.rs", "loads a library, and reads texts by address"),
    ("nccl-sys/src/locate.rs", "calls dladdr"),
    ("nccl-sys/src/symbol.rs", "casts symbols to functions of C, and calls them"),
    ("nccl-sys/tests", "call NCCL directly"),
    ("xtask/nccl-bindgen/src/calls.rs", "rewrites unsafe declarations of C functions"),
    ("python/src/request.rs", "accepts memory of tensors by address"),
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
    // Packages may be nested, but not in the folder of a root.
    let has_allowed_files = |root: &&Path| {
        let folder = root.parent().unwrap_or(root);
        ALLOWED.iter().any(|(allowed, _)| Path::new(allowed).starts_with(folder))
    };
    let roots = package.crate_roots().filter(move |root| !has_allowed_files(root));
    roots.filter(|root| !tree.text(root).lines().any(|line| line == FORBID)).map(|root| {
        Finding::new(root, 1, format!("a crate without unsafe files must have {FORBID} in its root"))
    })
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
    fn forbidding_unsafe_is_not_a_use_of_it() {
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
        // A nested package has such files, and this one has none.
        assert_eq!(check_root("xtask", "//! Docs.\n"), 1);
    }
}
