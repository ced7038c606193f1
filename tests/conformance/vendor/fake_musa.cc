// A stand-in for the MUSA driver, whose entry points are CUDA's under other names. Some carry the
// suffix "_v2" and some do not, as in the maker's own table.
#define DRIVER(name) mu##name
#define SUFFIXED(name) mu##name
namespace {
constexpr int kMajor = 3, kMinor = 1;
}
#include "driver_shape.h"
