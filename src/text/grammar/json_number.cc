#include "text/grammar/json_number.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <tuple>

namespace terrace::grammar {
namespace {

constexpr size_t kWholeDigits = 16;
constexpr size_t kFractionDigits = 15;

int CompareMagnitudes(const Decimal& a, const Decimal& b) {
  if (a.whole.size() != b.whole.size()) return a.whole.size() < b.whole.size() ? -1 : 1;
  const int whole = a.whole.compare(b.whole);
  const int sign = whole != 0 ? whole : a.fraction.compare(b.fraction);
  return sign < 0 ? -1 : sign > 0 ? 1 : 0;
}

// The magnitudes of one sign: those in [low, high], which may be open.
class Magnitudes {
 public:
  Magnitudes(const NumberBounds& bounds, ByteAutomaton* out) : bounds_(bounds), out_(*out) {}

  // Adds the digits behind `from`. REQUIRES: bounds of magnitudes are not negative.
  void Add(int32_t from) {
    for (size_t length = 1; length <= kWholeDigits; ++length) {
      length_ = length;
      // 0 has one digit like 1 to 9; a bound below 1 has none.
      const size_t low = bounds_.low ? std::max<size_t>(bounds_.low->whole.size(), 1) : 1;
      const size_t high = bounds_.high ? std::max<size_t>(bounds_.high->whole.size(), 1) : 99;
      if (length < low || length > high) continue;
      ids_.clear();
      Place start{0, bounds_.low && length == low, bounds_.high && length == high, 0};
      Digits(start, from, true);
      for (size_t i = 0; i < work_.size(); ++i) {
        const auto [place, state] = work_[i];
        Continue(place, state);
      }
      work_.clear();
    }
  }

 private:
  // After `digits` digits (of the whole part, then of the fraction): whether they are those of a
  // bound so far, and the remainder.
  struct Place {
    size_t digits = 0;
    bool at_low = false;
    bool at_high = false;
    int32_t remainder = 0;
    bool behind_point = false;
    auto operator<=>(const Place&) const = default;
  };

  char DigitOf(const std::optional<Decimal>& bound, size_t digit) const {
    if (digit < length_) {
      const std::string& whole = bound->whole;
      return whole.empty() ? '0' : whole[digit];
    }
    const size_t behind = digit - length_;
    return behind < bound->fraction.size() ? bound->fraction[behind] : '0';
  }
  // Whether the bound has digits other than 0 from `digit` on.
  bool More(const std::optional<Decimal>& bound, size_t digit) const {
    for (size_t i = digit; i < length_ + bound->fraction.size(); ++i) {
      if (DigitOf(bound, i) != '0') return true;
    }
    return false;
  }

  bool Final(const Place& place) const {
    if (place.digits < length_ || (place.behind_point && place.digits == length_)) return false;
    if (place.at_low && (More(bounds_.low, place.digits) || bounds_.above_low)) return false;
    if (place.at_high && !More(bounds_.high, place.digits) && bounds_.below_high) return false;
    return place.remainder == 0;
  }

  int32_t State(const Place& place) {
    const auto [it, fresh] = ids_.try_emplace(place, 0);
    if (fresh) {
      it->second = out_.Add(Final(place));
      work_.emplace_back(place, it->second);
    }
    return it->second;
  }

  void Digits(const Place& place, int32_t from, bool first) {
    const char low = place.at_low ? DigitOf(bounds_.low, place.digits) : '0';
    const char high = place.at_high ? DigitOf(bounds_.high, place.digits) : '9';
    for (char digit = low; digit <= high; ++digit) {
      if (first && digit == '0' && length_ > 1) continue;
      Place next = place;
      ++next.digits;
      next.at_low = place.at_low && digit == low;
      next.at_high = place.at_high && digit == high;
      if (bounds_.multiple_of > 1) {
        next.remainder = (place.remainder * 10 + (digit - '0')) % bounds_.multiple_of;
      }
      const auto byte = static_cast<uint8_t>(digit);
      out_.Connect(from, byte, byte, State(next));
    }
  }

  void Continue(const Place& place, int32_t state) {
    if (place.digits == length_ && !place.behind_point) {
      if (bounds_.integer) return;
      Place point = place;
      point.behind_point = true;
      out_.Connect(state, '.', '.', State(point));
      return;
    }
    if (place.digits < length_ + (place.behind_point ? kFractionDigits : 0)) {
      Digits(place, state, false);
    }
  }

  const NumberBounds& bounds_;
  ByteAutomaton& out_;
  size_t length_ = 0;  // digits before the point
  std::map<Place, int32_t> ids_;
  std::vector<std::pair<Place, int32_t>> work_;
};

}  // namespace

std::optional<Decimal> Decimal::From(int64_t value) {
  Decimal out;
  out.negative = value < 0;
  const std::string digits = fmt::format("{}", value);
  out.whole = value == 0 ? "" : digits.substr(out.negative ? 1 : 0);
  if (out.whole.size() > kWholeDigits) return std::nullopt;
  return out;
}

std::optional<Decimal> Decimal::From(double value) {
  if (!std::isfinite(value) || std::abs(value) >= 1e16) return std::nullopt;
  // The shortest digits that read back as `value`: "d.ddde-xx" or plain.
  std::string text = fmt::format("{}", std::abs(value));
  int exponent = 0;
  if (const size_t e = text.find('e'); e != std::string::npos) {
    const char* digits = text.c_str() + e + 1;
    if (*digits == '+') ++digits;  // from_chars takes no plus
    std::from_chars(digits, text.c_str() + text.size(), exponent);
    text.resize(e);
  }
  const size_t point = std::min(text.find('.'), text.size());
  std::string digits = text.substr(0, point);
  if (point < text.size()) digits += text.substr(point + 1);
  int before = static_cast<int>(point) + exponent;  // digits before the point
  if (before < 0) {
    digits.insert(0, static_cast<size_t>(-before), '0');
    before = 0;
  }
  if (digits.size() < static_cast<size_t>(before)) digits.resize(static_cast<size_t>(before), '0');
  Decimal out;
  out.whole = digits.substr(0, static_cast<size_t>(before));
  out.fraction = digits.substr(static_cast<size_t>(before));
  out.whole.erase(0, std::min(out.whole.find_first_not_of('0'), out.whole.size()));
  out.fraction.erase(out.fraction.find_last_not_of('0') + 1);
  if (out.whole.size() > kWholeDigits || out.fraction.size() > 20) return std::nullopt;
  out.negative = value < 0 && !out.IsZero();
  return out;
}

int Compare(const Decimal& a, const Decimal& b) {
  if (a.IsZero() && b.IsZero()) return 0;
  if (a.negative != b.negative) return a.negative ? -1 : 1;
  const int magnitude = CompareMagnitudes(a, b);
  return a.negative ? -magnitude : magnitude;
}

ByteAutomaton NumbersWithin(const NumberBounds& bounds) {
  ByteAutomaton out;
  out.Add();
  const Decimal zero;
  auto mirrored = [](Decimal value) {
    value.negative = false;
    return value;
  };
  if (!bounds.high || Compare(*bounds.high, zero) >= 0) {
    NumberBounds positive = bounds;
    if (positive.low && Compare(*positive.low, zero) < 0) {
      positive.low.reset();
      positive.above_low = false;
    }
    Magnitudes(positive, &out).Add(0);
  }
  if (!bounds.low || Compare(*bounds.low, zero) < 0) {
    NumberBounds negative = bounds;
    negative.low.reset();
    negative.high.reset();
    negative.above_low = negative.below_high = false;
    if (bounds.low) {
      negative.high = mirrored(*bounds.low);
      negative.below_high = bounds.above_low;
    }
    // Of 0 there is one only: -0 is left out.
    negative.low = Decimal{};
    negative.above_low = true;
    if (bounds.high && Compare(*bounds.high, zero) < 0) {
      negative.low = mirrored(*bounds.high);
      negative.above_low = bounds.below_high;
    }
    const int32_t minus = out.Add();
    out.Connect(0, '-', '-', minus);
    Magnitudes(negative, &out).Add(minus);
  }
  return out;
}

}  // namespace terrace::grammar
