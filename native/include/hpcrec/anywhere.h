// For functions that kernels of the GPU share with those of the host.
#pragma once
#ifdef __CUDACC__
#define HPCREC_ANYWHERE __host__ __device__
#else
#define HPCREC_ANYWHERE
#endif
