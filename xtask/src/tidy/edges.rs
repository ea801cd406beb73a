//! The allowed dependencies between the crates of the workspace.

use super::Finding;
use super::tree::Tree;
use crate::packages::{Dependency, DependencyKind, Package};

/// A crate, the crates that it may depend on, and the reason.
struct Node {
    name: &'static str,
    may_use: &'static [&'static str],
    #[allow(dead_code, reason = "written for the reader of this table")]
    why: &'static str,
}

const GRAPH: [Node; 29] = [
    Node { name: "comm-core", may_use: &[], why: "the types that all others share" },
    Node { name: "nccl-sys", may_use: &[], why: "bindings of NCCL, usable on their own" },
    Node {
        name: "comm-rendezvous",
        may_use: &["comm-core"],
        why: "ranks exchange addresses through any Store, for every transport, and processes join them",
    },
    Node {
        name: "comm-pmi",
        may_use: &["comm-core"],
        why: "exchanges texts through process managers of MPI",
    },
    Node {
        name: "comm-mesh",
        may_use: &["comm-core", "comm-rendezvous"],
        why: "connects ranks over any sockets; the transport supplies connect, handshake and connection",
    },
    Node {
        name: "comm-tcp",
        may_use: &["comm-core", "comm-mesh", "comm-rendezvous"],
        why: "moves bytes; algorithms use it only through the trait Transport",
    },
    Node {
        name: "comm-shm",
        may_use: &["comm-core", "comm-mesh", "comm-rendezvous"],
        why: "moves bytes; algorithms use it only through the trait Transport",
    },
    Node {
        name: "comm-heap",
        may_use: &["comm-shm"],
        why: "a library to preload, which allocates memory that this transport reads in place",
    },
    Node {
        name: "comm-nccl",
        may_use: &["comm-core", "nccl-sys"],
        why: "collectives of NCCL on device memory; ranks exchange the unique id over a host communicator",
    },
    Node {
        name: "comm-mpi",
        may_use: &["comm-core"],
        why: "collectives and messages of an installed MPI; the facade does not use it, so that it needs no MPI",
    },
    Node {
        name: "comm-hybrid",
        may_use: &["comm-core", "comm-mesh", "comm-nccl", "comm-rendezvous", "comm-shm", "comm-tcp"],
        why: "combines transports, and communicators of host and device, which do not depend on each other",
    },
    Node {
        name: "comm-ring",
        may_use: &["comm-core"],
        why: "describes and executes collectives over any transport",
    },
    Node {
        name: "comm-sim",
        may_use: &["comm-core"],
        why: "verifies any iterator of steps, independently of comm-ring",
    },
    Node { name: "comm-ddp", may_use: &["comm-core"], why: "trains over any communicator" },
    Node {
        name: "comm-checkpoint",
        may_use: &["comm-core"],
        why: "saves and restores over any communicator",
    },
    Node {
        name: "comm-burn",
        may_use: &["comm-core", "comm-ddp"],
        why: "trains burn's modules over any communicator",
    },
    Node {
        name: "comm-candle",
        may_use: &["comm-core", "comm-checkpoint", "comm-ddp", "comm-nccl"],
        why: "trains candle's models over any communicator, and on GPUs over NCCL's, which takes memory by address; saves them",
    },
    Node {
        name: "comm-world",
        may_use: &[
            "comm-core",
            "comm-checkpoint",
            "comm-ddp",
            "comm-hybrid",
            "comm-nccl",
            "comm-pmi",
            "comm-rendezvous",
            "comm-ring",
            "comm-shm",
            "comm-sim",
            "comm-tcp",
        ],
        why: "the facade, which combines all parts",
    },
    Node {
        name: "comm-cli",
        may_use: &["comm-world", "comm-sim"],
        why: "the tool uses the facade and the simulator",
    },
    Node {
        name: "gpu-emu",
        may_use: &["nccl-sys"],
        why: "exports the functions of the bindings with their types",
    },
    Node {
        name: "gpu-check",
        may_use: &[
            "comm-core",
            "comm-ddp",
            "comm-hybrid",
            "comm-nccl",
            "comm-ring",
            "comm-sim",
            "comm-tcp",
            "comm-world",
            "nccl-sys",
        ],
        why: "tests collectives and training on devices, and groups that grow; its ranks connect through a store",
    },
    Node { name: "comm-torch", may_use: &["comm-world"], why: "a door to the facade for Python" },
    Node {
        name: "docs-blocks",
        may_use: &["comm-world", "comm-cli", "comm-sim"],
        why: "compiles the examples of the documents, which use what users have",
    },
    Node { name: "digits", may_use: &["comm-world", "comm-cli"], why: "an example uses what users have" },
    Node {
        name: "candle-digits",
        may_use: &["comm-world", "comm-candle", "comm-cli", "digits"],
        why: "an example uses what users have, and the images of another example",
    },
    Node { name: "lightgbm", may_use: &["comm-world", "comm-cli"], why: "an example uses what users have" },
    Node {
        name: "gpt",
        may_use: &["comm-world", "comm-candle", "comm-cli"],
        why: "an example uses what users have",
    },
    Node {
        name: "xtask",
        may_use: &["comm-cli", "comm-core", "comm-rendezvous", "comm-ring", "comm-sim", "comm-tcp"],
        why: "verifies every schedule, runs communicators, rendezvous and sockets in virtual time, and reports \
              measurements",
    },
    Node {
        name: "benches",
        may_use: &["comm-cli", "comm-core", "comm-ring", "comm-sim", "comm-tcp", "comm-world", "digits"],
        why: "measures single parts, and training with the model of an example",
    },
];

/// The crates that tests of every crate except comm-core may use, for ranks in one process and for
/// collectives.
const FOR_TESTS: [&str; 2] = ["comm-ring", "comm-sim"];
/// The further crates that tests of one crate may use: the device emulator, stores, and training.
const FOR_TESTS_OF: [(&str, &[&str]); 12] = [
    // For doctests, which use the facade. In unit tests its types would differ.
    ("comm-core", &["comm-world"]),
    ("comm-candle", &["comm-world"]),
    ("comm-checkpoint", &["comm-world"]),
    ("comm-cli", &["gpu-emu"]),
    ("comm-ddp", &["comm-world"]),
    // For an example that runs over both.
    ("comm-mpi", &["comm-world"]),
    ("comm-nccl", &["comm-tcp", "gpu-emu"]),
    ("comm-heap", &["comm-core", "comm-tcp"]),
    ("comm-shm", &["comm-tcp"]),
    ("comm-hybrid", &["comm-ddp", "gpu-emu", "nccl-sys"]),
    ("comm-world", &["gpu-emu"]),
    ("gpu-check", &["gpu-emu"]),
];
const CORE: &str = "comm-core";

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    tree.packages.iter().flat_map(|package| check_package(tree, package)).collect()
}

fn check_package(tree: &Tree, package: &Package) -> Vec<Finding> {
    let Some(node) = GRAPH.iter().find(|node| node.name == package.name) else {
        let message = format!("{} has no row in the table of xtask/src/tidy/edges.rs", package.name);
        return vec![Finding::new(&package.manifest, 1, message)];
    };
    let forbidden = package.dependencies.iter().filter(|edge| edge.path.is_some() && !is_allowed(node, edge));
    let finding = |edge: &Dependency| {
        let message = format!("{} must not depend on {}", package.name, edge.name);
        Finding::new(&package.manifest, tree.line_of(package, &edge.name), message)
    };
    forbidden.map(finding).collect()
}

fn is_allowed(node: &Node, edge: &Dependency) -> bool {
    let name = edge.name.as_str();
    let is_for_tests = edge.kind == Some(DependencyKind::Dev);
    let listed = FOR_TESTS_OF.iter().any(|(of, names)| *of == node.name && names.contains(&name));
    let shared = node.name != CORE && FOR_TESTS.contains(&name);
    node.may_use.contains(&name) || is_for_tests && (listed || shared)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn assert_edge(from: &str, edge: Dependency, allowed: bool) {
        let name = edge.name.clone();
        let tree = Tree::with_packages(vec![Package::with_dependencies(from, vec![edge])]);
        assert_eq!(check(&tree).is_empty(), allowed, "{from} -> {name}");
    }

    fn for_tests(name: &str) -> Dependency {
        Dependency { kind: Some(DependencyKind::Dev), ..Dependency::inside(name) }
    }

    #[test]
    fn edges_of_the_table_are_allowed_and_others_are_not() {
        assert_edge("comm-tcp", Dependency::inside("comm-core"), true);
        assert_edge("comm-tcp", Dependency::inside("comm-ring"), false);
        assert_edge("comm-core", Dependency::inside("comm-tcp"), false);
        assert_edge("comm-cli", Dependency::inside("comm-tcp"), false);
        assert_edge("comm-tcp", Dependency::outside("socket2"), true);
    }

    #[test]
    fn tests_may_run_ranks_except_in_the_core() {
        assert_edge("comm-ring", for_tests("comm-sim"), true);
        assert_edge("comm-ddp", for_tests("comm-ring"), true);
        assert_edge("comm-ring", Dependency::inside("comm-sim"), false);
        assert_edge("comm-core", for_tests("comm-sim"), false);
        assert_edge("comm-core", for_tests("comm-world"), true);
        assert_edge("comm-core", Dependency::inside("comm-world"), false);
        assert_edge("comm-ring", for_tests("comm-tcp"), false);
    }

    #[test]
    fn a_new_crate_needs_a_row() {
        let tree = Tree::with_packages(vec![Package::with_dependencies("comm-new", Vec::new())]);
        assert_eq!(check(&tree).len(), 1);
    }

    #[test]
    fn the_table_has_no_cycle() {
        // A row comes after the rows that it uses.
        for (index, node) in GRAPH.iter().enumerate() {
            for used in node.may_use {
                assert!(GRAPH[..index].iter().any(|before| before.name == *used), "{} -> {used}", node.name);
            }
        }
    }
}
