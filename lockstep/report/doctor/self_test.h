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
  std::string found;  ///< in a line or some
};

struct SelfTest {
  std::vector<SelfTestPart> parts;
  /// For a report of a fault: the parts, what is known of the machine, the
  /// commands and the end of what they wrote.
  nlohmann::ordered_json details;

  bool is_ok() const;
};

/// Tests an installation on `devices`: the machine, the links between devices,
/// collectives of as many ranks, and that a few steps of training have the same
/// parameters at the end on one device, with DataParallel and with
/// DistributedDataParallel. Each in processes of its own, by the program
/// `program`. `on_part` is called with each part as it is known.
SelfTest run_self_test(const std::string& program,
                       const std::vector<Device>& devices,
                       const std::function<void(const SelfTestPart&)>& on_part);

}  // namespace lockstep::report
