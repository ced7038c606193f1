#include "tensor/dtype.h"

#include <array>

namespace terrace {
namespace {

struct Row {
  DTypeInfo info;
  int gguf;  // GGUF's number for the type, -1 if it has none
};

// In the order of the enum.
constexpr std::array<Row, kDTypeCount> kTypes = {{
    {{"F32", 1, 4, false}, 0},       {{"F16", 1, 2, false}, 1},
    {{"BF16", 1, 2, false}, 30},     {{"F8_E4M3", 1, 1, false}, -1},
    {{"F8_E5M2", 1, 1, false}, -1},  {{"I8", 1, 1, false}, 24},
    {{"I16", 1, 2, false}, 25},      {{"I32", 1, 4, false}, 26},
    {{"I64", 1, 8, false}, 27},      {{"F64", 1, 8, false}, 28},
    {{"Q4_0", 32, 18, true}, 2},     {{"Q4_1", 32, 20, true}, 3},
    {{"Q5_0", 32, 22, true}, 6},     {{"Q5_1", 32, 24, true}, 7},
    {{"Q8_0", 32, 34, true}, 8},     {{"Q2_K", 256, 84, true}, 10},
    {{"Q3_K", 256, 110, true}, 11},  {{"Q4_K", 256, 144, true}, 12},
    {{"Q5_K", 256, 176, true}, 13},  {{"Q6_K", 256, 210, true}, 14},
    {{"IQ4_NL", 32, 18, true}, 20},  {{"IQ4_XS", 256, 136, true}, 23},
    {{"IQ3_S", 256, 110, true}, 21}, {{"MXFP4", 32, 17, true}, 39},
    {{"TQ2_0", 256, 66, true}, 35},  {{"W8A8", 32, 32, true, 4}, -1},
}};

}  // namespace

const DTypeInfo& Info(DType dtype) { return kTypes[static_cast<size_t>(dtype)].info; }

std::optional<DType> DTypeFromName(std::string_view name) {
  for (int i = 0; i < kDTypeCount; ++i) {
    if (kTypes[i].info.name == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

std::optional<DType> DTypeFromGguf(uint32_t type) {
  for (int i = 0; i < kDTypeCount; ++i) {
    if (kTypes[i].gguf >= 0 && static_cast<uint32_t>(kTypes[i].gguf) == type) {
      return static_cast<DType>(i);
    }
  }
  return std::nullopt;
}

int GgufType(DType dtype) { return kTypes[static_cast<size_t>(dtype)].gguf; }

}  // namespace terrace
