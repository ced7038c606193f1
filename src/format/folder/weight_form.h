// Finds in which form a checkpoint stores a weight matrix, and the recipe that reads it.
#ifndef TERRACE_FORMAT_FOLDER_WEIGHT_FORM_H_
#define TERRACE_FORMAT_FOLDER_WEIGHT_FORM_H_

#include <string>
#include <string_view>
#include <unordered_map>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "format/folder/hf_config.h"
#include "format/folder/recipe.h"

namespace terrace::format {

// `config` and `reader` must outlive it.
class WeightForms {
 public:
  WeightForms(const CheckpointConfig* config, const RecipeReader* reader);

  // The tensor's index, or Recipe::kNone.
  uint32_t Find(std::string_view name) const;
  const SafeTensor& tensor(uint32_t index) const { return reader_->tensors()[index]; }

  // True if "<name>.weight" or a packed form of it is there.
  bool Has(const std::string& name) const;
  // A matrix y = W x stored under `name` in whatever form, rows in the stored order.
  absl::StatusOr<Recipe> Matrix(const std::string& name) const;
  // `tensor` of floats as it is: its last dimension is a row, all before it are rows.
  absl::StatusOr<Recipe> Plain(uint32_t tensor) const;

 private:
  absl::StatusOr<Recipe> Fp8(const std::string& name, uint32_t weight) const;
  absl::StatusOr<Recipe> Int8(const std::string& name, uint32_t weight) const;
  absl::StatusOr<Recipe> Packed(const std::string& name, uint32_t weight) const;
  absl::StatusOr<Recipe> QWeight(const std::string& name, uint32_t weight) const;
  // Checks that `tensor` is there and has this many elements (and for ints, is I32).
  absl::Status Expect(uint32_t tensor, const std::string& name, int64_t rows, int64_t cols,
                      bool ints) const;

  const CheckpointConfig& config_;
  const RecipeReader* reader_;
  std::unordered_map<std::string_view, uint32_t> index_;
};

}  // namespace terrace::format

#endif  // TERRACE_FORMAT_FOLDER_WEIGHT_FORM_H_
