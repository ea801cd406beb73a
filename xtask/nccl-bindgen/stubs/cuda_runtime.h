/* What nccl.h takes from CUDA's header of this name. Handles are opaque to NCCL's callers, and stay so. */
#ifndef COMM_STUB_CUDA_RUNTIME_H
#define COMM_STUB_CUDA_RUNTIME_H

#define CUDART_VERSION 13000
#define NULL ((void *)0)

typedef __SIZE_TYPE__ size_t;
typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;

#endif
