// Opening a model as one member of a group: the part of each tensor that its share of the model is
// made of (model/share.h), as weights::OpenOptions takes it.
#ifndef TERRACE_ENGINE_MEMBER_H_
#define TERRACE_ENGINE_MEMBER_H_

#include <functional>

#include "absl/status/statusor.h"
#include "format/model_source.h"
#include "model/config.h"

namespace terrace::engine {

// Makes of a whole model what member share.rank holds of it. Errors as in model/share.h and
// format/cut_source.h.
std::function<absl::StatusOr<format::ModelSource>(format::ModelSource)> PartOfMember(
    const model::Share& share);

}  // namespace terrace::engine

#endif  // TERRACE_ENGINE_MEMBER_H_
