// Sizes that the house allows, and what is larger for now. An allowance may shrink, never grow, and
// goes when it is not needed; a new one needs a reason that a reader accepts.
#ifndef TERRACE_HOUSE_RATCHET_H_
#define TERRACE_HOUSE_RATCHET_H_

#include <string>
#include <vector>

namespace terrace::house {

inline constexpr int kFileLines = 600;
inline constexpr int kHeaderLines = 250;  // A header is a contract.
inline constexpr int kFunctionLines = 70;

struct Exemption {
  const char* prefix;  // Of the path.
  const char* reason;
};
inline constexpr Exemption kExempt[] = {
    {"src/ops/cpu/kernels", "kernels are long and flat: loop nests, unrolled, for each format"},
    {"src/ops/cpu/simd_", "one short function an instruction, for each instruction set"},
};

struct Allowance {
  std::string name;  // The file's path; for a function a blank and its name follow.
  int lines;
  const char* reason;
};

inline const std::vector<Allowance>& FileAllowances() {
  static const std::vector<Allowance> list = {};
  return list;
}

inline const std::vector<Allowance>& FunctionAllowances() {
  static const std::vector<Allowance> list = {};
  return list;
}

}  // namespace terrace::house

#endif  // TERRACE_HOUSE_RATCHET_H_
