//! The items that crates must not use. Clocks, threads, sockets and the like are used in few
//! places, so that everything else can be tested in virtual time and in one process.

use std::path::Path;

use super::Finding;
use super::source::{Mentions, is_test_file};
use super::tree::Tree;

/// A part of the tree, and the paths that its code must not contain outside of tests.
struct Region {
    path: &'static str,
    /// Files and folders to which it does not apply.
    except: &'static [&'static str],
    forbidden: &'static [&'static str],
    why: &'static str,
}

const NO_EFFECTS: &[&str] = &[
    "std::thread",
    "std::net",
    "std::env",
    "std::fs",
    "std::process",
    "Instant::now",
    "SystemTime",
    "print!",
    "println!",
    "eprint!",
    "eprintln!",
];

const REGIONS: [Region; 17] = [
    Region {
        path: "crates/comm-core/src",
        except: &["crates/comm-core/src/simulation.rs", "crates/comm-core/src/worker.rs"],
        forbidden: NO_EFFECTS,
        why: "the core has no effects; instants are arguments",
    },
    Region {
        path: "crates/comm-ring/src",
        except: &[],
        forbidden: NO_EFFECTS,
        why: "a communicator runs on any transport and clock",
    },
    Region {
        path: "crates/comm-mesh/src",
        except: &["crates/comm-mesh/src/coarse_clock.rs"],
        forbidden: &["Instant::now"],
        why: "comm_core::simulation has the time of simulations",
    },
    Region {
        path: "crates/comm-tcp/src",
        // The clients of other stores than those of comm-tcp.
        except: &["crates/comm-tcp/src/store/poll_timer.rs", "crates/comm-tcp/src/store/torch"],
        forbidden: &["Instant::now"],
        why: "comm_core::simulation has the time of simulations",
    },
    Region {
        path: "crates/comm-ring/src",
        except: &[],
        forbidden: &["rustix"],
        why: "transports define how a rank waits",
    },
    Region {
        path: "crates/comm-ddp/src",
        except: &[],
        forbidden: &["std::net", "std::env", "std::fs"],
        why: "training depends on communicators, and not on addresses, configuration or files",
    },
    Region {
        path: "crates/comm-mesh/src",
        except: &[],
        forbidden: &["Step", "ReduceOp", "DType", "std::env", "std::fs"],
        why: "connects ranks, and does not depend on collectives",
    },
    Region {
        path: "crates/comm-mesh/src",
        except: &["crates/comm-mesh/src/dialer.rs"],
        forbidden: &["std::thread"],
        why: "connects ranks in the threads of its callers, and in one of its own on demand",
    },
    Region {
        path: "crates/comm-tcp/src",
        except: &[],
        forbidden: &["Step", "ReduceOp", "DType"],
        why: "a transport moves bytes and does not depend on collectives",
    },
    Region {
        path: "crates/comm-hybrid/src",
        except: &["crates/comm-hybrid/src/device"],
        forbidden: &["Step", "ReduceOp", "DType", "std::net", "std::env"],
        why: "a transport of transports does not depend on collectives, addresses or configuration",
    },
    Region {
        path: "crates/comm-hybrid/src/device",
        except: &[],
        forbidden: &["Step", "std::net", "std::env", "std::fs"],
        why: "a hybrid communicator depends on collectives, but not on schedules, addresses or configuration",
    },
    Region {
        path: "crates/comm-mpi/src",
        except: &[],
        forbidden: &["Step", "Store", "Transport", "std::net", "std::env", "std::fs"],
        why: "MPI moves the bytes, and its launcher connects the ranks",
    },
    Region {
        path: "crates/comm-nccl/src",
        except: &[],
        forbidden: &["Store", "std::net", "std::fs"],
        why: "ranks with devices exchange all data over a communicator for the host",
    },
    Region {
        path: "crates/comm-shm/src",
        except: &[],
        forbidden: &["Step", "ReduceOp", "DType"],
        why: "a transport moves bytes and does not depend on collectives",
    },
    Region {
        path: "crates",
        except: &["crates/comm-core/src/call", "crates/comm-core/src/collective.rs"],
        forbidden: &["AllGatherV", "ReduceScatterV", "GatherV", "ScatterV", "AllToAllV"],
        why: "only the call handles counts per rank; all other code uses its blocks",
    },
    Region {
        path: "crates",
        // The emulator replaces another library and does not depend on comm-core.
        except: &["crates/comm-core/src/wire.rs", "crates/gpu-emu"],
        forbidden: &["from_le_bytes", "to_le_bytes", "from_be_bytes", "to_be_bytes"],
        why: "comm_core::wire encodes and decodes messages, and rejects malformed bytes",
    },
    Region {
        path: "nccl-sys/src",
        except: &["nccl-sys/src/search.rs"],
        forbidden: &["std::env"],
        why: "one file reads the variables that name a library",
    },
];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let sources = tree.texts_with_extension("rs").filter(|(path, _)| !is_test_file(path));
    sources.flat_map(|(path, text)| check_file(path, text)).collect()
}

fn regions_of(path: &Path) -> impl Iterator<Item = &'static Region> {
    let covers = move |region: &&Region| {
        path.starts_with(region.path) && !region.except.iter().any(|except| path.starts_with(except))
    };
    REGIONS.iter().filter(covers)
}

fn check_file(path: &Path, text: &str) -> Vec<Finding> {
    let mut regions = regions_of(path).peekable();
    if regions.peek().is_none() {
        return Vec::new();
    }
    let mentions = match Mentions::outside_tests(text) {
        Ok(mentions) => mentions,
        Err(error) => {
            return vec![Finding::new(path, error.span().start().line, format!("not Rust: {error}"))];
        }
    };
    let forbidden = regions.flat_map(|region| region.forbidden.iter().map(|wanted| (wanted, region.why)));
    let found = forbidden.flat_map(|(wanted, why)| {
        let finding = move |line| Finding::new(path, line, format!("uses {wanted}: {why}"));
        mentions.lines(wanted).map(finding).collect::<Vec<_>>()
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn assert_findings(path: &str, text: &str, count: usize) {
        let findings = check(&Tree::with_texts([(path, text)]));
        assert_eq!(findings.len(), count, "{findings:?}");
    }

    #[test]
    fn effects_are_found_in_the_core() {
        let text = "use std::{net::TcpStream, sync::Arc};\nfn f() { println!(); let t = Instant::now(); }\n";
        assert_findings("crates/comm-core/src/deep/down.rs", text, 3);
        assert_findings("crates/comm-ring/src/lib.rs", text, 3);
        assert_findings("crates/comm-ddp/src/lib.rs", text, 1);
        // It has sockets, and the time of simulations.
        assert_findings("crates/comm-tcp/src/lib.rs", text, 1);
    }

    #[test]
    fn the_worker_may_use_threads() {
        let text = "fn f() { std::thread::yield_now() }";
        assert_findings("crates/comm-core/src/work.rs", text, 1);
        assert_findings("crates/comm-core/src/worker.rs", text, 0);
    }

    #[test]
    fn a_transport_does_not_depend_on_collectives() {
        assert_findings("crates/comm-tcp/src/a.rs", "use comm_core::{DType, Transport};", 1);
        assert_findings("crates/comm-tcp/src/a.rs", "/// Like a `Step`.\nfn step() {}", 0);
    }

    #[test]
    fn only_calls_handle_counts_per_rank() {
        let text = "fn f() -> Collective { Collective::GatherV }";
        assert_findings("crates/comm-ring/src/a.rs", text, 1);
        assert_findings("crates/comm-cli/src/a.rs", text, 1);
        assert_findings("crates/comm-core/src/call/mod.rs", text, 0);
        assert_findings("crates/comm-core/src/collective.rs", text, 0);
    }

    #[test]
    fn messages_are_encoded_in_one_place() {
        let text = "fn f(n: u32) { n.to_le_bytes(); let m = u64::from_be_bytes([0; 8]); }";
        assert_findings("crates/comm-tcp/src/a.rs", text, 2);
        assert_findings("crates/comm-core/src/wire.rs", text, 0);
    }

    #[test]
    fn tests_are_exempt() {
        assert_findings("crates/comm-core/src/a.rs", "#[cfg(test)] mod tests { use std::thread; }", 0);
        assert_findings("crates/comm-core/tests/a.rs", "use std::thread;", 0);
        assert_findings("crates/comm-core/src/a/tests.rs", "use std::thread;", 0);
    }

    #[test]
    fn files_that_are_not_rust_are_reported() {
        assert_findings("nccl-sys/src/a.rs", "fn f() {", 1);
    }
}
