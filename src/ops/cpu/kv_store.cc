#include "ops/cpu/kv_store.h"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace terrace::ops::cpu {
namespace {

// What a head's tiles of one block get: positions [begin, end) of a sequence.
struct Task {
  const SequenceRows* sequence;
  int32_t head;
  int32_t begin;
  int32_t end;

  std::byte* Block() const { return sequence->blocks[static_cast<size_t>(begin / kKvBlockTokens)]; }
};

class Store {
 public:
  Store(const Kernels& kernels, const Matrix& k, const Matrix& v, int32_t layer,
        const KvGeometry& geometry)
      : kernels_(kernels), k_(k), v_(v), layer_(layer), geometry_(geometry) {}

  // Asks for the lines that the next task writes, if there is one: each value of a key goes to a
  // line of its own, which comes from memory.
  void Run(const Task& task, const Task* next) const {
    const int32_t key_dim = geometry_.key_dim;
    const int32_t value_dim = geometry_.value_dim;
    if (next != nullptr) {
      const std::byte* const tile = next->Block() + geometry_.key_offset(layer_, next->head);
      for (size_t i = 0; i < geometry_.key_tile_bytes(); i += 64) {
        __builtin_prefetch(tile + i, 0, 2);
      }
    }
    std::byte* const keys = task.Block() + geometry_.key_offset(layer_, task.head);
    std::byte* const values = task.Block() + geometry_.value_offset(layer_, task.head);
    const int64_t row = task.sequence->first_row + task.begin - task.sequence->start;
    const float* key = k_.row(row) + int64_t{task.head} * key_dim;
    const float* value = v_.row(row) + int64_t{task.head} * value_dim;
    const bool whole = task.end - task.begin == kKvBlockTokens && key_dim % kLanes == 0 &&
                       geometry_.dtype == KvDType::kF16 && kernels_.store_key_tile != nullptr;
    if (whole) kernels_.store_key_tile(key, k_.stride, key_dim, keys);
    for (int32_t position = task.begin; position < task.end; ++position) {
      const int32_t token = position % kKvBlockTokens;
      if (!whole) kernels_.store_kv(key, key_dim, geometry_.dtype, true, token, keys);
      kernels_.store_kv(value, value_dim, geometry_.dtype, false, token, values);
      key += k_.stride;
      value += v_.stride;
    }
  }

 private:
  const Kernels& kernels_;
  const Matrix& k_;
  const Matrix& v_;
  const int32_t layer_;
  const KvGeometry& geometry_;
};

}  // namespace

void StoreKv(const Kernels& kernels, ThreadTeam* team, const Matrix& k, const Matrix& v,
             int32_t layer, const KvGeometry& geometry, const BatchRows& batch) {
  std::vector<Task> tasks;
  for (const SequenceRows& s : batch.sequences) {
    const int32_t last = s.start + s.rows;
    for (int32_t position = s.start; position < last;) {
      const int32_t end = std::min(last, (position / kKvBlockTokens + 1) * kKvBlockTokens);
      for (int32_t h = 0; h < geometry.kv_heads; ++h) tasks.push_back({&s, h, position, end});
      position = end;
    }
  }
  const Store store(kernels, k, v, layer, geometry);
  constexpr int64_t kGrain = 4;  // tasks that pay for a fork
  team->ParallelFor(static_cast<int64_t>(tasks.size()), kGrain,
                    [&](int64_t begin, int64_t end, int) {
                      for (int64_t i = begin; i < end; ++i) {
                        const Task* const task = &tasks[static_cast<size_t>(i)];
                        store.Run(*task, i + 1 < end ? task + 1 : nullptr);
                      }
                    });
}

}  // namespace terrace::ops::cpu
