// What a server did while a request was made: the request's parts by its trace, its tokens as they
// came, and the model's segments, tiers and links as /admin/state showed them, many times a second.
// All times on the server's clock, in microseconds.
#ifndef TERRACE_CLI_PROFILE_TIMELINE_H_
#define TERRACE_CLI_PROFILE_TIMELINE_H_

#include <boost/json.hpp>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace terrace::cli {

class Timeline {
 public:
  struct Span {
    std::string track;  // "request", "segments"
    std::string name;
    std::string kind;  // request, queue, swap, prefill, decode, arriving, there, used
    int64_t start_us = 0, end_us = 0;
  };

  explicit Timeline(std::string model) : model_(std::move(model)) {}

  // One look at /admin/state. InvalidArgument if it is none.
  absl::Status AddState(const boost::json::object& state);
  void AddToken(int64_t at_us) { tokens_.push_back(at_us); }
  // The answer of /admin/traces: Trace Event Format.
  absl::Status AddTrace(std::string_view json);
  // Ends what is still open and puts the spans in order.
  void Finish();

  const std::vector<Span>& spans() const { return spans_; }
  // How long the request's part of this kind was; 0: it had none.
  int64_t TookUs(std::string_view kind) const;
  int64_t looks() const { return looks_; }
  // For Perfetto and Chrome: the same as one file.
  std::string PerfettoJson() const;
  // For the page.
  boost::json::object PageJson() const;

 private:
  struct Segment {
    uint64_t bytes = 0;
    int now = -1;  // 0 not there, 1 arriving, 2 there, 3 used
    int64_t since_us = 0;
  };
  void Close(const std::string& name, Segment* segment, int64_t at_us);
  void AddSegments(const boost::json::object& model, int64_t at_us);
  void Count(const std::string& name, int64_t at_us, double value) {
    counters_[name].emplace_back(at_us, value);
  }

  const std::string model_;
  std::vector<Span> spans_;
  std::vector<int64_t> tokens_;
  std::vector<std::string> segment_order_;
  std::map<std::string, Segment> segments_;
  std::map<std::string, std::vector<std::pair<int64_t, double>>> counters_;
  std::map<std::string, std::pair<int64_t, double>> link_before_;
  int64_t looks_ = 0, last_us_ = 0;
};

}  // namespace terrace::cli

#endif  // TERRACE_CLI_PROFILE_TIMELINE_H_
