#include "server/answer_parser.h"

#include <algorithm>
#include <utility>

namespace terrace::server {
namespace {

constexpr std::string_view kBlank = " \n\r\t";

bool IsIdByte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-';
}
bool IsNameByte(char c) { return IsIdByte(c) || c == '.'; }

}  // namespace

AnswerParser::AnswerParser(const AnswerSyntax* syntax) : syntax_(*syntax) {
  if (syntax_.reasoning) {
    state_ = syntax_.starts_in_reasoning ? State::kReasoning : State::kStart;
  }
  if (syntax_.tools) {
    open_ = syntax_.tools->open;
    std::string& text = open_[0].text;
    text.erase(0, std::min(text.find(syntax_.tools->trigger), text.size()));
  }
}

std::vector<AnswerPiece> AnswerParser::Append(std::string_view text) {
  std::vector<AnswerPiece> out;
  held_ += text;
  while (Step(&out, false)) {
  }
  return out;
}

std::vector<AnswerPiece> AnswerParser::Finish() {
  std::vector<AnswerPiece> out;
  while (!held_.empty() && Step(&out, true)) {
  }
  held_.clear();
  return out;
}

void AnswerParser::Give(AnswerPiece::Kind kind, std::string text, std::vector<AnswerPiece>* out) {
  if (text.empty()) return;
  if (kind == AnswerPiece::Kind::kContent) {
    // White space counts only between other content.
    text = blanks_ + text;
    const size_t end = text.find_last_not_of(kBlank) + 1;
    blanks_ = text.substr(end);
    text.resize(end);
    if (!said_) text.erase(0, std::min(text.find_first_not_of(kBlank), text.size()));
    if (text.empty()) return;
    said_ = true;
  }
  if (!out->empty() && out->back().kind == kind && kind != AnswerPiece::Kind::kCallName) {
    out->back().text += text;
  } else {
    out->push_back({kind, std::move(text)});
  }
}

size_t AnswerParser::FreeOf(std::string_view marker) const {
  for (size_t length = std::min(marker.size() - 1, held_.size()); length > 0; --length) {
    if (marker.starts_with(std::string_view(held_).substr(held_.size() - length))) {
      return held_.size() - length;
    }
  }
  return held_.size();
}

AnswerParser::Match AnswerParser::Try(const FormatParts& parts, size_t* length) const {
  size_t at = 0;
  for (const FormatPart& part : parts) {
    if (part.kind == FormatPart::Kind::kText) {
      const std::string_view here = std::string_view(held_).substr(std::min(at, held_.size()));
      const size_t common = std::min(here.size(), part.text.size());
      if (here.substr(0, common) != std::string_view(part.text).substr(0, common))
        return Match::kNo;
      if (common < part.text.size()) return Match::kMore;
      at += part.text.size();
      continue;
    }
    const size_t begin = at;
    const bool digits = part.kind == FormatPart::Kind::kIndex;
    while (at < held_.size() &&
           (digits ? held_[at] >= '0' && held_[at] <= '9' : IsIdByte(held_[at]))) {
      ++at;
    }
    if (at == held_.size()) return Match::kMore;
    if (at == begin) return Match::kNo;
  }
  *length = at;
  return Match::kYes;
}

bool AnswerParser::Step(std::vector<AnswerPiece>* out, bool last) {
  switch (state_) {
    case State::kStart:
      return Start(last);
    case State::kReasoning:
      return Reasoning(out, last);
    case State::kContent:
      return Content(out, last);
    case State::kOpen:
      return Open(out, last);
    case State::kName:
      return Name(last);
    case State::kMiddle:
      return Middle(out, last);
    case State::kArguments:
      return Arguments(out);
    case State::kAfter:
      return After(last);
  }
  return false;
}

bool AnswerParser::Start(bool last) {
  const size_t blank = std::min(held_.find_first_not_of(kBlank), held_.size());
  const std::string_view text = std::string_view(held_).substr(blank);
  bool more = text.empty();
  for (const std::string* marker : {&syntax_.reasoning->open, &syntax_.reasoning->skip}) {
    if (marker->empty()) continue;
    if (text.starts_with(*marker)) {
      const bool reasons = marker == &syntax_.reasoning->open;
      state_ = reasons ? State::kReasoning : State::kContent;
      held_.erase(0, blank + marker->size());
      return true;
    }
    more = more || marker->starts_with(text);
  }
  if (more && !last) return false;
  state_ = State::kContent;
  return true;
}

bool AnswerParser::Reasoning(std::vector<AnswerPiece>* out, bool last) {
  const std::string& close = syntax_.reasoning->close;
  const size_t end = held_.find(close);
  const size_t taken = end != std::string::npos ? end : last ? held_.size() : FreeOf(close);
  Give(AnswerPiece::Kind::kReasoning, held_.substr(0, taken), out);
  held_.erase(0, end != std::string::npos ? end + close.size() : taken);
  if (end == std::string::npos) return false;
  state_ = State::kContent;
  return true;
}

bool AnswerParser::Content(std::vector<AnswerPiece>* out, bool last) {
  if (held_.empty()) return false;
  if (!syntax_.tools) {
    Give(AnswerPiece::Kind::kContent, std::exchange(held_, ""), out);
    return false;
  }
  const std::string& trigger = syntax_.tools->trigger;
  const size_t begin = held_.find(trigger);
  const size_t taken = begin != std::string::npos ? begin : last ? held_.size() : FreeOf(trigger);
  Give(AnswerPiece::Kind::kContent, held_.substr(0, taken), out);
  held_.erase(0, taken);
  if (begin == std::string::npos) return false;
  state_ = State::kOpen;
  return true;
}

bool AnswerParser::Open(std::vector<AnswerPiece>* out, bool last) {
  size_t length = 0;
  const Match match = Try(open_, &length);
  if (match == Match::kMore && !last) return false;
  if (match == Match::kYes) {
    held_.erase(0, length);
    state_ = State::kName;
    return true;
  }
  // The marker, but no call: text like any other.
  const size_t trigger = syntax_.tools->trigger.size();
  Give(AnswerPiece::Kind::kContent, held_.substr(0, trigger), out);
  held_.erase(0, std::min(trigger, held_.size()));
  state_ = State::kContent;
  return true;
}

bool AnswerParser::Name(bool last) {
  const size_t end =
      static_cast<size_t>(std::find_if_not(held_.begin(), held_.end(), IsNameByte) - held_.begin());
  if (end == held_.size() && !last) return false;
  name_ = held_.substr(0, end);
  held_.erase(0, end);
  state_ = State::kMiddle;
  return true;
}

bool AnswerParser::Middle(std::vector<AnswerPiece>* out, bool last) {
  size_t length = 0;
  const Match match = Try(syntax_.tools->middle, &length);
  if (match == Match::kMore) {
    if (last) held_.clear();  // cut off before the call had arguments
    return false;
  }
  if (match == Match::kNo) {
    state_ = State::kContent;
    return true;
  }
  held_.erase(0, length);
  ++calls_;
  Give(AnswerPiece::Kind::kCallName, std::exchange(name_, ""), out);
  depth_ = 0;
  quoted_ = escaped_ = false;
  state_ = State::kArguments;
  return true;
}

bool AnswerParser::Arguments(std::vector<AnswerPiece>* out) {
  size_t at = 0;
  bool done = false;
  for (; at < held_.size() && !done; ++at) {
    const char c = held_[at];
    if (escaped_) {
      escaped_ = false;
    } else if (quoted_) {
      escaped_ = c == '\\';
      quoted_ = c != '"';
    } else if (c == '"') {
      quoted_ = true;
    } else if (c == '{' || c == '[') {
      ++depth_;
    } else if (c == '}' || c == ']') {
      done = --depth_ <= 0;
    }
  }
  Give(AnswerPiece::Kind::kCallArguments, held_.substr(0, at), out);
  held_.erase(0, at);
  if (!done) return false;
  state_ = State::kAfter;
  return true;
}

bool AnswerParser::After(bool last) {
  size_t between = 0, close = 0;
  const Match another =
      syntax_.tools->parallel ? Try(syntax_.tools->between, &between) : Match::kNo;
  if (another == Match::kYes) {
    held_.erase(0, between);
    state_ = State::kName;
    return true;
  }
  const Match end = Try(syntax_.tools->close, &close);
  if (!last && (another == Match::kMore || end == Match::kMore)) return false;
  if (end == Match::kYes) held_.erase(0, close);
  if (end == Match::kMore) held_.clear();
  state_ = State::kContent;
  return true;
}

}  // namespace terrace::server
