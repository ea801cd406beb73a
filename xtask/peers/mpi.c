/* Measures a collective of MPI, as measure.h says: mpi COLLECTIVE SAMPLES SAMPLE_MS ROTATED BYTES... */
#include "measure.h"

static void all_reduce(struct buffers *b) {
    MPI_Allreduce(MPI_IN_PLACE, b->recv, b->count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void broadcast(struct buffers *b) {
    MPI_Bcast(b->recv, b->count, MPI_FLOAT, 0, MPI_COMM_WORLD);
}

static void all_gather(struct buffers *b) {
    MPI_Allgather(b->send, b->block, MPI_FLOAT, b->recv, b->block, MPI_FLOAT, MPI_COMM_WORLD);
}

static void reduce_scatter(struct buffers *b) {
    MPI_Reduce_scatter_block(b->send, b->recv, b->block, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void all_to_all(struct buffers *b) {
    MPI_Alltoall(b->send, b->block, MPI_FLOAT, b->recv, b->block, MPI_FLOAT, MPI_COMM_WORLD);
}

static void barrier(struct buffers *b) {
    (void)b;
    MPI_Barrier(MPI_COMM_WORLD);
}

/* A message to the other rank and back. */
static void send_recv(struct buffers *b) {
    int peer = 1 - b->rank;
    if (b->rank == 0) MPI_Send(b->send, b->count, MPI_FLOAT, peer, 0, MPI_COMM_WORLD);
    MPI_Recv(b->recv, b->count, MPI_FLOAT, peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (b->rank == 1) MPI_Send(b->send, b->count, MPI_FLOAT, peer, 0, MPI_COMM_WORLD);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    measure_all(argc, argv);
    MPI_Finalize();
    return 0;
}
