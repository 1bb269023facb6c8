#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/base/json.h"
#include "lockstep/device/device.h"

namespace lockstep::report {

/// One part of a self-test.
struct SelfTestPart {
  std::string name;
  bool is_ok = false;
  std::string found;  ///< one or a few lines
};

struct SelfTest {
  std::vector<SelfTestPart> parts;
  /// Details for a bug report: the parts, the facts about the machine, the
  /// commands and the end of their output.
  nlohmann::ordered_json details;

  bool is_ok() const;
};

/// Tests an installation on `devices`: the machine, the links between devices,
/// and collectives with one rank per device. It also checks that a few training
/// steps end with the same parameters on one device, with DataParallel and with
/// DistributedDataParallel. Each test runs `program` in separate processes.
/// `on_part` is called with each part when its result is known.
SelfTest run_self_test(const std::string& program,
                       const std::vector<Device>& devices,
                       const std::function<void(const SelfTestPart&)>& on_part);

}  // namespace lockstep::report
