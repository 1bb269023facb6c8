#include "lockstep/parallel/replicas/first_step.h"

#include <array>
#include <sstream>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/types.h>

#include "lockstep/base/log.h"

namespace lockstep {

using torch::Tensor;

namespace {

// Separates the fields of a message between ranks. It occurs in no text.
constexpr char kSeparator = '\x1f';

std::string message_of(const FirstStep::Findings& findings) {
  std::vector<std::string> parts;
  for (const FirstStep::Outcome& outcome : {findings.module, findings.loss}) {
    parts.push_back(fmt::format("{}", static_cast<int>(outcome.check)));
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

FirstStep::Findings findings_of(const std::string& message) {
  std::vector<std::string> parts;
  std::istringstream text(message + kSeparator);
  for (std::string part; std::getline(text, part, kSeparator);) {
    parts.push_back(part);
  }
  const auto outcome_at = [&](size_t i) {
    return FirstStep::Outcome{
        .check = static_cast<StepCheck>(std::stoi(parts.at(i))),
        .reason = parts.at(i + 1)};
  };
  FirstStep::Findings findings{
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
FirstStep::Outcome combine(const FirstStep::Outcome& a,
                           const FirstStep::Outcome& b) {
  for (const StepCheck check : {StepCheck::kImpossible, StepCheck::kPending}) {
    if (a.check == check) return a;
    if (b.check == check) return b;
  }
  return a;
}

}  // namespace

std::string to_string(StepCheck check) {
  constexpr std::array kNames{"pending", "passed", "impossible", "off"};
  return kNames.at(static_cast<size_t>(check));
}

FirstStep::FirstStep(bool is_on, bool warns) : warns_(warns) {
  if (!is_on) module_ = loss_ = StepCheck::kOff;
}

bool FirstStep::compares_module(int64_t build, bool has_gradients) const {
  if (module_ == StepCheck::kOff) return false;
  return build_ != build || (has_gradients && !has_compared_gradients_);
}

bool FirstStep::compares_loss(const ShardLoss& loss) const {
  // Two lambdas have two types, so the two losses of a GAN are compared
  // separately.
  return loss_ != StepCheck::kOff &&
         !losses_.contains(std::type_index(loss.target_type()));
}

bool FirstStep::any(const ProcessGroup& world, bool one) {
  if (world.size() == 1) return one;
  Tensor flag = torch::tensor({one ? 1 : 0});
  world.all_reduce(flag, ReduceOp::MAX);
  return flag.item<int>() != 0;
}

void FirstStep::agree(const ProcessGroup& world, Findings& findings) {
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

void FirstStep::note_module(const Outcome& outcome, int64_t build,
                            bool has_gradients) {
  if (outcome.check == StepCheck::kPending) return;
  module_ = outcome.check;
  build_ = build;
  has_compared_gradients_ = has_gradients;
  if (outcome.check == StepCheck::kImpossible) warn("replicas", outcome);
}

void FirstStep::note_loss(const Outcome& outcome, const ShardLoss& loss) {
  if (outcome.check == StepCheck::kPending) return;
  if (loss_ != StepCheck::kImpossible) loss_ = outcome.check;
  losses_.insert(std::type_index(loss.target_type()));
  if (outcome.check == StepCheck::kImpossible) warn("the loss", outcome);
}

void FirstStep::warn(const char* what, const Outcome& outcome) {
  if (reason_.empty()) reason_ = outcome.reason;
  if (!warns_) return;
  warn_once(fmt::format("first-step-{}-{}", what, outcome.reason), "parallel",
            fmt::format("the first step could not check {}: {}. Compare a "
                        "short run with one of a single device yourself; "
                        "verify_first_step(false) switches the check off",
                        what, outcome.reason));
}

}  // namespace lockstep
