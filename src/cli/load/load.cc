#include "cli/load/load.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <memory>
#include <queue>
#include <set>
#include <utility>

#include "base/clock.h"
#include "base/random.h"
#include "base/text.h"
#include "cli/ask.h"
#include "cli/http_request.h"

namespace terrace::cli {
namespace {

namespace json = boost::json;

constexpr std::string_view kWords[] = {"river", "stone", "field", "when",  "rain",  "the",
                                       "over",  "light", "house", "under", "green", "between",
                                       "slow",  "day",   "of",    "bridge"};

// What an event says: its text is not kept, only that there is some.
struct Event {
  bool has_text = false;
  int64_t prompt_tokens = -1, output_tokens = -1;
  std::string error;
};

bool HasText(const json::object& object, const char* name) {
  const json::value* found = object.if_contains(name);
  return found != nullptr && found->is_string() && !found->get_string().empty();
}

Event ParseEvent(std::string_view data) {
  Event event;
  json::error_code error;
  const json::value value = json::parse(json::string_view(data.data(), data.size()), error);
  const json::object* object = error ? nullptr : value.if_object();
  if (object == nullptr) {
    event.error = "an event that is no JSON object";
    return event;
  }
  if (const json::value* fault = object->if_contains("error")) {
    const json::object* about = fault->if_object();
    event.error = about != nullptr && HasText(*about, "message")
                      ? std::string(about->at("message").get_string())
                      : json::serialize(*fault);
  }
  if (const json::value* usage = object->if_contains("usage"); usage && usage->is_object()) {
    auto number = [&](const char* name) {
      const json::value* found = usage->get_object().if_contains(name);
      return found != nullptr && found->is_number() ? found->to_number<int64_t>() : -1;
    };
    event.prompt_tokens = number("prompt_tokens");
    event.output_tokens = number("completion_tokens");
  }
  const json::value* choices = object->if_contains("choices");
  if (choices == nullptr || !choices->is_array()) return event;
  for (const json::value& choice : choices->get_array()) {
    const json::object* each = choice.if_object();
    if (each == nullptr) continue;
    event.has_text |= HasText(*each, "text");
    const json::value* delta = each->if_contains("delta");
    if (delta == nullptr || !delta->is_object()) continue;
    event.has_text |= HasText(delta->get_object(), "content") ||
                      HasText(delta->get_object(), "reasoning_content");
  }
  return event;
}

// One request under way.
struct Stream {
  Stream(class Load* the_load, const std::string& url, const std::string& ca)
      : request(url, ca), load(the_load) {}

  LoadResult result;
  HttpRequest request;
  std::string rest;      // of a line that has not ended
  std::string head;      // the beginning of what is no event: an error's text
  int64_t last_us = -1;  // when text came last
  int64_t pieces = 0;
  bool done = false;    // [DONE] was there
  int64_t client = -1;  // of a class with clients: which
  class Load* const load;
};

// When who asks next; the earliest first.
struct Due {
  int64_t at_us = 0;
  size_t load_class = 0;
  int64_t client = -1;  // -1: a rate
  bool operator>(const Due& other) const { return at_us > other.at_us; }
};

struct MultiDeleter {
  void operator()(CURLM* multi) const { curl_multi_cleanup(multi); }
};

class Load {
 public:
  Load(const LoadMix& mix, const LoadOptions& options, LoadFigures* figures)
      : mix_(mix), options_(options), figures_(figures), random_(mix.seed) {}

  absl::StatusOr<LoadOutcome> Run();

 private:
  int64_t Now() const { return clock_.NowUs() - start_us_; }
  void Plan();
  // Begins what is due.
  void AskWhatIsDue();
  void Ask(size_t load_class, int64_t due_us, const LoadTraceRequest* traced, int64_t client);
  std::string ModelFor(const LoadClass& load_class);
  std::string Prompt(const LoadClass& load_class, size_t number, const std::string& model,
                     int32_t tokens);
  void TakeFinished();
  void Finish(CURL* curl, CURLcode code);
  // Gives up what still runs.
  void CutRest();
  int64_t WaitMs() const;
  bool IsEnough() const { return mix_.most_requests > 0 && asked_ >= mix_.most_requests; }
  bool IsOver() const { return due_.empty() && next_traced_ == mix_.trace.size(); }

  static size_t OnData(char* data, size_t size, size_t count, void* to);
  void OnLine(Stream* stream, std::string_view line);

  const LoadMix& mix_;
  const LoadOptions& options_;
  LoadFigures* const figures_;
  RealClock clock_;
  Random random_;
  int64_t start_us_ = 0;
  std::unique_ptr<CURLM, MultiDeleter> multi_;
  std::map<CURL*, std::unique_ptr<Stream>> running_;
  std::priority_queue<Due, std::vector<Due>, std::greater<>> due_;
  size_t next_traced_ = 0;
  int64_t asked_ = 0;
  LoadOutcome outcome_;
};

void Load::Plan() {
  if (!mix_.trace.empty()) return;
  for (size_t i = 0; i < mix_.classes.size(); ++i) {
    const LoadClass& each = mix_.classes[i];
    if (each.rate > 0) due_.push({0, i, -1});
    for (int64_t client = 0; client < each.clients; ++client) due_.push({0, i, client});
  }
}

std::string Load::ModelFor(const LoadClass& load_class) {
  const std::vector<std::string>& models =
      load_class.models.empty() ? options_.models : load_class.models;
  double sum = 0;
  for (size_t k = 0; k < models.size(); ++k) {
    sum += std::pow(static_cast<double>(k + 1), -load_class.zipf);
  }
  double at = random_.Uniform() * sum;
  for (size_t k = 0; k < models.size(); ++k) {
    at -= std::pow(static_cast<double>(k + 1), -load_class.zipf);
    if (at < 0) return models[k];
  }
  return models.back();
}

std::string Load::Prompt(const LoadClass& load_class, size_t number, const std::string& model,
                         int32_t tokens) {
  const auto found = options_.tokens_per_word.find(model);
  const double share = found == options_.tokens_per_word.end() ? 1 : found->second;
  auto words = static_cast<int64_t>(std::max(1.0, std::round(tokens / share)));
  auto shared = static_cast<int64_t>(std::round(load_class.shared_tokens / share));
  Random same(mix_.seed * 1000 + number);
  std::string text;
  for (int64_t i = 0; i < words; ++i) {
    Random& source = i < shared ? same : random_;
    text += kWords[source.Below(std::size(kWords))];
    text += ' ';
  }
  text.pop_back();
  return text;
}

void Load::Ask(size_t number, int64_t due_us, const LoadTraceRequest* traced, int64_t client) {
  const LoadClass& each = mix_.classes[number];
  auto pick = [&](const TokenRange& range) {
    return range.least +
           static_cast<int32_t>(random_.Below(static_cast<uint64_t>(range.most - range.least) + 1));
  };
  const std::string url = options_.url + (each.chat ? "/v1/chat/completions" : "/v1/completions");
  auto stream = std::make_unique<Stream>(this, url, options_.ca);
  stream->client = client;
  stream->result.load_class = number;
  stream->result.model =
      traced != nullptr && !traced->model.empty() ? traced->model : ModelFor(each);
  stream->result.due_us = due_us;
  const int32_t prompt = traced != nullptr ? traced->prompt_tokens : pick(each.prompt_tokens);
  const int32_t output = traced != nullptr ? traced->output_tokens : pick(each.output_tokens);
  const std::string text = Prompt(each, number, stream->result.model, prompt);
  json::object body = {{"model", stream->result.model},
                       {"max_tokens", output},
                       {"temperature", 0},
                       {"stream", true},
                       {"stream_options", json::object{{"include_usage", true}}}};
  if (each.chat) {
    body["messages"] = json::array{json::object{{"role", "user"}, {"content", text}}};
  } else {
    body["prompt"] = text;
  }
  stream->request.Post(json::serialize(body));
  if (!each.sla.empty()) stream->request.AddHeader("X-Terrace-SLA: " + each.sla);
  if (const auto key = options_.keys.find(each.key_env); key != options_.keys.end()) {
    stream->request.AddKey(key->second);
  }
  stream->request.OnData(&Load::OnData, stream.get());
  CURL* const curl = stream->request.curl();
  curl_multi_add_handle(multi_.get(), curl);
  running_.emplace(curl, std::move(stream));
}

void Load::AskWhatIsDue() {
  const int64_t now = Now();
  auto ask = [&](size_t load_class, int64_t due, const LoadTraceRequest* traced, int64_t client) {
    ++asked_;
    outcome_.late_us = std::max(outcome_.late_us, now - due);
    Ask(load_class, due, traced, client);
  };
  for (; next_traced_ < mix_.trace.size() && mix_.trace[next_traced_].at_us <= now;
       ++next_traced_) {
    const LoadTraceRequest& request = mix_.trace[next_traced_];
    ask(request.load_class, request.at_us, &request, -1);
  }
  while (!due_.empty() && due_.top().at_us <= now) {
    const Due next = due_.top();
    due_.pop();
    if (next.at_us >= mix_.duration_us || IsEnough()) continue;
    const LoadClass& each = mix_.classes[next.load_class];
    // A client asks when it can; a rate's first request comes after its first wait.
    if (next.client >= 0) {
      ask(next.load_class, now, nullptr, next.client);
      continue;
    }
    if (next.at_us > 0) ask(next.load_class, next.at_us, nullptr, -1);
    const double wait = -std::log(1 - random_.Uniform()) / each.rate;
    due_.push(
        {next.at_us + std::max<int64_t>(1, static_cast<int64_t>(wait * 1e6)), next.load_class, -1});
  }
}

size_t Load::OnData(char* data, size_t size, size_t count, void* to) {
  auto* stream = static_cast<Stream*>(to);
  const std::string_view piece(data, size * count);
  if (stream->head.size() < 400) stream->head += piece.substr(0, 400);
  stream->rest += piece;
  size_t begin = 0;
  for (size_t end; (end = stream->rest.find('\n', begin)) != std::string::npos; begin = end + 1) {
    stream->load->OnLine(stream, std::string_view(stream->rest).substr(begin, end - begin));
  }
  stream->rest.erase(0, begin);
  return size * count;
}

void Load::OnLine(Stream* stream, std::string_view line) {
  constexpr std::string_view kData = "data:";
  line = StripSpace(line);
  if (!line.starts_with(kData)) return;
  line = StripSpace(line.substr(kData.size()));
  if (line == "[DONE]") {
    stream->done = true;
    return;
  }
  const int64_t now = Now();
  const Event event = ParseEvent(line);
  if (!event.error.empty()) stream->result.error = event.error.substr(0, 200);
  if (event.prompt_tokens >= 0) stream->result.prompt_tokens = event.prompt_tokens;
  if (event.output_tokens >= 0) stream->result.output_tokens = event.output_tokens;
  if (!event.has_text) return;
  ++stream->pieces;
  if (stream->result.due_us >= mix_.warm_up_us) {
    figures_->CountTokens(stream->result.model, now, 1);
  }
  if (stream->result.first_us < 0) {
    stream->result.first_us = now;
  } else {
    stream->result.gaps_us.push_back(now - stream->last_us);
  }
  stream->last_us = now;
}

void Load::Finish(CURL* curl, CURLcode code) {
  const auto found = running_.find(curl);
  Stream& stream = *found->second;
  LoadResult& result = stream.result;
  result.status = static_cast<int>(stream.request.status());
  result.end_us = Now();
  if (code != CURLE_OK) {
    result.error = ReasonOf(code);
  } else if (result.status != 200) {
    result.error = fmt::format("{}: {}", result.status, ErrorMessage(stream.head).substr(0, 200));
  } else if (result.error.empty() && !stream.done) {
    result.error = "the stream ended without [DONE]";
  }
  if (result.output_tokens == 0) result.output_tokens = stream.pieces;
  outcome_.took_us = std::max(outcome_.took_us, result.end_us);
  if (result.due_us >= mix_.warm_up_us) figures_->Add(result);
  if (stream.client >= 0) {
    // One that was refused does not ask again at once.
    const int64_t least = result.error.empty() ? 0 : 100'000;
    const int64_t pause = std::max(mix_.classes[result.load_class].pause_us, least);
    if (Now() + pause < mix_.duration_us && !outcome_.stopped) {
      due_.push({Now() + pause, result.load_class, stream.client});
    }
  }
  curl_multi_remove_handle(multi_.get(), curl);
  running_.erase(found);
}

void Load::TakeFinished() {
  int left = 0;
  while (CURLMsg* message = curl_multi_info_read(multi_.get(), &left)) {
    if (message->msg == CURLMSG_DONE) Finish(message->easy_handle, message->data.result);
  }
}

void Load::CutRest() {
  while (!running_.empty()) {
    const auto first = running_.begin();
    LoadResult& result = first->second->result;
    result.end_us = Now();
    result.error = "no end of the answer when the load ended";
    // Who asked for the end does not call it a failure.
    if (!outcome_.stopped && result.due_us >= mix_.warm_up_us) figures_->Add(result);
    curl_multi_remove_handle(multi_.get(), first->first);
    running_.erase(first);
  }
}

int64_t Load::WaitMs() const {
  int64_t next = Now() + std::min<int64_t>(200'000, options_.progress_us);
  if (!due_.empty()) next = std::min(next, due_.top().at_us);
  if (next_traced_ < mix_.trace.size()) next = std::min(next, mix_.trace[next_traced_].at_us);
  return std::clamp<int64_t>((next - Now()) / 1000, 0, 200);
}

absl::StatusOr<LoadOutcome> Load::Run() {
  multi_.reset(curl_multi_init());
  if (multi_ == nullptr) return absl::UnavailableError("the HTTP client cannot begin");
  start_us_ = clock_.NowUs();
  Plan();
  int64_t told_us = 0;
  while (!IsOver() || !running_.empty()) {
    if (!outcome_.stopped) AskWhatIsDue();
    int still = 0;
    curl_multi_perform(multi_.get(), &still);
    TakeFinished();
    const int64_t now = Now();
    figures_->CountRunning(now, static_cast<int64_t>(running_.size()));
    if (options_.progress && now - told_us >= options_.progress_us) {
      options_.progress(now, static_cast<int64_t>(running_.size()));
      told_us = now;
    }
    if (outcome_.stopped || now > mix_.duration_us + options_.patience_us) break;
    curl_waitfd stop = {options_.stop_fd, CURL_WAIT_POLLIN, 0};
    const bool watches = options_.stop_fd >= 0;
    int ready = 0;
    curl_multi_poll(multi_.get(), watches ? &stop : nullptr, watches ? 1 : 0,
                    static_cast<int>(WaitMs()), &ready);
    outcome_.stopped = watches && (stop.revents & CURL_WAIT_POLLIN) != 0;
  }
  CutRest();
  outcome_.took_us = std::max<int64_t>(1, outcome_.took_us - mix_.warm_up_us);
  return outcome_;
}

}  // namespace

absl::StatusOr<LoadOutcome> RunLoad(const LoadMix& mix, const LoadOptions& options,
                                    LoadFigures* figures) {
  return Load(mix, options, figures).Run();
}

}  // namespace terrace::cli
