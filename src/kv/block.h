// A full KV block in device memory. Immutable, shared by the cache, sequences and the writer.
#ifndef TERRACE_KV_BLOCK_H_
#define TERRACE_KV_BLOCK_H_

#include <memory>

#include "kv/block_key.h"
#include "tier/tier_manager.h"

namespace terrace::kv {

struct Block {
  BlockKey key;
  tier::DeviceBuffer buffer;
};
using BlockRef = std::shared_ptr<const Block>;

}  // namespace terrace::kv

#endif  // TERRACE_KV_BLOCK_H_
