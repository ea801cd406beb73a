//! The functions as LightGBM calls them, on ranks that are threads.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::env;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use super::*;

const ABORTED: i32 = 6;
const RANKS: [usize; 5] = [1, 2, 3, 5, 8];

unsafe extern "C" fn init(_: c_int, _: c_int, _: ReduceScatter, _: AllGather) -> c_int {
    0
}

unsafe extern "C" fn refuse(_: c_int, _: c_int, _: ReduceScatter, _: AllGather) -> c_int {
    -1
}

unsafe extern "C" fn free() -> c_int {
    0
}

/// Adds floats.
unsafe extern "C" fn add(input: *const c_char, output: *mut c_char, type_size: c_int, len: i32) {
    assert_eq!(type_size, 8);
    // SAFETY: the caller passes so many bytes.
    let input = unsafe { elements(input.cast::<u8>(), len) };
    // SAFETY: as above.
    let output = unsafe { elements_mut(output.cast(), input.len()) };
    for (input, output) in input.chunks_exact(8).zip(output.chunks_exact_mut(8)) {
        let sum = f64::from_ne_bytes((&*output).try_into().unwrap())
            + f64::from_ne_bytes(input.try_into().unwrap());
        output.copy_from_slice(&sum.to_ne_bytes());
    }
}

fn network(init: NetworkInit, comm: Comm) -> Result<Network, NetworkError> {
    // SAFETY: they are of these types, and LightGBM is not loaded.
    Network::new(unsafe { Functions::new(init, free) }, comm)
}

/// Returns the places and lengths of blocks of `lens` elements, in bytes.
fn blocks(lens: &[usize]) -> (Vec<i32>, Vec<i32>) {
    let lens: Vec<i32> = lens.iter().map(|&len| 8 * len as i32).collect();
    let starts = lens.iter().scan(0, |end, len| Some(std::mem::replace(end, *end + len))).collect();
    (starts, lens)
}

/// A contribution whose sum over the ranks depends on their order.
fn contribution(rank: usize, index: usize) -> f64 {
    let sign = if rank.is_multiple_of(2) { 1.0 } else { -1.0 };
    sign * (1e16 + index as f64) / (rank + 1) as f64 + 1.0 / (rank + index + 3) as f64
}

/// Calls the reduce-scatter, and returns the block of this rank. The output is longer than that.
fn scattered(rank: usize, lens: &[usize]) -> Vec<f64> {
    let total = lens.iter().sum::<usize>();
    let mut input: Vec<f64> = (0..total).map(|index| contribution(rank, index)).collect();
    let mut output = vec![f64::NAN; total + 1];
    let (starts, lengths) = blocks(lens);
    // SAFETY: the arguments are as LightGBM's.
    unsafe {
        reduce_scatter(
            input.as_mut_ptr().cast(),
            8 * total as i32,
            8,
            starts.as_ptr(),
            lengths.as_ptr(),
            lens.len() as c_int,
            output.as_mut_ptr().cast(),
            8 * output.len() as i32,
            &(add as Reducer),
        );
    }
    assert!(output[lens[rank]..].iter().all(|value| value.is_nan()), "it wrote more than the block");
    output.truncate(lens[rank]);
    output
}

/// Calls the all-gather, with the input at the start of the output or in memory of its own.
fn gathered(rank: usize, lens: &[usize], in_place: bool) -> Vec<f64> {
    let total = lens.iter().sum::<usize>();
    let mut own: Vec<f64> = (0..lens[rank]).map(|index| contribution(rank, index)).collect();
    let mut output = vec![f64::NAN; total];
    if in_place {
        output[..lens[rank]].copy_from_slice(&own);
    }
    let (starts, lengths) = blocks(lens);
    let to = output.as_mut_ptr().cast();
    let from = if in_place { to } else { own.as_mut_ptr().cast() };
    let number = lens.len() as c_int;
    // SAFETY: the arguments are as LightGBM's.
    unsafe {
        all_gather(from, lengths[rank], starts.as_ptr(), lengths.as_ptr(), number, to, 8 * total as i32);
    }
    output
}

/// Returns lengths of blocks; some are zero.
fn lens(ranks: usize, shift: usize) -> Vec<usize> {
    (0..ranks).map(|rank| (3 * rank + shift) % 5 * (1 + 50 * shift)).collect()
}

#[test]
fn a_reduction_combines_blocks_of_any_length_in_the_order_of_the_ranks() {
    for ranks in RANKS {
        comm::threads::run(ranks, |comm| {
            let rank = comm.rank();
            let _network = network(init, comm).unwrap();
            for lens in (0..5).map(|shift| lens(ranks, shift)).chain([vec![0; ranks]]) {
                let start = lens[..rank].iter().sum::<usize>();
                let expected: Vec<f64> = (start..start + lens[rank])
                    .map(|index| {
                        (1..ranks).fold(contribution(0, index), |sum, rank| sum + contribution(rank, index))
                    })
                    .collect();
                assert_eq!(scattered(rank, &lens), expected, "{lens:?}");
            }
        })
        .unwrap();
    }
}

#[test]
fn blocks_of_any_length_are_gathered_also_from_the_start_of_the_output() {
    for ranks in RANKS {
        comm::threads::run(ranks, |comm| {
            let rank = comm.rank();
            let _network = network(init, comm).unwrap();
            for lens in (0..5).map(|shift| lens(ranks, shift)).chain([vec![0; ranks]]) {
                let blocks = lens.iter().enumerate();
                let expected: Vec<f64> = blocks
                    .flat_map(|(rank, len)| (0..*len).map(move |index| contribution(rank, index)))
                    .collect();
                assert_eq!(gathered(rank, &lens, false), expected, "{lens:?}");
                assert_eq!(gathered(rank, &lens, true), expected, "{lens:?}");
            }
        })
        .unwrap();
    }
}

#[test]
fn a_thread_has_one_network_at_a_time() {
    comm::threads::run(1, |comm| {
        let first = network(init, comm.clone()).unwrap();
        assert!(matches!(network(init, comm.clone()), Err(NetworkError::InUse)));
        // That call has not ended the first one.
        assert_eq!(scattered(0, &[3]).len(), 3);
        drop(first);
        assert!(matches!(network(refuse, comm.clone()), Err(NetworkError::Refused)));
        drop(network(init, comm).unwrap());
    })
    .unwrap();
}

/// The process of a test, which makes a call that fails.
#[test]
#[ignore = "started by other tests"]
fn failing_call() {
    comm::threads::run(1, |comm| {
        let network = network(init, comm).unwrap();
        match env::var("COMM_TEST_CALL").unwrap().as_str() {
            "number" => drop(gathered(0, &[1, 2], false)),
            "length" => {
                let mut byte = [0_u8; 8];
                let to = byte.as_mut_ptr().cast();
                // SAFETY: the call fails before it accesses memory.
                unsafe { all_gather(to, 8, [8].as_ptr(), [8].as_ptr(), 1, to, 8) };
            }
            "none" => {
                drop(network);
                scattered(0, &[1]);
            }
            _ => {}
        }
    })
    .unwrap();
}

#[test]
fn a_call_that_fails_prints_why_and_ends_the_process() {
    let cases = [
        ("number", "rank 0: the all-gather of LightGBM failed: LightGBM passed 2 blocks for 1 ranks"),
        ("length", "LightGBM passed 8 bytes at 8 as the block of rank 0, which should be at 0"),
        ("none", "the reduce-scatter of LightGBM failed: the thread has no network"),
    ];
    for (call, expected) in cases {
        let mut child = Command::new(env::current_exe().unwrap());
        child.args(["--exact", "tests::failing_call", "--ignored", "--nocapture"]);
        let output = child.env("COMM_TEST_CALL", call).output().unwrap();
        let printed = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.signal(), Some(ABORTED), "{printed}");
        assert!(printed.contains(expected), "{printed}");
    }
}
