//! Checkpoints saved by some ranks and loaded by others.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::path::Path;

use comm::Comm;
use comm_checkpoint::{Checkpoint, Checkpoints, Coverage, Error, Options, Placement, Result, State};
use half::bf16;

const WEIGHTS: [usize; 2] = [7, 11];
const MOMENTS: usize = 1 << 21;

fn run<R: Send>(ranks: usize, rank: impl Fn(Comm) -> R + Sync) -> Vec<R> {
    comm::threads::run(ranks, rank).unwrap()
}

/// Returns the part of the moments that a rank holds: uneven, and empty for the last of many.
fn part(rank: usize, size: usize) -> std::ops::Range<usize> {
    let length = MOMENTS.div_ceil(size) + 5;
    (rank * length).min(MOMENTS)..((rank + 1) * length).min(MOMENTS)
}

fn moment(step: u64, at: usize) -> f32 {
    (step as usize * 31 + at % 10_007) as f32
}

fn weights(step: u64) -> Vec<bf16> {
    (0..77).map(|at| bf16::from_f32(step as f32 + (at % 13) as f32)).collect()
}

fn moments(step: u64, range: std::ops::Range<usize>) -> Vec<f32> {
    range.map(|at| moment(step, at)).collect()
}

fn save(comm: &Comm, folder: &Path, options: Options, step: u64) -> Result<()> {
    let part = part(comm.rank(), comm.size());
    let (weights, moments) = (weights(step), moments(step, part.clone()));
    let mut state = State::new();
    state.tensor("layer.weight", &WEIGHTS, &weights)?;
    state.shard("moments", &[MOMENTS], part.start, &moments)?;
    state.value("sampler", &(step, "of the epoch"))?;
    Checkpoints::open(comm, folder, options)?.save(step, &state)
}

/// Asserts that a checkpoint has the state of its step, in the parts of these ranks.
fn assert_state(checkpoint: &Checkpoint, comm: &Comm) {
    let step = checkpoint.step();
    let mut read = vec![bf16::ZERO; 77];
    checkpoint.read("layer.weight", &mut read).unwrap();
    assert_eq!(read, weights(step));
    assert_eq!(checkpoint.shape("layer.weight").unwrap(), (&WEIGHTS[..], comm::DType::BF16));
    let part = part(comm.rank(), comm.size());
    let mut read = vec![0.0; part.len()];
    checkpoint.read_range("moments", part.start, &mut read).unwrap();
    assert!(read == moments(step, part));
    assert_eq!(checkpoint.value::<(u64, String)>("sampler").unwrap(), (step, "of the epoch".into()));
}

fn load(comm: &Comm, folder: &Path, options: Options) -> Option<u64> {
    let checkpoint = Checkpoints::open(comm, folder, options).unwrap().load_latest().unwrap()?;
    assert_state(&checkpoint, comm);
    Some(checkpoint.step())
}

#[test]
fn a_checkpoint_is_restored_on_any_number_of_ranks() {
    for savers in [1, 2, 3, 4, 8] {
        let folder = tempfile::tempdir().unwrap();
        for saved in run(savers, |comm| save(&comm, folder.path(), Options::default(), 9)) {
            saved.unwrap();
        }
        for ranks in [1, 2, 3, 4, 8] {
            let loaded = run(ranks, |comm| load(&comm, folder.path(), Options::default()));
            assert_eq!(loaded, vec![Some(9); ranks]);
        }
    }
}

#[test]
fn hosts_with_folders_of_their_own_get_the_files_that_they_lack() {
    let hosts = [(); 4].map(|()| tempfile::tempdir().unwrap());
    let options = Options::default().placement(Placement::PerHost);
    for step in [1, 2] {
        run(4, |comm| save(&comm, hosts[comm.rank() / 2].path(), options, step).unwrap());
    }
    let files = |host: usize| fs::read_dir(hosts[host].path().join("step-000000000002")).unwrap().count();
    assert_eq!((files(0), files(1)), (3, 3), "two shards and the manifest");
    // The last two hosts are new; the second one is gone, and its disk lives on in the fourth.
    fs::rename(hosts[1].path(), hosts[3].path()).unwrap();
    let loaded = run(6, |comm| load(&comm, hosts[[0, 0, 2, 2, 3, 3][comm.rank()]].path(), options));
    assert_eq!(loaded, [Some(2); 6]);
    assert_eq!([0, 2, 3].map(files), [5; 3]);
    assert_eq!(run(1, |comm| load(&comm, hosts[2].path(), options)), [Some(2)]);
}

#[test]
fn the_files_open_with_a_reader_of_safetensors() {
    let folder = tempfile::tempdir().unwrap();
    run(2, |comm| save(&comm, folder.path(), Options::default(), 3).unwrap());
    let mut names = Vec::new();
    for rank in 0..2 {
        let bytes =
            fs::read(folder.path().join(format!("step-000000000003/shard-0000{rank}-of-00002.safetensors")));
        let bytes = bytes.unwrap();
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        names.extend(
            file.names()
                .into_iter()
                .map(|name| (name.to_owned(), file.tensor(name).unwrap().shape().to_vec())),
        );
    }
    names.sort();
    let shard = |rank| ("moments".to_owned(), vec![part(rank, 2).len()]);
    let (layer, mut shards) = (("layer.weight".to_owned(), WEIGHTS.to_vec()), vec![shard(0), shard(1)]);
    shards.sort();
    assert_eq!(names, [vec![layer], shards].concat());
}

#[test]
fn a_save_in_the_background_is_unaffected_by_later_steps() {
    let folder = tempfile::tempdir().unwrap();
    run(2, |comm| {
        let mut checkpoints = Checkpoints::open(&comm, folder.path(), Options::default()).unwrap();
        let mut weights = vec![1.5_f32; 1 << 20];
        for step in 0..5 {
            let mut state = State::new();
            state.tensor("w", &[1 << 20], &weights).unwrap();
            checkpoints.save_async(step, &state).unwrap();
            weights.iter_mut().for_each(|weight| *weight += 1.0);
            // The caller's communicator stays free.
            assert_eq!(comm.all_reduce_scalar(1, comm::ReduceOp::Sum).unwrap(), 2);
        }
        checkpoints.wait().unwrap();
        assert_eq!(checkpoints.steps().unwrap(), [2, 3, 4]);
        checkpoints.load(3).unwrap().read("w", &mut weights).unwrap();
        assert!(weights.iter().all(|weight| *weight == 4.5));
    });
}

#[test]
fn damaged_checkpoints_are_reported_and_skipped() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options::default();
    run(2, |comm| [1, 2].map(|step| save(&comm, folder.path(), options, step).unwrap()));
    let shard = folder.path().join("step-000000000002/shard-00001-of-00002.safetensors");
    let whole = fs::read(&shard).unwrap();
    let outcomes = |ranks| {
        run(ranks, |comm| {
            let latest = load(&comm, folder.path(), options);
            (latest, Checkpoints::open(&comm, folder.path(), options).unwrap().load(2).map(drop))
        })
    };
    for damage in [Some(0), Some(7), Some(100), Some(whole.len() - 1), None] {
        match damage {
            Some(length) => fs::write(&shard, &whole[..length]).unwrap(),
            None => fs::remove_file(&shard).unwrap(),
        }
        for (latest, second) in outcomes(3) {
            assert_eq!(latest, Some(1));
            assert!(
                matches!(&second, Err(Error::Corrupt { path, .. }) if path.ends_with(shard.file_name().unwrap()))
            );
        }
    }
    // A flipped bit shows when the bytes around it are read.
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 4;
    fs::write(&shard, &flipped).unwrap();
    run(1, |comm| {
        let checkpoint = Checkpoints::open(&comm, folder.path(), options).unwrap().load(2).unwrap();
        let mut read = vec![0.0_f32; MOMENTS];
        assert!(matches!(checkpoint.read("moments", &mut read), Err(Error::Corrupt { .. })));
        let first = &mut read[..100];
        checkpoint.read_range("moments", 0, first).unwrap();
        assert_eq!(first, moments(2, 0..100));
    });
    fs::write(&shard, &whole).unwrap();
    assert!(outcomes(2).into_iter().all(|(latest, second)| latest == Some(2) && second.is_ok()));
    fs::write(folder.path().join("step-000000000002/manifest.json"), "{").unwrap();
    assert!(outcomes(2).into_iter().all(|(latest, second)| latest == Some(1) && second.is_err()));
}

#[test]
fn a_step_of_which_files_are_missing_can_be_saved_again() {
    for (placement, lost) in [
        (Placement::Shared, "shard-00001-of-00002.safetensors"),
        (Placement::PerHost, "shard-00001-of-00002.safetensors"),
        // The manifest of the other host remains.
        (Placement::PerHost, "manifest.json"),
    ] {
        let hosts = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let options = Options::default().placement(placement);
        let folder = |rank: usize| hosts[if placement == Placement::PerHost { rank } else { 0 }].path();
        let all = |step| run(2, |comm| save(&comm, folder(comm.rank()), options, step));
        assert!([1, 2].map(all).into_iter().flatten().all(|saved| saved.is_ok()));
        assert!(all(2).iter().all(|again| matches!(again, Err(Error::Exists { step: 2 }))));
        fs::remove_file(folder(1).join("step-000000000002").join(lost)).unwrap();
        assert_eq!(run(2, |comm| load(&comm, folder(comm.rank()), options)), [Some(1); 2]);
        assert!(all(2).iter().all(Result::is_ok), "{placement:?}");
        assert_eq!(run(2, |comm| load(&comm, folder(comm.rank()), options)), [Some(2); 2]);
    }
}

#[test]
fn a_new_checkpoint_is_kept_even_if_its_step_is_lower_than_others() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options::default().keep(1);
    run(2, |comm| {
        let mut checkpoints = Checkpoints::open(&comm, folder.path(), options).unwrap();
        // A run that continued from an earlier step than the last.
        for (step, kept) in [(30, &[30][..]), (21, &[21, 30]), (22, &[22, 30]), (31, &[31])] {
            save(&comm, folder.path(), options, step).unwrap();
            assert_eq!(checkpoints.steps().unwrap(), kept);
            assert_state(&checkpoints.load(step).unwrap(), &comm);
        }
    });
}

#[test]
fn a_rank_that_cannot_write_fails_the_save_on_every_rank_and_nothing_else() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let options = Options::default().placement(Placement::PerHost);
    let path = |rank: usize| if rank == 2 { other.path() } else { folder.path() };
    run(3, |comm| save(&comm, path(comm.rank()), options, 1).unwrap());
    let errors = run(3, |comm| {
        let mut checkpoints = Checkpoints::open(&comm, path(comm.rank()), options).unwrap();
        let data = [1_u8; 9];
        let mut state = State::new();
        state.shard("s", &[27], 9 * comm.rank(), &data).unwrap();
        // A folder has the name of rank 2's file.
        let blocked = other.path().join("step-000000000002");
        if comm.rank() == 2 {
            fs::write(&blocked, "a file where the folder should be").unwrap();
        }
        let error = checkpoints.save(2, &state).unwrap_err();
        assert_eq!(checkpoints.load_latest().unwrap().unwrap().step(), 1);
        if comm.rank() == 2 {
            fs::remove_file(&blocked).unwrap();
        }
        checkpoints.save(2, &state).unwrap();
        assert!(matches!(checkpoints.save(2, &state), Err(Error::Exists { step: 2 })));
        error
    });
    for (rank, error) in errors.iter().enumerate() {
        match error {
            Error::Io { .. } => assert_eq!(rank, 2),
            Error::Peer { rank: 2, .. } => assert_ne!(rank, 2),
            other => panic!("rank {rank}: {other}"),
        }
    }
}

#[test]
fn inconsistent_states_are_refused_on_every_rank() {
    let folder = tempfile::tempdir().unwrap();
    let refused = run(3, |comm| {
        let mut checkpoints = Checkpoints::open(&comm, folder.path(), Options::default()).unwrap();
        let (data, mut state) = ([0_u16; 4], State::new());
        state.shard("s", &[12], 4 * comm.rank().min(1), &data).unwrap();
        let coverage = checkpoints.save(1, &state).unwrap_err();
        let mut state = State::new();
        state.tensor("w", &[4 - 2 * (comm.rank() / 2), 1 + comm.rank() / 2], &data).unwrap();
        let mismatch = checkpoints.save(1, &state).unwrap_err();
        assert!(checkpoints.load_latest().unwrap().is_none());
        (coverage, mismatch)
    });
    for (coverage, mismatch) in refused {
        assert!(
            matches!(&coverage, Error::Coverage { elements, fault: Coverage::Duplicate, .. } if *elements == (4..8))
        );
        assert!(matches!(mismatch, Error::Mismatch { rank: 2, reference: 0, .. }), "{mismatch}");
    }
}

#[test]
fn wrong_buffers_and_names_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    run(1, |comm| {
        save(&comm, folder.path(), Options::default(), 5).unwrap();
        let mut checkpoints = Checkpoints::open(&comm, folder.path(), Options::default()).unwrap();
        let checkpoint = checkpoints.load(5).unwrap();
        assert!(matches!(checkpoints.load(6), Err(Error::NoSuchStep { step: 6 })));
        assert_eq!(checkpoint.tensors().collect::<Vec<_>>(), ["layer.weight", "moments"]);
        let (mut halves, mut floats) = ([bf16::ZERO; 78], [0.0_f32; 2]);
        let refused = [
            checkpoint.read("layer.weight", &mut halves[..76]),
            checkpoint.read("layer.weight", &mut halves),
            checkpoint.read_range("moments", MOMENTS - 1, &mut floats),
            checkpoint.read_range("moments", usize::MAX, &mut floats),
        ];
        assert!(refused.iter().all(|refused| matches!(refused, Err(Error::Length { .. }))), "{refused:?}");
        let wrong = checkpoint.read_range("layer.weight", 0, &mut floats);
        assert!(matches!(wrong, Err(Error::WrongType { .. })));
        assert!(matches!(checkpoint.read("bias", &mut floats), Err(Error::Missing { .. })));
        assert!(matches!(checkpoint.value::<u8>("scaler"), Err(Error::Missing { .. })));
        assert!(matches!(checkpoint.value::<u8>("sampler"), Err(Error::Value { .. })));
        let mut state = State::new();
        state.tensor("w", &[2], &floats).unwrap();
        assert!(matches!(state.tensor("w", &[2], &floats), Err(Error::NameTaken { .. })));
        assert!(matches!(state.tensor("__metadata__", &[2], &floats), Err(Error::NameTaken { .. })));
        assert!(matches!(state.tensor("v", &[3], &floats), Err(Error::Length { .. })));
        assert!(matches!(state.shard("v", &[3], 2, &floats), Err(Error::Length { .. })));
        assert!(matches!(state.shard("v", &[usize::MAX, 2], 0, &floats), Err(Error::Length { .. })));
    });
}
