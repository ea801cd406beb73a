//! The calls that start and end groups.

use nccl_sys::ncclResult_t;

use crate::driver::current_ordinal;
use crate::nccl::group;

use super::answer;

#[unsafe(no_mangle)]
extern "C" fn ncclGroupStart() -> ncclResult_t {
    answer("ncclGroupStart", current_ordinal(), &"", || {
        group::start();
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn ncclGroupEnd() -> ncclResult_t {
    answer("ncclGroupEnd", current_ordinal(), &"", group::end)
}
