//! Programs that run with the library preloaded. Each test starts this program again.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "helpers of tests")]
#![allow(unsafe_code, reason = "malloc has no other interface")]

use std::ffi::c_void;
use std::hint::black_box;
use std::path::PathBuf;
use std::process::Command;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use comm_core::{ChannelId, ChannelKind, Comm, Fabric, GroupId, Membership, ReduceOp, Transport};
use comm_ring::{RingCommunicator, RingConfig};
use comm_shm::preload::PreloadLocation;
use comm_shm::{Heap, RendezvousConfig, SharedMemoryFabric};
use comm_tcp::FileStore;

const LARGE: usize = Heap::LARGE_BYTES_MIN;
const SOON: Duration = Duration::from_secs(30);
const ROLE: &str = "COMM_HEAP_TEST_ROLE";

/// Returns the library, which cargo builds before this test.
fn library() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let name = "libcomm_heap.so";
    let candidates = program.ancestors().skip(1).take(2).map(|folder| folder.join(name));
    candidates.into_iter().find(|path| path.exists()).unwrap()
}

/// Runs this program with the library and one role.
#[track_caller]
fn run(role: &str) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "role", "--ignored", "--nocapture", "--test-threads=1"]);
    let output = command.env("LD_PRELOAD", library()).env(ROLE, role).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{role}: {:?}\n{text}", output.status);
    assert!(text.contains("done"), "{role}: the role did not run\n{text}");
}

#[test]
#[ignore = "started by the other tests"]
fn role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    match role.as_str() {
        "functions" => functions(),
        "sizes" => sizes(),
        "random" => random(),
        "fork" => fork(),
        "collectives" => collectives(),
        other => panic!("no such role: {other}"),
    }
    println!("done");
}

#[test]
fn every_function_returns_large_and_small_blocks() {
    run("functions");
}

#[test]
fn sizes_that_overflow_are_refused() {
    run("sizes");
}

#[test]
fn blocks_keep_their_contents() {
    run("random");
}

#[test]
fn a_forked_child_has_its_own_bytes() {
    run("fork");
}

#[test]
fn the_transport_finds_the_segments() {
    run("collectives");
}

unsafe extern "C" {
    fn pvalloc(size: usize) -> *mut c_void;
    fn valloc(size: usize) -> *mut c_void;
}

/// Whether an address is in a segment, by the list of mappings.
fn is_in_segment(start: *mut c_void) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let contains = |line: &str| {
        let (from, to) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        let [from, to] = [from, to].map(|text| usize::from_str_radix(text, 16).unwrap());
        (from..to).contains(&start.addr())
    };
    maps.lines().any(|line| line.contains("memfd:comm-shm") && contains(line))
}

/// Writes to all of a block and frees it.
unsafe fn use_up(start: *mut c_void, size: usize) {
    assert!(!start.is_null());
    // SAFETY: the caller passes a block of that size.
    let usable = unsafe { libc::malloc_usable_size(start) };
    assert!(usable >= size);
    // SAFETY: as above.
    unsafe { start.cast::<u8>().write_bytes(9, usable) };
    // SAFETY: the caller gives the block up.
    unsafe { libc::free(start) };
}

#[expect(clippy::multiple_unsafe_ops_per_block, reason = "every call is one of C")]
fn functions() {
    for size in [1, 100, LARGE - 1, LARGE, 3 * LARGE + 1] {
        let is_large = size >= LARGE;
        // SAFETY: each block is used within its size and freed once.
        unsafe {
            let mut aligned = null_mut();
            assert_eq!(libc::posix_memalign(&raw mut aligned, 64, size), 0);
            let blocks = [
                (libc::malloc(size), 16),
                (libc::calloc(1, size), 16),
                (libc::realloc(null_mut(), size), 16),
                (libc::reallocarray(null_mut(), 1, size), 16),
                (libc::memalign(1 << 21, size), 1 << 21),
                (libc::aligned_alloc(4096, size), 4096),
                (aligned, 64),
                (valloc(size), 4096),
                (pvalloc(size), 4096),
            ];
            for (number, (start, align)) in blocks.into_iter().enumerate() {
                assert!(start.addr().is_multiple_of(align), "function {number}");
                // The size of `pvalloc` is rounded up.
                if number < 8 || size != LARGE - 1 {
                    assert_eq!(is_in_segment(start), is_large, "function {number}, {size} bytes");
                }
                use_up(start, size);
            }
            libc::free(null_mut());
            assert_eq!(libc::posix_memalign(&raw mut aligned, 24, size), libc::EINVAL);
            // Otherwise the compiler decides the result of a block that is not used.
            assert!(black_box(libc::realloc(black_box(libc::malloc(size)), 0)).is_null());
        }
    }
    let line = "x".repeat(2 * LARGE);
    // A block that the C library allocates for its caller.
    let text = std::ffi::CString::new(line).unwrap();
    // SAFETY: the text ends with a zero, and the copy is freed once.
    unsafe {
        let copy = libc::strdup(text.as_ptr());
        assert!(is_in_segment(copy.cast()) && libc::strlen(copy) == 2 * LARGE);
        use_up(copy.cast(), 2 * LARGE);
    }
}

#[expect(clippy::multiple_unsafe_ops_per_block, reason = "every call is one of C")]
fn sizes() {
    let errno = || std::io::Error::last_os_error().raw_os_error();
    // SAFETY: nothing is allocated.
    unsafe {
        for size in black_box([usize::MAX, usize::MAX - 4096, isize::MAX as usize, 1 << 60]) {
            assert!(black_box(libc::malloc(size)).is_null() && errno() == Some(libc::ENOMEM), "{size}");
            assert!(black_box(libc::realloc(null_mut(), size)).is_null(), "{size}");
            assert!(black_box(libc::memalign(4096, size)).is_null(), "{size}");
            assert!(black_box(pvalloc(size)).is_null(), "{size}");
        }
        let huge = usize::MAX / 2 + 2;
        assert!(black_box(libc::calloc(huge, 2)).is_null() && errno() == Some(libc::ENOMEM));
        assert!(
            black_box(libc::reallocarray(null_mut(), huge, 2)).is_null() && errno() == Some(libc::ENOMEM)
        );
    }
}

/// Allocates, resizes and frees blocks at random in several threads, which exchange them.
fn random() {
    let blocks: Vec<std::sync::Mutex<(usize, usize, u8)>> =
        (0..32).map(|_| std::sync::Mutex::new((0, 0, 0))).collect();
    let check = |&(start, size, value): &(usize, usize, u8), len: usize| {
        let start = std::ptr::with_exposed_provenance::<u8>(start);
        // SAFETY: the block has at least this many bytes, and this thread has its lock.
        let bytes = unsafe { std::slice::from_raw_parts(start, size.min(len)) };
        assert!(bytes.iter().all(|byte| *byte == value));
    };
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let blocks = &blocks;
            scope.spawn(move || {
                let mut state = thread * 77 + 1;
                let mut random = |below: usize| {
                    state =
                        state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    (state >> 33) as usize % below
                };
                for round in 0..2000 {
                    let mut block = blocks[random(32)].lock().unwrap();
                    let new =
                        if random(2) == 0 { 1 + random(100_000) } else { LARGE - 10 + random(4 * LARGE) };
                    let old = std::ptr::with_exposed_provenance_mut::<c_void>(block.0);
                    if block.0 != 0 {
                        check(&block, usize::MAX);
                    }
                    let kind = random(3);
                    if kind > 0 {
                        // SAFETY: the block is this thread's, and is replaced by the new one.
                        unsafe { libc::free(old) };
                    }
                    let start = match kind {
                        // SAFETY: as above.
                        0 => unsafe { libc::realloc(old, new) },
                        // SAFETY: any size is valid.
                        1 => unsafe { libc::malloc(new) },
                        // SAFETY: as above.
                        _ => unsafe { libc::calloc(new, 1) },
                    };
                    assert!(!start.is_null());
                    if kind == 2 {
                        check(&(start.expose_provenance(), new, 0), usize::MAX);
                    }
                    let value = (round % 250) as u8 + 1;
                    // SAFETY: the new block has this size.
                    unsafe { start.cast::<u8>().write_bytes(value, new) };
                    *block = (start.expose_provenance(), new, value);
                }
            });
        }
    });
    let mut left: Vec<_> = blocks.into_iter().map(|block| block.into_inner().unwrap()).collect();
    for block in left.drain(..).filter(|block| block.0 != 0) {
        check(&block, usize::MAX);
        // SAFETY: the block is freed once.
        unsafe { libc::free(std::ptr::with_exposed_provenance_mut(block.0)) };
    }
}

fn fork() {
    let mut vec = vec![1_u8; 3 * LARGE];
    let start = vec.as_mut_ptr().cast();
    assert!(is_in_segment(start));
    // SAFETY: the child only uses its own memory.
    let child = unsafe { libc::fork() };
    if child == 0 {
        vec.fill(2);
        drop(vec);
        let more = vec![0_u8; 3 * LARGE];
        let is_right = more.iter().all(|byte| *byte == 0);
        // SAFETY: exits immediately, without handlers.
        unsafe { libc::_exit(i32::from(!is_right)) }
    }
    let mut status = 1;
    // SAFETY: waits for the child.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((waited, status), (child, 0));
    assert!(vec.iter().all(|byte| *byte == 1), "the child wrote to the memory of the parent");
}

/// Calls the function by which the transport finds a segment. Returns the number of the region.
fn find(bytes: &[u8]) -> Option<u64> {
    type Find = unsafe extern "C" fn(usize, usize, *mut PreloadLocation) -> bool;
    // SAFETY: the name ends with a zero.
    let symbol = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"comm_heap_find_v1".as_ptr()) };
    assert!(!symbol.is_null());
    // SAFETY: this is the type of the function.
    let function = unsafe { std::mem::transmute::<*mut c_void, Find>(symbol) };
    let mut location = PreloadLocation::default();
    // SAFETY: the location is valid for writes.
    let is_found = unsafe { function(bytes.as_ptr().addr(), bytes.len(), &raw mut location) };
    is_found.then_some(location.region)
}

fn collectives() {
    // The program counts its regions from 1 on.
    assert!(find(&vec![1; LARGE]).is_some_and(|region| region > 1 << 63));
    assert_eq!(find(&[1; 1000]), None);
    let folder = tempfile::tempdir().unwrap();
    let store = FileStore::open(folder.path()).unwrap();
    let ranks = 3;
    let rank = |rank: usize| {
        let mut config = RendezvousConfig::new(Membership { rank, size: ranks });
        config.member.timeout = SOON;
        let fabric = SharedMemoryFabric::rendezvous(&store, &config).unwrap();
        let other = ChannelId { group: GroupId(77), kind: ChannelKind::Collective };
        let probe = fabric.open(other, Instant::now() + SOON).unwrap();
        let (large, small) = (vec![1_u8; 2 * LARGE], vec![1_u8; LARGE / 2]);
        assert!(probe.is_read_in_place(&large) && !probe.is_read_in_place(&small));
        let comm = Comm::new(RingCommunicator::new(fabric, RingConfig::default(), SOON).unwrap());
        for round in 0..20 {
            // Memory of the communicator, whose ids must not be those of segments.
            let mut allocated = comm.alloc::<u64>(LARGE).unwrap();
            let mut vec: Vec<u64> = (0..LARGE as u64).map(|at| at * (rank as u64 + round)).collect();
            allocated.copy_from_slice(&vec);
            comm.all_reduce(&mut vec[..], ReduceOp::Sum).unwrap();
            comm.all_reduce(&mut allocated, ReduceOp::Sum).unwrap();
            assert!(vec.iter().enumerate().all(|(at, sum)| *sum == at as u64 * (3 + 3 * round)));
            assert!(vec[..] == allocated[..]);
        }
    };
    std::thread::scope(|scope| {
        (0..ranks).for_each(|number| {
            drop(scope.spawn({
                let rank = &rank;
                move || rank(number)
            }))
        })
    });
}
