#include "cli/answer.h"

#include <utility>

namespace terrace::cli {

class Answer::Sink final : public TokenSink {
 public:
  explicit Sink(Answer* answer) : answer_(*answer) {}

  bool OnToken(const TokenEvent& event) override {
    std::string text = answer_.stops_.Append(answer_.detokenizer_.Append(event.token));
    absl::MutexLock lock(&answer_.mutex_);
    answer_.text_ += text;
    return !answer_.stops_.stopped();
  }

  void OnFinish(const FinishInfo& info) override {
    std::string text;
    if (!answer_.stops_.stopped()) {
      text = answer_.stops_.Append(answer_.detokenizer_.Finish());
      text += answer_.stops_.Finish();
    }
    absl::MutexLock lock(&answer_.mutex_);
    answer_.text_ += text;
    answer_.finish_ = info;
  }

 private:
  Answer& answer_;
};

Answer::Answer(const Tokenizer* tokenizer, std::vector<std::string> stops)
    : detokenizer_(tokenizer), stops_(std::move(stops)) {}

std::unique_ptr<TokenSink> Answer::MakeSink() { return std::make_unique<Sink>(this); }

std::string Answer::Next() {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(this, &Answer::Ready));
  return std::exchange(text_, {});
}

FinishInfo Answer::finish() const {
  absl::MutexLock lock(&mutex_);
  return finish_.value_or(FinishInfo());
}

}  // namespace terrace::cli
