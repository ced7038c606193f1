#include "server/page_profile.h"

#include <algorithm>
#include <boost/json.hpp>
#include <vector>

#include <fmt/format.h>

#include "base/units.h"
#include "tier/page_trace.h"
#include "tier/tier_manager.h"

namespace terrace::server {
namespace {

namespace json = boost::json;

constexpr size_t kMostCells = 4096;

json::object SegmentJson(const tier::SegmentSpec& spec, std::vector<uint32_t> reads, size_t cells) {
  const size_t pages =
      AlignUp(spec.bytes, tier::PageTrace::kPageBytes) / tier::PageTrace::kPageBytes;
  reads.resize(pages);
  cells = std::min(cells, pages);
  json::array means;
  for (size_t i = 0; i < cells; ++i) {
    const size_t begin = i * pages / cells, end = (i + 1) * pages / cells;
    double sum = 0;
    for (size_t page = begin; page < end; ++page) sum += reads[page];
    means.push_back(sum / static_cast<double>(end - begin));
  }
  const auto read = std::count_if(reads.begin(), reads.end(), [](uint32_t n) { return n > 0; });
  return {{"name", spec.name}, {"pages", pages}, {"read_pages", read}, {"reads", std::move(means)}};
}

}  // namespace

absl::StatusOr<std::string> PageProfileJson(const tier::TierManager& manager,
                                            const tier::PageTrace* trace, const std::string& model,
                                            size_t cells) {
  if (trace == nullptr) {
    return absl::FailedPreconditionError(
        "Reads of pages are not counted: start the server with memory.trace_pages on.");
  }
  const std::vector<tier::ModelSource> models = manager.Sources();
  const auto found = std::find_if(models.begin(), models.end(),
                                  [&](const auto& source) { return source.name == model; });
  if (found == models.end()) {
    return absl::NotFoundError(fmt::format("No model '{}' is open.", model));
  }
  std::vector<std::vector<uint32_t>> reads = trace->Reads(found->id);
  reads.resize(found->segments.size());
  json::array segments;
  for (size_t i = 0; i < found->segments.size(); ++i) {
    segments.push_back(SegmentJson(found->segments[i], std::move(reads[i]),
                                   std::clamp<size_t>(cells, 1, kMostCells)));
  }
  return json::serialize(json::object{{"model", model},
                                      {"page_bytes", tier::PageTrace::kPageBytes},
                                      {"segments", std::move(segments)}});
}

}  // namespace terrace::server
