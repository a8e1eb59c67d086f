// Functions that host and device share carry this mark.
#pragma once

#if defined(__CUDACC__)
#define CHUNKATTN_HOST_DEVICE __host__ __device__
#else
#define CHUNKATTN_HOST_DEVICE
#endif
