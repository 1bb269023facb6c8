#include "lockstep/parallel/ddp/reducer.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "lockstep/base/error.h"
#include "lockstep/parallel/exchange/verify_ranks.h"

namespace lockstep::ddp {

using torch::Tensor;
using torch::autograd::variable_list;

namespace {

constexpr double kMiB = 1 << 20;
// Small, so that the exchange starts early.
constexpr int64_t kFirstBucketBytes = 1 << 20;

void drop_ignored(ModuleHandle::Named& named,
                  const std::vector<std::string>& ignored) {
  std::erase_if(named, [&](const auto& item) {
    return std::find(ignored.begin(), ignored.end(), item.first) !=
           ignored.end();
  });
}

World group_of_all(const World& world) {
  std::vector<int> ranks(static_cast<size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return *world.new_group(ranks);
}

}  // namespace

std::shared_ptr<Reducer> Reducer::create(
    const World& world, ModuleHandle module,
    const DistributedDataParallelOptions& options) {
  drop_ignored(module.parameters, options.parameters_to_ignore());
  drop_ignored(module.buffers, options.parameters_to_ignore());
  verify_ranks(world, module);
  const auto reducer = std::shared_ptr<Reducer>(
      new Reducer(group_of_all(world), std::move(module), options));
  for (size_t p = 0; p < reducer->parameters_.size(); ++p) reducer->hook(p);
  return reducer;
}

Reducer::Reducer(const World& world, ModuleHandle module,
                 const DistributedDataParallelOptions& options)
    : options_(options), world_(world), module_(std::move(module)) {
  std::set<const void*> seen;
  for (const auto& [name, parameter] : module_.parameters) {
    if (!parameter.requires_grad()) {
      frozen_.emplace_back(name, parameter);
      continue;
    }
    if (!seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
    names_.push_back(name);
    parameters_.push_back(parameter);
  }
  if (parameters_.empty()) {
    throw InvalidArgument(
        "ddp", {.code = ErrorCode::kNothingToTrain,
                .what = "the module has no parameter that requires a gradient",
                .fix = "run it without DistributedDataParallel"});
  }
  if (!(options_.bucket_cap_mb() > 0)) {
    throw InvalidArgument("ddp",
                          {.code = ErrorCode::kBadOption,
                           .what = "there is no such bucket size",
                           .expected = "bucket_cap_mb above 0",
                           .got = fmt::format("{}", options_.bucket_cap_mb())});
  }
  device_ = parameters_[0].device();
  for (size_t p = 0; p < parameters_.size(); ++p) {
    if (parameters_[p].device() == device_) continue;
    throw InvalidArgument(
        "ddp", {.code = ErrorCode::kMixedDevices,
                .what = "the module is on several devices",
                .expected = fmt::format("'{}' on {}", names_[p], device_.str()),
                .got = parameters_[p].device().str(),
                .fix = "move it to one: module->to(device)"});
  }
  stream_.emplace(device_);
  accumulators_.resize(parameters_.size());
  is_unsynced_.assign(parameters_.size(), false);
  is_mixed_.assign(parameters_.size(), false);
  if (options_.init_sync()) {
    broadcast(world_, module_.parameters, 0);
    broadcast(world_, module_.buffers, 0);
  }
  changes_ = ParameterChanges(parameters_);
  packed_buffers_ = PackedTensors(module_.buffers);
  std::vector<size_t> order(parameters_.size());
  std::iota(order.rbegin(), order.rend(), 0);
  lay_out(order);
}

Reducer::~Reducer() {
  if (pass_) abandon();
  for (const Hooks& hooks : hooks_) {
    const auto accumulator = hooks.accumulator.lock();
    if (!accumulator) continue;
    accumulator->del_post_hook(hooks.after);
    std::erase_if(accumulator->pre_hooks(), [&](const auto& before) {
      return before.get() == hooks.before;
    });
  }
}

class Reducer::BeforeGradient : public torch::autograd::FunctionPreHook {
 public:
  BeforeGradient(Reducer* reducer, size_t p) : reducer_(reducer), p_(p) {}
  variable_list operator()(const variable_list& gradients) override {
    reducer_->before_gradient(p_);
    return gradients;
  }

 private:
  Reducer* reducer_;
  size_t p_;
};

void Reducer::hook(size_t p) {
  // Autograd itself keeps it by a weak pointer only.
  accumulators_[p] = torch::autograd::impl::grad_accumulator(parameters_[p]);
  auto before = std::make_unique<BeforeGradient>(this, p);
  Hooks hooks{.p = p, .accumulator = accumulators_[p], .before = before.get()};
  accumulators_[p]->add_pre_hook(std::move(before));
  hooks.after = accumulators_[p]->add_post_hook(
      std::make_unique<torch::autograd::utils::LambdaPostHook>(
          [this, p](const variable_list& outputs,
                    const variable_list& gradients) {
            on_gradient(p, gradients.empty() ? Tensor() : gradients[0]);
            return outputs;
          }));
  std::erase_if(hooks_,
                [](const Hooks& old) { return old.accumulator.expired(); });
  hooks_.push_back(std::move(hooks));
}

void Reducer::follow_parameters() {
  for (size_t p = 0; p < parameters_.size(); ++p) {
    const Tensor& parameter = parameters_[p];
    if (!parameter.requires_grad()) continue;
    const Tensor& view =
        buckets_[slots_[p].bucket].grads.gradients[slots_[p].index];
    const bool is_alike = parameter.scalar_type() == view.scalar_type() &&
                          parameter.device() == view.device() &&
                          parameter.sizes() == view.sizes();
    if (!is_alike && is_synced_) {
      give_up({.code = ErrorCode::kModuleChanged,
               .what = fmt::format("parameter '{}' was moved or cast after the "
                                   "module was wrapped",
                                   names_[p]),
               .expected = c10::str(view.dtype(), " ", view.sizes(), " on ",
                                    view.device()),
               .got = c10::str(parameter.dtype(), " ", parameter.sizes(),
                               " on ", parameter.device()),
               .fix = "call to(device) or to(dtype) before, or wrap the module "
                      "again"});
    }
    const auto now = torch::autograd::impl::grad_accumulator(parameter);
    if (is_alike && now != accumulators_[p]) hook(p);
  }
  for (const auto& [name, parameter] : frozen_) {
    if (!parameter.requires_grad() || !is_synced_) continue;
    give_up({.code = ErrorCode::kFrozenParameter,
             .what = fmt::format("parameter '{}' was frozen when the module "
                                 "was wrapped, and requires a gradient now, "
                                 "which would not be exchanged",
                                 name),
             .fix = "wrap the module again after requires_grad_(true)"});
  }
}

void Reducer::lay_out(const std::vector<size_t>& order) {
  const auto cap = static_cast<int64_t>(options_.bucket_cap_mb() * kMiB);
  buckets_ =
      make_buckets(world_, parameters_,
                   assign_buckets(parameters_, order,
                                  std::min(kFirstBucketBytes, cap), cap));
  slots_.assign(parameters_.size(), {});
  for (size_t b = 0; b < buckets_.size(); ++b) {
    for (size_t i = 0; i < buckets_[b].places.size(); ++i) {
      slots_[buckets_[b].places[i]] = {b, i};
    }
  }
}

void Reducer::follow_arrivals(int root, const std::vector<size_t>& arrivals) {
  if (follows_arrivals_) return;
  follows_arrivals_ = true;
  const bool varies =
      options_.find_unused_parameters() && !options_.static_graph();
  if (world_.size() == 1 || varies) return;
  std::vector<size_t> now;
  for (const Bucket& bucket : buckets_) {
    now.insert(now.end(), bucket.places.begin(), bucket.places.end());
  }
  std::vector<int64_t> order(arrivals.begin(), arrivals.end());
  for (const size_t p : now) {
    if (std::find(arrivals.begin(), arrivals.end(), p) == arrivals.end()) {
      order.push_back(static_cast<int64_t>(p));
    }
  }
  Tensor message = torch::tensor(order, torch::kInt64).to(device_);
  world_.broadcast(message, root);
  message = message.cpu();
  const auto* agreed = message.const_data_ptr<int64_t>();
  const std::vector<size_t> next(agreed, agreed + message.numel());
  if (next != now) lay_out(next);
}

void Reducer::set_hook(CommHook hook) {
  if (hook_) {
    throw InvalidArgument("ddp", {.code = ErrorCode::kCommHook,
                                  .what = "there is a comm hook already",
                                  .fix = "register one, once"});
  }
  hook_ = std::move(hook);
}

void Reducer::check_usable() const {
  if (failure_.empty()) return;
  throw InvalidArgument(
      "ddp",
      {.code = ErrorCode::kFailedBefore,
       .what = "an earlier step failed, so the ranks may differ: " + failure_,
       .fix = "make a new DistributedDataParallel from a checkpoint"});
}

void Reducer::give_up(const Problem& problem) {
  const InvalidArgument error("ddp", problem);
  failure_ = error.what();
  world_.fail(failure_);
  throw error;
}

std::string Reducer::names_of(const std::vector<size_t>& places) const {
  constexpr size_t kMost = 10;
  std::string text;
  for (size_t i = 0; i < std::min(places.size(), kMost); ++i) {
    text += fmt::format("{}'{}'", i == 0 ? "" : ", ", names_[places[i]]);
  }
  if (places.size() > kMost) {
    text += fmt::format(" and {} more", places.size() - kMost);
  }
  return text;
}

std::vector<std::vector<size_t>> Reducer::assignment() const {
  std::vector<std::vector<size_t>> assignment;
  for (const Bucket& bucket : buckets_) assignment.push_back(bucket.places);
  return assignment;
}

}  // namespace lockstep::ddp
