#include "llama_peer.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "base/status.h"
#include "bench.h"

namespace terrace::bench {
namespace {

constexpr int32_t kMaxSequences = 16;

// The library's structs are passed by value. On the ABIs that it is built for, a struct of this
// size lies in memory, so one that begins alike and is longer than theirs can stand for it.
struct alignas(8) ContextParams {
  uint32_t n_ctx;
  uint32_t n_batch;
  uint32_t n_ubatch;
  uint32_t n_seq_max;
  unsigned char rest[1008];
};
struct alignas(8) ModelParams {
  unsigned char all[1024];
};
struct Batch {
  int32_t n_tokens;
  int32_t* token;
  float* embd;
  int32_t* pos;
  int32_t* n_seq_id;
  int32_t** seq_id;
  int8_t* logits;
};

}  // namespace

struct LlamaPeer::Functions {
  void* library = nullptr;
  void (*log_set)(void (*)(int, const char*, void*), void*);
  void (*load_all)(const char* folder);
  void (*backend_init)();
  ModelParams (*model_defaults)();
  ContextParams (*context_defaults)();
  void* (*model_load)(const char* path, ModelParams params);
  void (*model_free)(void* model);
  const void* (*model_vocab)(const void* model);
  int32_t (*vocab_size)(const void* vocab);
  void* (*context_new)(void* model, ContextParams params);
  void (*context_free)(void* context);
  void (*set_threads)(void* context, int32_t one, int32_t many);
  int32_t (*decode)(void* context, Batch batch);
  void (*synchronize)(void* context);
  void* (*memory)(void* context);
  bool (*remove)(void* memory, int32_t sequence, int32_t from, int32_t to);

  template <typename F>
  void Find(const char* name, F** function, std::string* missing) {
    *function = reinterpret_cast<F*>(dlsym(library, name));
    if (*function == nullptr) *missing += fmt::format(" {}", name);
  }
};

struct LlamaPeer::Session {
  void* context = nullptr;
  void* memory = nullptr;
  std::vector<int32_t> held;  // tokens of each sequence
};

std::string FindLlamaLibrary(const std::string& wanted, const std::string& cache_folder) {
  if (!wanted.empty()) return wanted;
  if (const char* set = std::getenv("TERRACE_LLAMA_LIBRARY"); set != nullptr && *set != 0) {
    return set;
  }
  namespace fs = std::filesystem;
  for (const fs::path& root : {fs::path("."), fs::path(cache_folder)}) {
    std::error_code error;
    const fs::path folder = root / "node_modules/@node-llama-cpp/linux-x64/bins/linux-x64";
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
      const std::string name = entry.path().filename().string();
      // The common code that its own programs share has a name that begins alike.
      if (name.starts_with("libllama.") && name.ends_with(".so")) return entry.path().string();
    }
  }
  return "";
}

absl::StatusOr<std::unique_ptr<LlamaPeer>> LlamaPeer::Load(const std::string& library, int threads,
                                                           const Clock* clock) {
  auto f = std::make_unique<Functions>();
  f->library = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (f->library == nullptr) return absl::NotFoundError(dlerror());
  std::string missing;
  f->Find("llama_log_set", &f->log_set, &missing);
  f->Find("ggml_backend_load_all_from_path", &f->load_all, &missing);
  f->Find("llama_backend_init", &f->backend_init, &missing);
  f->Find("llama_model_default_params", &f->model_defaults, &missing);
  f->Find("llama_context_default_params", &f->context_defaults, &missing);
  f->Find("llama_model_load_from_file", &f->model_load, &missing);
  f->Find("llama_model_free", &f->model_free, &missing);
  f->Find("llama_model_get_vocab", &f->model_vocab, &missing);
  f->Find("llama_vocab_n_tokens", &f->vocab_size, &missing);
  f->Find("llama_init_from_model", &f->context_new, &missing);
  f->Find("llama_free", &f->context_free, &missing);
  f->Find("llama_set_n_threads", &f->set_threads, &missing);
  f->Find("llama_decode", &f->decode, &missing);
  f->Find("llama_synchronize", &f->synchronize, &missing);
  f->Find("llama_get_memory", &f->memory, &missing);
  f->Find("llama_memory_seq_rm", &f->remove, &missing);
  if (!missing.empty()) {
    return absl::FailedPreconditionError(fmt::format("{} has no{}", library, missing));
  }
  const ContextParams defaults = f->context_defaults();
  if (defaults.n_ctx != 512 || defaults.n_batch != 2048 || defaults.n_ubatch != 512 ||
      defaults.n_seq_max != 1) {
    return absl::FailedPreconditionError(
        fmt::format("{} has parameters that this build does not know", library));
  }
  f->log_set([](int, const char*, void*) {}, nullptr);
  f->load_all(std::filesystem::path(library).parent_path().c_str());
  f->backend_init();
  return std::unique_ptr<LlamaPeer>(new LlamaPeer(std::move(f), threads, clock));
}

LlamaPeer::LlamaPeer(std::unique_ptr<Functions> functions, int threads, const Clock* clock)
    : functions_(std::move(functions)), threads_(threads), clock_(*clock), random_(1) {}

LlamaPeer::~LlamaPeer() { Close(); }  // the library stays loaded: it does not unload cleanly

void LlamaPeer::Close() {
  for (auto& [key, session] : sessions_) functions_->context_free(session->context);
  sessions_.clear();
  if (model_ != nullptr) functions_->model_free(model_);
  model_ = nullptr;
}

absl::Status LlamaPeer::Open(const std::string& path) {
  Close();
  model_ = functions_->model_load(path.c_str(), functions_->model_defaults());
  if (model_ == nullptr) {
    return absl::InvalidArgumentError(fmt::format("llama.cpp does not load {}", path));
  }
  vocab_ = functions_->vocab_size(functions_->model_vocab(model_));
  return absl::OkStatus();
}

absl::StatusOr<LlamaPeer::Session*> LlamaPeer::SessionFor(int32_t context, int32_t sequences) {
  std::unique_ptr<Session>& session = sessions_[{context, sequences}];
  if (session != nullptr) return session.get();
  ContextParams params = functions_->context_defaults();
  params.n_ctx = static_cast<uint32_t>((context + 256) / 256 * 256 * sequences);
  params.n_seq_max = static_cast<uint32_t>(sequences);
  auto made = std::make_unique<Session>();
  made->context = functions_->context_new(model_, params);
  if (made->context == nullptr) return absl::InternalError("llama.cpp makes no context");
  functions_->set_threads(made->context, threads_, threads_);
  made->memory = functions_->memory(made->context);
  made->held.resize(static_cast<size_t>(sequences));
  session = std::move(made);
  return session.get();
}

// Appends `tokens` random tokens to each of `sequences` sequences in one call.
absl::Status LlamaPeer::Run(Session* session, int32_t first_sequence, int32_t sequences,
                            int32_t tokens, bool logits) {
  const size_t count = static_cast<size_t>(sequences) * static_cast<size_t>(tokens);
  std::vector<int32_t> token, position, one(count, 1), sequence(count);
  std::vector<int32_t*> sequence_of(count);
  std::vector<int8_t> want(count, 0);
  for (int32_t s = 0; s < sequences; ++s) {
    int32_t& held = session->held[static_cast<size_t>(first_sequence + s)];
    for (int32_t i = 0; i < tokens; ++i) {
      const size_t at = token.size();
      token.push_back(static_cast<int32_t>(random_.Below(static_cast<uint64_t>(vocab_))));
      position.push_back(held + i);
      sequence[at] = first_sequence + s;
      sequence_of[at] = &sequence[at];
    }
    if (logits) want[token.size() - 1] = 1;
    held += tokens;
  }
  const Batch batch = {
      static_cast<int32_t>(count), token.data(), nullptr, position.data(), one.data(),
      sequence_of.data(),          want.data()};
  const int32_t code = functions_->decode(session->context, batch);
  if (code != 0) return absl::InternalError(fmt::format("llama_decode gives {}", code));
  functions_->synchronize(session->context);
  return absl::OkStatus();
}

namespace {

// Runs `fn` on a new thread. Its library sets up the matrix unit once a thread and expects it to
// stay so; Terrace gives it back after each use.
template <typename F>
absl::StatusOr<double> OnNewThread(F fn) {
  absl::StatusOr<double> result = 0.0;
  std::thread([&] { result = fn(); }).join();
  return result;
}

}  // namespace

absl::StatusOr<double> LlamaPeer::Prefill(int32_t tokens) {
  return OnNewThread([&] { return PrefillHere(tokens); });
}

absl::StatusOr<double> LlamaPeer::Decode(int32_t context, int32_t batch, int steps,
                                         int32_t tokens) {
  return OnNewThread([&] { return DecodeHere(context, batch, steps, tokens); });
}

absl::StatusOr<double> LlamaPeer::PrefillHere(int32_t tokens) {
  ASSIGN_OR_RETURN(Session * session, SessionFor(2048, 1));
  functions_->remove(session->memory, 0, -1, -1);
  session->held[0] = 0;
  const int64_t start_us = clock_.NowUs();
  RETURN_IF_ERROR(Run(session, 0, 1, tokens, true));
  return static_cast<double>(clock_.NowUs() - start_us) / 1e6;
}

absl::StatusOr<double> LlamaPeer::DecodeHere(int32_t context, int32_t batch, int steps,
                                             int32_t tokens) {
  if (context >= 2048 && batch > 1) return absl::InvalidArgumentError("too much for one context");
  ASSIGN_OR_RETURN(Session * session, SessionFor(context, context < 2048 ? kMaxSequences : 1));
  for (int32_t i = 0; i < batch; ++i) {
    int32_t& held = session->held[static_cast<size_t>(i)];
    if (held > context) functions_->remove(session->memory, i, context, -1);
    held = std::min(held, context);
    while (held < context) {
      RETURN_IF_ERROR(Run(session, i, 1, std::min(context - held, 512), false));
    }
  }
  std::vector<double> times;
  for (int step = 0; step <= steps; ++step) {
    const int64_t start_us = clock_.NowUs();
    RETURN_IF_ERROR(Run(session, 0, batch, tokens, true));
    if (step > 0) times.push_back(static_cast<double>(clock_.NowUs() - start_us) / 1e6);
  }
  return Median(std::move(times));
}

}  // namespace terrace::bench
