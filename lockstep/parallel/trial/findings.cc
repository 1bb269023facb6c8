#include "lockstep/parallel/trial/findings.h"

#include <array>
#include <sstream>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/types.h>

namespace lockstep {

using torch::Tensor;

namespace {

// Separates the fields of a message between ranks. It occurs in no text.
constexpr char kSeparator = '\x1f';

std::string message_of(const Findings& findings) {
  std::vector<std::string> parts;
  for (const Outcome& outcome : {findings.module, findings.loss}) {
    parts.push_back(fmt::format("{}", static_cast<int>(outcome.state)));
    parts.push_back(outcome.reason);
  }
  if (findings.problem) {
    const Problem& problem = *findings.problem;
    parts.push_back(fmt::format("{}", static_cast<int>(problem.code.value)));
    for (const auto& text :
         {problem.what, problem.expected, problem.got, problem.fix}) {
      parts.push_back(text);
    }
  }
  return fmt::format("{}", fmt::join(parts, std::string(1, kSeparator)));
}

Findings findings_of(const std::string& message) {
  std::vector<std::string> parts;
  std::istringstream text(message + kSeparator);
  for (std::string part; std::getline(text, part, kSeparator);) {
    parts.push_back(part);
  }
  const auto outcome_at = [&](size_t i) {
    return Outcome{.state = static_cast<CheckState>(std::stoi(parts.at(i))),
                   .reason = parts.at(i + 1)};
  };
  Findings findings{
      .problem = {}, .module = outcome_at(0), .loss = outcome_at(2)};
  if (parts.size() > 4) {
    findings.problem =
        Problem{.code = static_cast<ErrorCode>(std::stoi(parts.at(4))),
                .what = parts.at(5),
                .expected = parts.at(6),
                .got = parts.at(7),
                .fix = parts.at(8)};
  }
  return findings;
}

/// Returns the combined outcome of a check on two ranks. If one of them can't
/// make the check, the outcome is impossible. Otherwise, if one of them could
/// not decide yet because it had no samples, the check stays pending.
Outcome combine(const Outcome& a, const Outcome& b) {
  for (const CheckState state :
       {CheckState::kImpossible, CheckState::kPending}) {
    if (a.state == state) return a;
    if (b.state == state) return b;
  }
  return a;
}

}  // namespace

std::string to_string(CheckState state) {
  constexpr std::array kNames{"pending", "passed", "impossible", "off"};
  return kNames.at(static_cast<size_t>(state));
}

bool is_any(const ProcessGroup& world, bool one) {
  if (world.size() == 1) return one;
  Tensor flag = torch::tensor({one ? 1 : 0});
  world.all_reduce(flag, ReduceOp::MAX);
  return flag.item<int>() != 0;
}

void agree(const ProcessGroup& world, Findings& findings) {
  if (world.size() == 1) return;
  const std::vector<std::string> messages =
      world.all_gather_text(message_of(findings));
  Findings common = findings_of(messages.front());
  for (size_t rank = 0; rank < messages.size(); ++rank) {
    Findings other = findings_of(messages[rank]);
    if (other.problem && !common.problem) {
      common.problem = std::move(other.problem);
    }
    common.module = combine(common.module, other.module);
    common.loss = combine(common.loss, other.loss);
  }
  findings = std::move(common);
}

}  // namespace lockstep
