#include <algorithm>

#include <fmt/format.h>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/launchers.h"
#include "lockstep/store/socket_address.h"

namespace lockstep {
namespace {

constexpr auto kUri = "OMPI_MCA_orte_hnp_uri";

/// Returns the first IPv4 address of mpirun itself, which is where rank 0 is
/// unless the hosts were chosen otherwise:
/// "211550208.0;tcp://192.0.2.2,10.0.0.1:52967;tcp6://[fd00::2]:41365".
std::string address_of_mpirun() {
  constexpr std::string_view kScheme = ";tcp://";
  const std::string uri = env(kUri).value_or("");
  const size_t at = uri.find(kScheme);
  std::string address;
  if (at != std::string::npos) {
    const size_t begin = at + kScheme.size();
    address = uri.substr(begin, uri.find_first_of(",:;", begin) - begin);
  }
  if (!address.empty() &&
      address.find_first_not_of("0123456789.") == std::string::npos) {
    return address;
  }
  throw InvalidArgument(
      "env", {.code = ErrorCode::kBadVariable,
              .what = "the ranks are on several hosts and nothing says where "
                      "rank 0 is",
              .expected = fmt::format("MASTER_ADDR, or an address in {}", kUri),
              .got = "'" + uri + "'",
              .fix = "mpirun -x MASTER_ADDR=<rank 0's host> ..."});
}

}  // namespace

std::optional<Environment> openmpi_environment() {
  if (!env("OMPI_COMM_WORLD_SIZE") && !env("OMPI_COMM_WORLD_RANK")) {
    return std::nullopt;
  }
  const std::string launcher = "mpirun";
  Environment result;
  result.launcher = "openmpi";
  result.world_size =
      launcher_number("OMPI_COMM_WORLD_SIZE", 1, kMaxRanks, launcher);
  result.rank = launcher_number("OMPI_COMM_WORLD_RANK", 0,
                                result.world_size - 1, launcher);
  if (result.world_size == 1) return result;
  result.local_world_size = launcher_number("OMPI_COMM_WORLD_LOCAL_SIZE", 1,
                                            result.world_size, launcher);
  result.local_rank = launcher_number(
      "OMPI_COMM_WORLD_LOCAL_RANK", 0,
      std::min(result.local_world_size - 1, result.rank), launcher);
  result.node_rank = result.rank / result.local_world_size;
  const auto name = env("PMIX_NAMESPACE");
  result.run_id =
      "openmpi-" +
      (name ? *name : launcher_text("OMPI_MCA_ess_base_jobid", launcher));
  result.master_ports = candidate_ports(result.run_id);
  if (result.local_world_size == result.world_size) {
    result.master_addr = store::loopback_host();
  } else if (!env("MASTER_ADDR")) {
    result.master_addr = address_of_mpirun();
  }
  return result;
}

}  // namespace lockstep
