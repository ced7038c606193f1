// JSON numbers in a range, as automata over their digits.
#ifndef TERRACE_TEXT_GRAMMAR_JSON_NUMBER_H_
#define TERRACE_TEXT_GRAMMAR_JSON_NUMBER_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "text/grammar/grammar.h"

namespace terrace::grammar {

// A decimal number: digits without leading and trailing zeros around the point.
struct Decimal {
  bool negative = false;
  std::string whole;     // "" for 0
  std::string fraction;  // "" for none

  // Nothing if `value` is not finite or has over 16 digits before or 20 behind the point.
  static std::optional<Decimal> From(double value);
  static std::optional<Decimal> From(int64_t value);
  bool IsZero() const { return whole.empty() && fraction.empty(); }
};
// -1, 0 or 1 as `a` is below, at or above `b`.
int Compare(const Decimal& a, const Decimal& b);

struct NumberBounds {
  std::optional<Decimal> low, high;
  bool above_low = false;   // `low` itself is out
  bool below_high = false;  // `high` itself is out
  bool integer = false;     // no fraction
  int32_t multiple_of = 1;  // above 1 only for integers
};

// Numbers of up to 16 digits before the point and 15 behind, without exponents, within the bounds.
// May be empty (no final state can be reached).
ByteAutomaton NumbersWithin(const NumberBounds& bounds);

}  // namespace terrace::grammar

#endif  // TERRACE_TEXT_GRAMMAR_JSON_NUMBER_H_
