// A stand-in for NVIDIA's driver, by the names that its library exports.
#define DRIVER(name) cu##name
#define SUFFIXED(name) cu##name##_v2
namespace {
constexpr int kMajor = 9, kMinor = 0;
}
#include "driver_shape.h"
