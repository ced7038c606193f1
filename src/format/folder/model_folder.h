// Opens a checkpoint: a folder with config.json, safetensors files (one, or shards with an index),
// and what describes its text: tokenizer.json, tokenizer_config.json, generation_config.json,
// chat_template.jinja. Nothing in it is trusted.
#ifndef TERRACE_FORMAT_FOLDER_MODEL_FOLDER_H_
#define TERRACE_FORMAT_FOLDER_MODEL_FOLDER_H_

#include <string>

#include "absl/status/statusor.h"
#include "format/model_source.h"

namespace terrace::format {

// Reads all headers and small files, and no weights. The result looks like a GGUF file's: the same
// metadata keys and tensor names, with the text of tokenizer.json under
// "tokenizer.huggingface.json", and what was odd but usable under "terrace.notes". Errors name the
// file or tensor: NotFound for missing files (all of those that the index names, as after a
// download that broke off), InvalidArgument, DataLoss and Unimplemented as in safetensors.h and
// hf_config.h.
absl::StatusOr<ModelSource> OpenModelFolder(const std::string& folder);

}  // namespace terrace::format

#endif  // TERRACE_FORMAT_FOLDER_MODEL_FOLDER_H_
