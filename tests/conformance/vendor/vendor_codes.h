// Every error code that a vendor's library may answer with, as ranges, first to last. From the
// enumerations of their public headers.
#ifndef TERRACE_TESTS_CONFORMANCE_VENDOR_CODES_H_
#define TERRACE_TESTS_CONFORMANCE_VENDOR_CODES_H_

#include <span>
#include <vector>

namespace terrace::device {

struct CodeRange {
  int first, last;
};

// CUresult of CUDA 13; MUSA has the same numbers wherever its are known.
inline constexpr CodeRange kCudaCodes[] = {
    {1, 8},     {34, 34},   {36, 36},   {46, 46},   {100, 102}, {200, 202}, {205, 226}, {300, 304},
    {400, 402}, {500, 500}, {600, 600}, {700, 705}, {708, 721}, {800, 812}, {900, 917}, {999, 999}};
// hipError_t of HIP 6.3
inline constexpr CodeRange kHipCodes[] = {
    {1, 4},     {9, 9},     {35, 35},   {52, 52},   {98, 98},   {100, 101},  {200, 201}, {209, 209},
    {300, 301}, {400, 401}, {500, 500}, {600, 600}, {700, 702}, {704, 705},  {710, 710}, {712, 713},
    {719, 720}, {801, 801}, {900, 900}, {910, 910}, {999, 999}, {1052, 1054}};
// aclError of CANN 8.1
inline constexpr CodeRange kAclCodes[] = {{100000, 100045}, {107000, 107040}, {107042, 107045},
                                          {200000, 200007}, {207000, 207021}, {300000, 300000},
                                          {500000, 500005}, {507000, 507057}, {507899, 507916}};
// cnrtRet_t of CNRT 6.14
inline constexpr CodeRange kCnrtCodes[] = {
    {1, 1},           {100002, 100002}, {100004, 100007}, {100010, 100010}, {100014, 100014},
    {100050, 100051}, {100060, 100060}, {100100, 100100}, {100128, 100128}, {100301, 100301},
    {100360, 100366}, {632014, 632015}, {632019, 632019}, {999991, 999991}};

inline std::vector<int> CodesOf(std::span<const CodeRange> ranges) {
  std::vector<int> codes;
  for (const CodeRange& range : ranges) {
    for (int code = range.first; code <= range.last; ++code) codes.push_back(code);
  }
  return codes;
}

}  // namespace terrace::device

#endif  // TERRACE_TESTS_CONFORMANCE_VENDOR_CODES_H_
