#include "engine/row_fetch.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "base/status.h"
#include "base/units.h"

namespace terrace::engine {
namespace {

// More of the segment than one part in so many is not worth reading twice: small reads are several
// times slower than large ones.
constexpr uint64_t kLeastParts = 8;
constexpr uint64_t kMostBytes = 16 * kMiB;

int32_t GroupRows(ops::Layout layout) { return layout == ops::Layout::kPlain ? 1 : 16; }

}  // namespace

absl::StatusOr<std::optional<RowFetch>> RowFetch::Read(
    const EngineModel& model, const EngineModel::Binding& matrix, std::span<const int32_t> rows,
    const ops::Backend& backend, tier::TierManager* manager, const tier::CancelFlag* cancel) {
  const ops::Weight& whole = matrix.weight;
  RowFetch fetch;
  fetch.segment_ = matrix.segment;
  fetch.group_rows_ = GroupRows(whole.layout);
  const uint64_t group_bytes =
      backend.PackedBytes(whole.layout, whole.dtype, fetch.group_rows_, whole.cols);
  const auto groups =
      static_cast<uint64_t>((whole.rows + fetch.group_rows_ - 1) / fetch.group_rows_);
  if (groups * group_bytes != matrix.stride) return std::nullopt;  // not made of groups
  std::map<int32_t, int32_t> place_of;                             // by group
  for (const int32_t row : rows) {
    const int32_t group = row / fetch.group_rows_;
    const auto [at, added] = place_of.emplace(group, static_cast<int32_t>(place_of.size()));
    if (added) {
      fetch.offsets_.push_back(matrix.offset + static_cast<uint64_t>(group) * group_bytes);
    }
    fetch.places_.push_back(at->second * fetch.group_rows_ + row % fetch.group_rows_);
  }
  const uint64_t segment_bytes = model.weights().segments()[matrix.segment].bytes;
  // Whole pages are read, and a group begins anywhere in one.
  const uint64_t read_bytes =
      place_of.size() * (AlignUp(group_bytes, tier::kBlockAlignment) + tier::kBlockAlignment);
  if (read_bytes > std::min(segment_bytes / kLeastParts, kMostBytes)) return std::nullopt;
  fetch.bytes_.resize(place_of.size() * group_bytes);
  std::vector<tier::SegmentPiece> pieces;
  for (size_t i = 0; i < fetch.offsets_.size(); ++i) {
    pieces.push_back(
        {fetch.offsets_[i], std::span(fetch.bytes_).subspan(i * group_bytes, group_bytes)});
  }
  ASSIGN_OR_RETURN(const bool read,
                   manager->ReadPieces(model.weights().tier_id(), matrix.segment, pieces, cancel));
  if (!read) return std::nullopt;
  return fetch;
}

int32_t RowFetch::table_rows() const { return static_cast<int32_t>(offsets_.size()) * group_rows_; }

absl::StatusOr<bool> RowFetch::Matches(const std::byte* data, tier::TierManager* manager) const {
  const size_t group_bytes = bytes_.size() / offsets_.size();
  std::vector<std::byte> copy(manager->unified() ? 0 : group_bytes);
  for (size_t i = 0; i < offsets_.size(); ++i) {
    const std::byte* held = data + offsets_[i];
    if (!copy.empty()) {
      RETURN_IF_ERROR(manager->CopyToHost(held, copy));
      held = copy.data();
    }
    if (std::memcmp(held, bytes_.data() + i * group_bytes, group_bytes) != 0) return false;
  }
  return true;
}

}  // namespace terrace::engine
