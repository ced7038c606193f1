#include "ops/types.h"

namespace terrace::ops {

const char* LayoutName(Layout layout) {
  switch (layout) {
    case Layout::kPlain:
      return "plain";
    case Layout::kRows16:
      return "r16-1";
  }
  return "unknown";
}

}  // namespace terrace::ops
