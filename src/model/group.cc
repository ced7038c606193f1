// What a pass exchanges with the other members of a group (share.h).
#include <fmt/format.h>

#include <vector>

#include "base/index_range.h"
#include "base/status.h"
#include "model/decoder_pass.h"
#include "model/share.h"
#include "parallel/communicator.h"

namespace terrace::model {

absl::Status Decoder::CheckGroup(const ForwardInput& input) const {
  const Share& share = config_.share;
  const int32_t rank = input.group == nullptr ? 0 : input.group->rank();
  const int32_t size = input.group == nullptr ? 1 : input.group->size();
  if (share.size == size && share.rank == rank) return absl::OkStatus();
  return absl::InternalError(fmt::format("share {} of {} of a model runs as member {} of {}",
                                         share.rank, share.size, rank, size));
}

absl::Status Decoder::Pass::Sum(ops::Matrix m) {
  const size_t count = static_cast<size_t>(m.rows) * static_cast<size_t>(m.cols);
  if (be_.host_addressable() && m.stride == m.cols) {
    RETURN_IF_ERROR(be_.Synchronize());
    return in_.group->AllReduce({m.data, count});
  }
  if (in_.group->sums_on_device() && m.stride == m.cols) {
    RETURN_IF_ERROR(be_.Synchronize());
    return in_.group->AllReduceOnDevice(m.data, count);
  }
  exchanged_.resize(count);
  RETURN_IF_ERROR(be_.Read(m, exchanged_));
  RETURN_IF_ERROR(in_.group->AllReduce(exchanged_));
  return be_.Write(exchanged_, m);
}

absl::Status Decoder::Pass::EmbedPart() {
  std::vector<int32_t> ids, rows;
  for (size_t i = 0; i < in_.tokens.size(); ++i) {
    const int32_t id = in_.tokens[i] - c_.vocab_begin;
    if (id < 0 || id >= c_.vocab_rows) continue;
    ids.push_back(id);
    rows.push_back(static_cast<int32_t>(i));
  }
  RETURN_IF_ERROR(be_.Zero(b_.x));
  if (!ids.empty()) {
    ops::Matrix found = b_.normed;
    found.rows = static_cast<int32_t>(ids.size());
    const std::vector<float> ones(ids.size(), 1.0f);
    RETURN_IF_ERROR(be_.EmbedRows(w_.Matrix(d_.embedding_), ids, c_.embedding_scale, found));
    RETURN_IF_ERROR(be_.AddScaledRows(found, rows, ones, b_.x));
  }
  // Each row is one member's; zeros of the others change nothing.
  return Sum(b_.x);
}

absl::Status Decoder::Pass::GatherLogits() {
  const int32_t rows = b_.logits.rows;
  // The members' parts lie one behind the other, each [rows, its part of the vocabulary].
  std::vector<IndexRange> parts, columns;
  for (int32_t r = 0; r < c_.share.size; ++r) {
    columns.push_back(VocabularyOf(c_, r));
    parts.push_back({columns.back().begin * rows, columns.back().end * rows});
  }
  const auto mine = static_cast<size_t>(c_.share.rank);
  exchanged_.resize(static_cast<size_t>(rows) * static_cast<size_t>(c_.vocab_size));
  RETURN_IF_ERROR(be_.Read(b_.logit_part, std::span(exchanged_)
                                              .subspan(static_cast<size_t>(parts[mine].begin),
                                                       static_cast<size_t>(parts[mine].size()))));
  RETURN_IF_ERROR(in_.group->AllGather(exchanged_, parts));
  for (size_t r = 0; r < parts.size(); ++r) {
    ops::Matrix to = b_.logits;
    to.data += columns[r].begin;
    to.cols = static_cast<int32_t>(columns[r].size());
    RETURN_IF_ERROR(be_.Write(
        std::span<const float>(exchanged_)
            .subspan(static_cast<size_t>(parts[r].begin), static_cast<size_t>(parts[r].size())),
        to));
  }
  return absl::OkStatus();
}

ops::ExpertRouting Decoder::Pass::HeldRouting() const {
  const ExpertConfig& e = c_.experts;
  const auto first = routing_.first.begin() + e.first;
  const int32_t begin = *first, end = first[e.held];
  ops::ExpertRouting held;
  held.first.assign(first, first + e.held + 1);
  for (int32_t& at : held.first) at -= begin;
  held.rows.assign(routing_.rows.begin() + begin, routing_.rows.begin() + end);
  held.shares.assign(routing_.shares.begin() + begin, routing_.shares.begin() + end);
  return held;
}

}  // namespace terrace::model
