// Operators on a Cambricon MLU. The chip holds weights and KV. Its operator library (CNNL) has no
// public headers: what public programs call of it can be used on request, each operator only if it
// gives the right result in a trial at the start; the host computes the others.
#ifndef TERRACE_OPS_CAMBRICON_CAMBRICON_BACKEND_H_
#define TERRACE_OPS_CAMBRICON_CAMBRICON_BACKEND_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "device/driver_device.h"
#include "ops/backend.h"

namespace terrace::ops {

struct CambriconBackendOptions {
  bool library = false;      // use CNNL's operators
  std::string library_name;  // a test's, or empty
};

struct CambriconBackend {
  std::unique_ptr<Backend> backend;
  std::string note;  // which operators the host computes, and why
};

// `host` computes; `device` must outlive the backend. Never fails for what CNNL says or lacks.
absl::StatusOr<CambriconBackend> CreateCambriconBackend(
    device::DriverDevice* device, std::unique_ptr<Backend> host,
    const CambriconBackendOptions& options = {});

}  // namespace terrace::ops

#endif  // TERRACE_OPS_CAMBRICON_CAMBRICON_BACKEND_H_
