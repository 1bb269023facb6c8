// The program on the simulated accelerator, which is installed before anything
// else. Its children and the workers of `run` inherit the environment:
//
//   SIM_DEVICES=2 SIM_SEED=7 SIM_MEMORY=64Mi SIM_FAULTS=corrupt:0>1,slow:1:3
//
// SIM_MEMORY is the memory of each device, in bytes, Ki, Mi or Gi. SIM_FAULTS
// is a list of
//
//   no-peer       copies between devices go over the host
//   corrupt:0>1   copies from device 0 to device 1 arrive changed
//   drop:0>1      they write nothing
//   hang:0>1      they never end
//   allocation:N  the n-th allocation of each process fails
//   kernel:N      the n-th kernel of each process fails
//   slow:1:3      kernels of device 1 take 3 times as long
//
// SIM_FAULT_RANK=1 gives the faults to rank 1 only.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "lockstep/base/env.h"
#include "lockstep/base/numbers.h"
#include "lockstep/cli/program/app.h"
#include "tests/accelerator/sim/accelerator.h"

namespace {

using lockstep::sim::Faults;

template <class T>
T to_number(std::string_view text, std::string_view name) {
  const auto number = lockstep::parse_number<T>(text);
  if (number) return *number;
  throw std::invalid_argument(std::string(name) + ": '" + std::string(text) +
                              "' is not a number");
}

/// Splits at the first `separator`. Without one, the second part is empty.
std::pair<std::string_view, std::string_view> cut(std::string_view text,
                                                  char separator) {
  const size_t at = text.find(separator);
  if (at == std::string_view::npos) return {text, {}};
  return {text.substr(0, at), text.substr(at + 1)};
}

int64_t to_bytes(std::string_view text) {
  int shift = 0;
  if (text.ends_with("Ki")) shift = 10;
  if (text.ends_with("Mi")) shift = 20;
  if (text.ends_with("Gi")) shift = 30;
  if (shift > 0) text.remove_suffix(2);
  return to_number<int64_t>(text, "SIM_MEMORY") << shift;
}

lockstep::sim::Options options_of_environment() {
  lockstep::sim::Options options;
  if (const auto text = lockstep::env("SIM_DEVICES")) {
    options.devices = to_number<int>(*text, "SIM_DEVICES");
  }
  if (const auto text = lockstep::env("SIM_SEED")) {
    options.seed = to_number<uint64_t>(*text, "SIM_SEED");
  }
  if (const auto text = lockstep::env("SIM_MEMORY")) {
    options.memory_bytes = to_bytes(*text);
  }
  return options;
}

/// Changes one bit in each kilobyte, as a broken link may.
void corrupt(std::byte* bytes, size_t size) {
  for (size_t i = 0; i < size; i += 1024) bytes[i] ^= std::byte{0x40};
}

void add_fault(std::string_view text, Faults& faults) {
  constexpr std::string_view kName = "SIM_FAULTS";
  const auto [kind, value] = cut(text, ':');
  if (kind == "no-peer") {
    faults.peer_access = false;
  } else if (kind == "allocation") {
    faults.failing_allocation = to_number<int64_t>(value, kName);
  } else if (kind == "kernel") {
    faults.failing_kernel = to_number<int64_t>(value, kName);
  } else if (kind == "slow") {
    const auto [device, factor] = cut(value, ':');
    faults.slow_device = to_number<int>(device, kName);
    faults.slow_factor = to_number<int>(factor, kName);
  } else {
    const auto [first, second] = cut(value, '>');
    const int from = to_number<int>(first, kName);
    const int to = to_number<int>(second, kName);
    const auto is_link = [from, to](int a, int b) {
      return a == from && b == to;
    };
    if (kind == "corrupt") {
      faults.corrupt_copy = [is_link](int a, int b, std::byte* bytes,
                                      size_t size) {
        if (is_link(a, b)) corrupt(bytes, size);
      };
    } else if (kind == "drop") {
      faults.drop_copy = is_link;
    } else if (kind == "hang") {
      faults.hang_copy = is_link;
    } else {
      throw std::invalid_argument("SIM_FAULTS: unknown fault '" +
                                  std::string(text) + "'");
    }
  }
}

void set_faults_of_environment() {
  const auto text = lockstep::env("SIM_FAULTS");
  const auto rank = lockstep::env("SIM_FAULT_RANK");
  if (!text || (rank && rank != lockstep::env("RANK"))) return;
  Faults faults;
  std::string_view rest = *text;
  while (!rest.empty()) {
    const auto [fault, others] = cut(rest, ',');
    add_fault(fault, faults);
    rest = others;
  }
  lockstep::sim::set_faults(std::move(faults));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    lockstep::sim::install(options_of_environment());
    set_faults_of_environment();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "sim_lockstep: %s\n", error.what());
    return EXIT_FAILURE;
  }
  const int result = lockstep::cli::run_program(argc, argv);
  lockstep::sim::stop_streams();
  return result;
}
