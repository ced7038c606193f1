// Which part of a tensor somebody wants: what one device of a group holds of it.
#ifndef TERRACE_TENSOR_CUT_H_
#define TERRACE_TENSOR_CUT_H_

#include <optional>
#include <vector>

#include "base/index_range.h"

namespace terrace {

// Of a tensor [matrices, rows, cols]. One of two dimensions is a single matrix; one of one
// dimension is a single matrix with a column, so that its elements are rows.
struct TensorCut {
  std::optional<IndexRange> matrices;  // none: all
  // Runs of rows one after the other, in any order, also several times; empty: all rows.
  std::vector<IndexRange> rows;
  std::optional<IndexRange> cols;  // whole blocks of the tensor's type; none: all

  bool whole() const { return !matrices && rows.empty() && !cols; }
};

}  // namespace terrace

#endif  // TERRACE_TENSOR_CUT_H_
