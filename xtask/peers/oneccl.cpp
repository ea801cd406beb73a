/* Measures a collective of oneCCL on host memory, as measure.h says: oneccl COLLECTIVE SAMPLES SAMPLE_MS ROTATED
 * BYTES...
 *
 * MPI starts the ranks, sends them the address of oneCCL's store, and separates the samples. */
#include "measure.h"

#include <exception>
#include <memory>
#include <oneapi/ccl.hpp>

/* The hooks of Intel's profiler, which are null without it. oneCCL's static library does not define them. */
#define HOOK(name) void *__itt_##name##_ptr__3_0;
extern "C" {
HOOK(domain_create)
HOOK(event_create)
HOOK(event_end)
HOOK(event_start)
HOOK(metadata_add)
HOOK(string_handle_create)
HOOK(task_begin)
HOOK(task_end)
HOOK(thread_set_name)
}

static ccl::communicator *comm;
static const ccl::datatype FLOAT = ccl::datatype::float32;

static void all_reduce(struct buffers *b) {
    ccl::allreduce(b->recv, b->recv, (size_t)b->count, FLOAT, ccl::reduction::sum, *comm).wait();
}

static void broadcast(struct buffers *b) { ccl::broadcast(b->recv, (size_t)b->count, FLOAT, 0, *comm).wait(); }

static void all_gather(struct buffers *b) {
    ccl::allgather(b->send, b->recv, (size_t)b->block, FLOAT, *comm).wait();
}

static void reduce_scatter(struct buffers *b) {
    ccl::reduce_scatter(b->send, b->recv, (size_t)b->block, FLOAT, ccl::reduction::sum, *comm).wait();
}

static void all_to_all(struct buffers *b) { ccl::alltoall(b->send, b->recv, (size_t)b->block, FLOAT, *comm).wait(); }

static void barrier(struct buffers *b) {
    (void)b;
    ccl::barrier(*comm).wait();
}

/* A message to the other rank and back. */
static void send_recv(struct buffers *b) {
    int peer = 1 - b->rank;
    if (b->rank == 0) ccl::send(b->send, (size_t)b->count, FLOAT, peer, *comm).wait();
    ccl::recv(b->recv, (size_t)b->count, FLOAT, peer, *comm).wait();
    if (b->rank == 1) ccl::send(b->send, (size_t)b->count, FLOAT, peer, *comm).wait();
}

static ccl::communicator create_communicator() {
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    std::shared_ptr<ccl::kvs> store;
    ccl::kvs::address_type address;
    if (rank == 0) {
        store = ccl::create_main_kvs();
        address = store->get_address();
    }
    MPI_Bcast(address.data(), (int)address.size(), MPI_BYTE, 0, MPI_COMM_WORLD);
    if (rank != 0) store = ccl::create_kvs(address);
    return ccl::create_communicator(ranks, rank, store);
}

int main(int argc, char **argv) {
    int provided;
    /* Worker threads of oneCCL call MPI, too. */
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    try {
        ccl::init();
        ccl::communicator created = create_communicator();
        comm = &created;
        measure_all(argc, argv);
    } catch (const std::exception &error) {
        fail(error.what());
    }
    MPI_Finalize();
    return 0;
}
