// Keys and values of a batch into the tiles of KV blocks, by all workers.
#ifndef TERRACE_OPS_CPU_KV_STORE_H_
#define TERRACE_OPS_CPU_KV_STORE_H_

#include <cstdint>

#include "device/cpu/thread_team.h"
#include "ops/cpu/kernels.h"
#include "ops/types.h"

namespace terrace::ops::cpu {

// Backend::StoreKv of checked arguments.
void StoreKv(const Kernels& kernels, ThreadTeam* team, const Matrix& k, const Matrix& v,
             int32_t layer, const KvGeometry& geometry, const BatchRows& batch);

}  // namespace terrace::ops::cpu

#endif  // TERRACE_OPS_CPU_KV_STORE_H_
