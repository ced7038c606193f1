// The rows of a pass while they are put together. Private to the engine's own files.
#ifndef TERRACE_ENGINE_ENGINE_ROWS_H_
#define TERRACE_ENGINE_ENGINE_ROWS_H_

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/engine.h"
#include "model/architecture.h"
#include "ops/types.h"

namespace terrace::engine {

// The rows of one forward pass, in the form that operators take.
struct Engine::Rows {
  std::vector<int32_t> tokens;
  std::vector<int32_t> positions;
  std::vector<int32_t> logit_rows;
  std::vector<ops::SequenceRows> sequences;
  std::vector<const Adapter*> adapters;  // each once
  std::vector<model::AdapterRows> adapted;
  bool uniform = false;

  int32_t adapter_rank() const {
    int32_t rank = 0;
    for (const Adapter* adapter : adapters) rank = std::max(rank, adapter->weights().max_rank());
    return rank;
  }

  // Notes that the last `count` rows go through `adapter`.
  void Adapt(const Adapter* adapter, int32_t count) {
    const auto found = std::find(adapters.begin(), adapters.end(), adapter);
    const auto index = static_cast<int32_t>(found - adapters.begin());
    if (found == adapters.end()) adapters.push_back(adapter);
    const int32_t first = static_cast<int32_t>(tokens.size()) - count;
    if (!adapted.empty() && adapted.back().adapter == index &&
        adapted.back().first + adapted.back().rows == first) {
      adapted.back().rows += count;
    } else {
      adapted.push_back({first, count, index});
    }
  }

  // A whole text that needs no KV.
  void AppendText(std::span<const int32_t> text) {
    const auto first = static_cast<int32_t>(tokens.size());
    const auto count = static_cast<int32_t>(text.size());
    tokens.insert(tokens.end(), text.begin(), text.end());
    for (int32_t i = 0; i < count; ++i) positions.push_back(i);
    sequences.push_back({first, count, 0, {}});
    logit_rows.push_back(first + count - 1);
  }

  void Append(kv::Sequence& kv, std::span<const int32_t> new_tokens, const Adapter* adapter) {
    ops::SequenceRows rows;
    rows.first_row = static_cast<int32_t>(tokens.size());
    rows.rows = static_cast<int32_t>(new_tokens.size());
    rows.start = kv.length();
    rows.blocks = kv.blocks();
    for (size_t i = 0; i < new_tokens.size(); ++i) {
      tokens.push_back(new_tokens[i]);
      positions.push_back(rows.start + static_cast<int32_t>(i));
    }
    sequences.push_back(rows);
    if (adapter != nullptr) Adapt(adapter, rows.rows);
  }
};

}  // namespace terrace::engine

#endif  // TERRACE_ENGINE_ENGINE_ROWS_H_
