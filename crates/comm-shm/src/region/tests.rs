use rustix::fs::MemfdFlags;

use super::*;

fn region(bytes: usize) -> (Allocation, std::sync::Arc<Region>) {
    let region = std::sync::Arc::new(Region::create(1, bytes, PeerAccess::Read).unwrap());
    (region.allocation(bytes, Box::new(std::sync::Arc::clone(&region))), region)
}

fn duplicate(region: &Region) -> OwnedFd {
    region.file().try_clone_to_owned().unwrap()
}

#[test]
fn a_reader_sees_what_the_owner_writes() {
    let page = rustix::param::page_size();
    for bytes in [1, 100, page - 1, page, page + 1, 1 << 20] {
        let (mut allocation, region) = region(bytes);
        assert!(allocation.bytes().iter().all(|byte| *byte == 0) && allocation.bytes().len() == bytes);
        let mapping = PeerRegion::open(&duplicate(&region)).unwrap();
        allocation.bytes_mut().fill(9);
        let mut copy = vec![0; bytes];
        assert_eq!(mapping.fill_buf(0, bytes).copy_to(&mut copy), bytes);
        assert!(copy.iter().all(|byte| *byte == 9));
        assert!(!mapping.is_retired());
        region.retire();
        drop((allocation, region));
        assert!(mapping.is_retired());
        assert_eq!(mapping.fill_buf(bytes as u64 - 1, 1).copy_to(&mut copy), 1);
    }
}

#[test]
fn bytes_outside_a_region_are_not_returned() {
    let (_allocation, region) = region(100);
    let mapping = PeerRegion::open(&duplicate(&region)).unwrap();
    let len = region.len() as u64;
    assert_eq!(mapping.fill_buf(len - 1, 1).len(), 1);
    for (offset, len) in [(0, len + 1), (len, 1), (len - 1, 2), (u64::MAX, 1), (u64::MAX, u64::MAX)] {
        assert!(mapping.fill_buf(offset, len as usize).is_empty(), "{offset} {len}");
    }
}

#[test]
fn only_the_owner_can_write_and_no_process_can_remove_a_page() {
    let (_allocation, region) = region(1 << 16);
    let file = duplicate(&region);
    let writable = ProtFlags::READ | ProtFlags::WRITE;
    assert!(FileMapping::new(&file, region.len(), writable, MapFlags::empty()).is_err());
    assert_eq!(rustix::io::pwrite(&file, b"mine", 0), Err(Errno::PERM));
    assert_eq!(rustix::fs::ftruncate(&file, 0), Err(Errno::PERM));
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    assert_eq!(rustix::fs::fallocate(&file, hole, 0, 4096), Err(Errno::PERM));
}

#[test]
fn pages_that_were_replaced_keep_their_bytes_and_others_stay_shared() {
    let page = rustix::param::page_size();
    let by_kernel = |region: &Region, pages: Range<usize>| region.detach(pages).unwrap();
    let by_touching = |region: &Region, pages: Range<usize>| {
        region.make_pages_private(pages.clone()).unwrap();
        region.touch(pages);
    };
    for replace in [by_kernel as fn(&Region, Range<usize>), by_touching] {
        let region = std::sync::Arc::new(Region::create(1, 4 * page, PeerAccess::Write).unwrap());
        let mut allocation = region.allocation(4 * page, Box::new(std::sync::Arc::clone(&region)));
        let peer = PeerRegion::open(&duplicate(&region)).unwrap();
        allocation.bytes_mut().fill(1);
        replace(&region, page..3 * page);
        assert!(peer.write(0, &vec![2; 4 * page]));
        let is_right = |(at, byte): (usize, &u8)| *byte == if (1..3).contains(&(at / page)) { 1 } else { 2 };
        assert!(allocation.bytes().iter().enumerate().all(is_right));
    }
}

#[test]
fn anything_but_a_region_is_refused() {
    let page = rustix::param::page_size() as u64;
    let file = |len: u64, filled: u64, seals: SealFlags| {
        let file = rustix::fs::memfd_create("other", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&file, len).unwrap();
        if filled > 0 {
            rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, filled).unwrap();
        }
        rustix::fs::fcntl_add_seals(&file, seals).unwrap();
        file
    };
    for (seals, is_writable) in [(SEALS, true), (SEALS | SealFlags::FUTURE_WRITE, false)] {
        let region = PeerRegion::open(&file(2 * page, 2 * page, seals)).unwrap();
        assert_eq!((region.write(0, &[1]), region.write(page, &[1])), (is_writable, false));
    }
    let refused = [
        file(2 * page, 2 * page, SealFlags::GROW),
        file(2 * page, 2 * page, SealFlags::FUTURE_WRITE),
        file(2 * page, page, SEALS),
        file(2 * page, 0, SEALS),
        file(page, page, SEALS),
        file(2 * page + 1, 2 * page + 1, SEALS),
        file(0, 0, SEALS),
        std::fs::File::open("/dev/null").unwrap().into(),
        std::fs::File::open("/").unwrap().into(),
    ];
    for file in refused {
        assert_eq!(PeerRegion::open(&file).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}

#[test]
fn a_region_larger_than_memory_is_an_error() {
    for bytes in [usize::MAX, isize::MAX as usize, 1 << 60, 1 << 45] {
        check_commit(bytes).unwrap_err();
        assert!(Region::create(1, bytes, PeerAccess::Read).is_err(), "{bytes}");
    }
}
