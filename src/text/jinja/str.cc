#include "text/jinja/str.h"

#include <algorithm>

namespace terrace::jinja {

Str::Str(std::string text, bool trusted) {
  if (text.empty()) return;
  auto rep = std::make_shared<Rep>();
  rep->text = std::move(text);
  rep->trusted = trusted;
  rep_ = std::move(rep);
}

Str Str::WithMarkup(bool markup) const {
  Str copy = *this;
  copy.markup_ = markup;
  return copy;
}

Str Str::Sub(size_t begin, size_t count) const {
  begin = std::min(begin, size());
  const size_t end = begin + std::min(count, size() - begin);
  if (begin == 0 && end == size()) return *this;
  Str result;
  if (begin == end) return result;
  if (rep_->runs.empty()) {
    result = Str(rep_->text.substr(begin, end - begin), rep_->trusted);
  } else {
    StrBuilder builder;
    builder.Append(*this, begin, end);
    result = builder.Build();
  }
  result.markup_ = markup_;
  return result;
}

void StrBuilder::Append(std::string_view text, bool trusted) {
  if (text.empty()) return;
  text_.append(text);
  if (!runs_.empty() && runs_.back().trusted == trusted) {
    runs_.back().end = text_.size();
  } else {
    runs_.push_back({text_.size(), trusted});
  }
}

void StrBuilder::Append(const Str& text) { Append(text, 0, text.size()); }

void StrBuilder::Append(const Str& text, size_t begin, size_t end) {
  text.ForEachRun(begin, end, [&](size_t from, size_t to, bool trusted) {
    Append(text.view().substr(from, to - from), trusted);
  });
}

Str StrBuilder::Build(bool markup) {
  Str result;
  if (!text_.empty()) {
    auto rep = std::make_shared<Str::Rep>();
    rep->text = std::move(text_);
    if (runs_.size() == 1) {
      rep->trusted = runs_[0].trusted;
    } else {
      rep->runs = std::move(runs_);
    }
    result.rep_ = std::move(rep);
  }
  result.markup_ = markup;
  text_.clear();
  runs_.clear();
  return result;
}

std::pair<std::string, std::vector<Run>> StrBuilder::Take() {
  std::pair<std::string, std::vector<Run>> result{std::move(text_), std::move(runs_)};
  text_.clear();
  runs_.clear();
  return result;
}

}  // namespace terrace::jinja
