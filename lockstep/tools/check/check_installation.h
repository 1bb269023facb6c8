#pragma once

#include <functional>
#include <string>
#include <vector>

#include <torch/arg.h>

#include "lockstep/base/json.h"
#include "lockstep/device/device.h"
#include "lockstep/device/links/link_check.h"
#include "lockstep/tools/check/diagnose.h"

namespace lockstep::tools {

/// Options of a check.
struct CheckOptions {
  TORCH_ARG(LinkCheckOptions, links);
  /// Also runs collectives, and trains on one device, with DataParallel and
  /// with DistributedDataParallel.
  TORCH_ARG(bool, full) = false;
};

struct InstallationCheck {
  std::vector<Finding> findings;
  /// The findings, the links and, for a bug report, the commands that were run
  /// and the ends of their output.
  nlohmann::ordered_json details;

  int64_t count(Verdict verdict) const;
};

/// Checks the machine, the links between `devices` and, if options.full(),
/// collectives with one rank per device and that a few training steps end with
/// the same parameters on one device, with DataParallel and with
/// DistributedDataParallel. These run `program` in processes of their own.
/// Calls `on_finding` with each finding when it is known.
InstallationCheck check_installation(
    const std::string& program, const std::vector<Device>& devices,
    const CheckOptions& options,
    const std::function<void(const Finding&)>& on_finding);

/// Returns "ok", "warn" or "fail".
std::string name_of(Verdict verdict);

}  // namespace lockstep::tools
