/* Measures a collective of which the including file defines the calls: PROGRAM COLLECTIVE SAMPLES SAMPLE_MS ROTATED
 * BYTES... It is C and C++.
 *
 * Measures as `commctl perf` does, with sums of f32: after barriers for SETTLE and two warm-up calls per size, a sample is
 * the average time of consecutive calls over SAMPLE_MS on the slowest rank, and the time is the median of the samples. Sizes are defined as
 * in nccl-tests. Rank 0 prints a JSON object per size. Every result is checked once, bit for bit, before the
 * measurement.
 *
 * With ROTATED above 0, each call uses another copy of the buffers, so many that they have this size together, at most
 * COPIES_MAX, and each is written after its call, outside the measured time. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WARMUP = 2, GROWTH_MAX = 16, ALIGNMENT = 4096, PERIOD = 16, COPIES_MAX = 1024 };
static const long CALLS_MAX = 1L << 24;
static const double SETTLE = 0.4; /* seconds */

struct buffers {
    int rank, ranks;
    int count; /* elements of the whole size */
    int block; /* elements of one rank's share of it */
    float *send, *recv; /* the copies that the next call uses */
    float *all_sent, *all_received;
    int copies, turn;
    size_t stride; /* elements from one copy to the next */
};

static void fail(const char *what) {
    fprintf(stderr, "error: %s\n", what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* The calls, which the including file defines. */
static void all_reduce(struct buffers *b);
static void broadcast(struct buffers *b);
static void all_gather(struct buffers *b);
static void reduce_scatter(struct buffers *b);
static void all_to_all(struct buffers *b);
static void barrier(struct buffers *b);
static void send_recv(struct buffers *b);

/* A small whole number, so that every sum is exact. */
static float contribution(int rank, long index) { return (float)((index * 7 + rank * 3) % PERIOD); }

/* The sums of all ranks' contributions, which repeat as these do. */
static float sums[PERIOD];

static void add_up(int ranks) {
    for (int index = 0; index < PERIOD; index++) {
        sums[index] = 0;
        for (int rank = 0; rank < ranks; rank++) sums[index] += contribution(rank, index);
    }
}

/* Returns the expected element of the result. */
static float all_reduced(const struct buffers *b, long index) { (void)b; return sums[index % PERIOD]; }
static float broadcasted(const struct buffers *b, long index) { (void)b; return contribution(0, index); }
static float gathered(const struct buffers *b, long index) { return contribution((int)(index / b->block), index % b->block); }
static float scattered(const struct buffers *b, long index) { return sums[((long)b->rank * b->block + index) % PERIOD]; }
static float exchanged(const struct buffers *b, long index) {
    return contribution((int)(index / b->block), (long)b->rank * b->block + index % b->block);
}
static float replied(const struct buffers *b, long index) { return contribution(1 - b->rank, index); }

static const struct collective {
    const char *name;
    void (*call)(struct buffers *);
    float (*expected)(const struct buffers *, long index); /* NULL if there is no data */
    int in_place;
    int result_is_block;
    int transfers; /* messages that a call transfers one after the other, of which the time is that of one */
} COLLECTIVES[] = {
    {"all_reduce", all_reduce, all_reduced, 1, 0, 1},
    {"broadcast", broadcast, broadcasted, 1, 0, 1},
    {"all_gather", all_gather, gathered, 0, 0, 1},
    {"reduce_scatter", reduce_scatter, scattered, 0, 1, 1},
    {"all_to_all", all_to_all, exchanged, 0, 0, 1},
    {"barrier", barrier, NULL, 1, 0, 1},
    {"send_recv", send_recv, replied, 0, 0, 2},
};

static const struct collective *find(const char *name) {
    for (size_t i = 0; i < sizeof COLLECTIVES / sizeof *COLLECTIVES; i++)
        if (strcmp(COLLECTIVES[i].name, name) == 0) return &COLLECTIVES[i];
    fail("there is no such collective");
    return NULL;
}

static float *allocate(size_t count) {
    void *memory;
    size_t bytes = (count > 0 ? count : 1) * sizeof(float);
    if (posix_memalign(&memory, ALIGNMENT, bytes) != 0) fail("no memory");
    /* Writes to all pages, because untouched pages take no memory. */
    memset(memory, 0xa5, bytes);
    return (float *)memory;
}

static void check(const struct collective *c, struct buffers *b) {
    if (c->expected == NULL) return;
    float *into = c->in_place ? b->recv : b->send;
    for (long i = 0; i < b->count; i++) into[i] = contribution(b->rank, i);
    c->call(b);
    long length = c->result_is_block ? b->block : b->count;
    for (long i = 0; i < length; i++) {
        float expected = c->expected(b, i);
        if (memcmp(&expected, &b->recv[i], sizeof expected) != 0) fail("an element of the result is wrong");
    }
}

static void take(struct buffers *b, const struct collective *c, int turn) {
    b->turn = turn;
    b->send = b->all_sent + (c->in_place ? 0 : (size_t)turn * b->stride);
    b->recv = b->all_received + (size_t)turn * b->stride;
}

/* Fills memory with negative zeros. Their sums never become subnormal or infinite, which take longer to add, and they are not made of
 * zero bits only, which some processors write to memory in less time than other data. */
static void fill(float *memory, size_t count) {
    for (size_t i = 0; i < count; i++) memory[i] = -0.0f;
}

/* Writes to the copy that was used last, and takes the next one. */
static void rotate(const struct collective *c, struct buffers *b) {
    fill(c->in_place ? b->recv : b->send, (size_t)b->count);
    take(b, c, (b->turn + 1) % b->copies);
}

/* Returns the seconds of consecutive calls on this rank. */
static double elapsed(const struct collective *c, struct buffers *b, long calls, int rotates) {
    double start = MPI_Wtime();
    if (!rotates) {
        for (long i = 0; i < calls; i++) c->call(b);
        return MPI_Wtime() - start;
    }
    double total = 0;
    for (long i = 0; i < calls; i++) {
        start = MPI_Wtime();
        c->call(b);
        total += MPI_Wtime() - start;
        rotate(c, b);
    }
    return total;
}

/* Returns the same number if the calls took long enough, and otherwise a larger one. */
static long more_calls(long calls, double took, double least) {
    if (took >= least || calls >= CALLS_MAX) return calls;
    double needed = 1.1 * (double)calls * least / (took > 1e-9 ? took : 1e-9) + 1;
    long limit = calls * GROWTH_MAX < CALLS_MAX ? calls * GROWTH_MAX : CALLS_MAX;
    return needed > (double)limit ? limit : (long)needed > calls ? (long)needed : calls + 1;
}

/* Returns the number of calls of a sample, which rank 0 determines. */
static long agree_on_calls(const struct collective *c, struct buffers *b, double least, int rotates) {
    long calls = 1, next = 0;
    for (;;) {
        MPI_Barrier(MPI_COMM_WORLD);
        next = more_calls(calls, elapsed(c, b, calls, rotates), least);
        MPI_Bcast(&next, 1, MPI_LONG, 0, MPI_COMM_WORLD);
        if (next == calls) return calls;
        calls = next;
    }
}

/* Keeps all ranks busy until the scheduler has spread them over the processors. */
static void settle(void) {
    struct buffers none = {0};
    agree_on_calls(find("barrier"), &none, SETTLE, 0);
}

static int compare(const void *a, const void *b) {
    double difference = *(const double *)a - *(const double *)b;
    return (difference > 0) - (difference < 0);
}

static double median(double *numbers, int count) {
    qsort(numbers, (size_t)count, sizeof *numbers, compare);
    return (numbers[(count - 1) / 2] + numbers[count / 2]) / 2;
}

static double measure(const struct collective *c, struct buffers *b, int samples, double least, int rotates) {
    elapsed(c, b, WARMUP, rotates);
    long calls = agree_on_calls(c, b, least, rotates);
    double *times = (double *)malloc((size_t)samples * sizeof *times);
    if (times == NULL) fail("no memory");
    for (int i = 0; i < samples; i++) {
        MPI_Barrier(MPI_COMM_WORLD);
        times[i] = elapsed(c, b, calls, rotates) / (double)calls;
    }
    MPI_Allreduce(MPI_IN_PLACE, times, samples, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    double seconds = median(times, samples);
    free(times);
    return seconds;
}

static int number_of_copies(long long rotated, long long bytes) {
    long long copies = bytes > 0 ? (rotated + bytes - 1) / bytes : 1;
    return copies < 1 ? 1 : copies > COPIES_MAX ? COPIES_MAX : (int)copies;
}

static void measure_size(const struct collective *c, long long bytes, int samples, double least, long long rotated) {
    struct buffers b;
    MPI_Comm_rank(MPI_COMM_WORLD, &b.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &b.ranks);
    b.count = (int)(bytes / (long long)sizeof(float));
    b.block = b.count / b.ranks;
    b.copies = number_of_copies(rotated, bytes);
    size_t page = ALIGNMENT / sizeof(float);
    b.stride = b.copies > 1 ? ((size_t)b.count + page - 1) / page * page : (size_t)b.count;
    size_t elements = b.stride * (size_t)b.copies;
    b.all_sent = allocate(c->in_place ? 0 : elements);
    b.all_received = allocate(elements);
    take(&b, c, 0);
    add_up(b.ranks);
    check(c, &b);
    fill(b.all_received, elements);
    if (!c->in_place) fill(b.all_sent, elements);
    double seconds = measure(c, &b, samples, least, rotated > 0) / c->transfers;
    if (b.rank == 0) {
        printf("{\"collective\":\"%s\",\"ranks\":%d,\"bytes\":%lld,\"time_us\":{\"p50\":%.9g}}\n", c->name, b.ranks, bytes,
               seconds * 1e6);
        fflush(stdout);
    }
    free(b.all_sent);
    free(b.all_received);
}

/* Measures every size of the command line. MPI is initialized. */
static void measure_all(int argc, char **argv) {
    if (argc < 6) fail("usage: PROGRAM COLLECTIVE SAMPLES SAMPLE_MS ROTATED BYTES...");
    const struct collective *c = find(argv[1]);
    int samples = atoi(argv[2]);
    double least = atof(argv[3]) / 1e3;
    if (samples < 1) fail("SAMPLES is at least 1");
    long long rotated = atoll(argv[4]);
    settle();
    for (int i = 5; i < argc; i++) measure_size(c, atoll(argv[i]), samples, least, rotated);
}
