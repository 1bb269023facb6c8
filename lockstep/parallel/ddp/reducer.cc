#include "lockstep/parallel/ddp/reducer.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/graph_task.h>

#include "lockstep/parallel/exchange/verify_ranks.h"
#include "lockstep/parallel/reduction/owned_gradient.h"

namespace lockstep::ddp {

using torch::Tensor;

namespace {

void drop_ignored(ModuleHandle::Named& named,
                  const std::vector<std::string>& ignored) {
  std::erase_if(named, [&](const auto& item) {
    return std::find(ignored.begin(), ignored.end(), item.first) !=
           ignored.end();
  });
}

/// Returns the names of the trained parameters, then those of the others.
std::vector<std::string> all_names(const TrainedParameters& trained) {
  std::vector<std::string> names = trained.names;
  for (const auto& [name, parameter] : trained.frozen) names.push_back(name);
  return names;
}

ProcessGroup group_of_all(const ProcessGroup& world) {
  std::vector<int> ranks(static_cast<size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return *world.new_group(ranks);
}

}  // namespace

// Construction, and functions for the owner of the module.

std::shared_ptr<Reducer> Reducer::create(
    const ProcessGroup& world, ModuleHandle module,
    const DistributedDataParallelOptions& options,
    std::shared_ptr<LocalGradients> local) {
  drop_ignored(module.parameters, options.parameters_to_ignore());
  drop_ignored(module.buffers, options.parameters_to_ignore());
  verify_ranks(world, module);
  return std::shared_ptr<Reducer>(new Reducer(
      group_of_all(world), std::move(module), options, std::move(local)));
}

Reducer::Reducer(const ProcessGroup& world, ModuleHandle module,
                 const DistributedDataParallelOptions& options,
                 std::shared_ptr<LocalGradients> local)
    : options_(options),
      world_(world),
      module_(std::move(module)),
      trained_(module_),
      parameters_(trained_.parameters),
      changes_(parameters_),
      common_state_(all_names(trained_)),
      rounds_(world, trained_.device, options.average()),
      forwards_([this](const WatchedForwards::Forward& forward) {
        on_output(forward);
      }),
      local_(std::move(local)) {
  if (!(options_.bucket_cap_mb() > 0)) {
    throw InvalidArgument("ddp",
                          {.code = ErrorCode::kBadOption,
                           .what = "there is no such bucket size",
                           .expected = "bucket_cap_mb above 0",
                           .got = fmt::format("{}", options_.bucket_cap_mb())});
  }
  if (options_.init_sync()) {
    broadcast(world_, module_.parameters, 0);
    broadcast(world_, module_.buffers, 0);
  }
  changes_.fingerprint();  // records the writes of the broadcasts
  packed_buffers_ = PackedTensors(module_.buffers);
  expected_.assign(parameters_.size(),
                   options_.static_graph() ? kUntilFlush : 1);
  sync_.emplace(world_, parameters_, trained_.names,
                static_cast<int64_t>(options_.bucket_cap_mb() * (1 << 20)));
}

void Reducer::follow_parameters() {
  // The hooks are not made before the first forward. train_step() must take the
  // gradients of parameters with hooks through autograd.
  if (!hooks_) {
    hooks_.emplace(
        parameters_, [this](size_t) { before_gradient(); },
        [this](size_t p, const Tensor& incoming) { on_gradient(p, incoming); });
  }
  for (size_t p = 0; p < parameters_.size(); ++p) {
    const Tensor& parameter = parameters_[p];
    if (!parameter.requires_grad()) continue;
    const Tensor& view = sync_->buckets().view(p);
    const bool is_alike = parameter.scalar_type() == view.scalar_type() &&
                          parameter.device() == view.device() &&
                          parameter.sizes() == view.sizes();
    if (!is_alike && local_->is_synced()) {
      give_up({.code = ErrorCode::kModuleChanged,
               .what = fmt::format("parameter '{}' was moved or cast after the "
                                   "module was wrapped",
                                   trained_.names[p]),
               .expected = c10::str(view.scalar_type(), " ", view.sizes(),
                                    " on ", view.device()),
               .got = c10::str(parameter.scalar_type(), " ", parameter.sizes(),
                               " on ", parameter.device()),
               .fix = "call to(device) or to(dtype) before, or wrap the module "
                      "again"});
    }
    if (is_alike) hooks_->follow(p);
  }
  for (const auto& [name, parameter] : trained_.frozen) {
    if (!parameter.requires_grad() || !local_->is_synced()) continue;
    give_up({.code = ErrorCode::kModuleChanged,
             .what = fmt::format("parameter '{}' was frozen when the module "
                                 "was wrapped, and requires a gradient now, "
                                 "which would not be exchanged",
                                 name),
             .fix = "wrap the module again after requires_grad_(true)"});
  }
}

void Reducer::follow_order(int root) {
  const bool varies =
      options_.find_unused_parameters() && !options_.static_graph();
  if (world_.size() > 1 && !varies) sync_->follow_order(root);
}

void Reducer::check_usable() const {
  if (failure_.empty()) return;
  throw ParallelError(
      "ddp",
      {.code = ErrorCode::kFailedBefore,
       .what = "an earlier step failed, so the ranks may differ: " + failure_,
       .fix = "make a new DistributedDataParallel from a checkpoint"});
}

void Reducer::give_up(const Problem& problem) {
  const ParallelError error("ddp", problem);
  failure_ = error.text();
  world_.abort(failure_);
  throw error;
}

// Forwards.

uint64_t Reducer::begin_forward() {
  const std::lock_guard lock(mutex_);
  check_usable();
  if (pass_) {
    give_up(
        {.code = ErrorCode::kUnsupportedGraph,
         .what = fmt::format("rank {} called forward() within the backward of "
                             "an earlier one",
                             world_.rank()),
         .fix = "let checkpointed parts of the module call each other, not "
                "the wrapped module"});
  }
  follow_parameters();
  return forwards_.begin();
}

void Reducer::end_forward(uint64_t begin, int64_t samples) {
  if (!local_->is_synced()) return;
  const std::lock_guard lock(mutex_);
  forwards_.end(begin, samples);
}

Tensor Reducer::watch(const Tensor& output, int64_t samples) {
  if (!local_->is_synced() || !output.defined() || !output.requires_grad()) {
    return output;
  }
  return forwards_.put_node(output, samples, shared_from_this());
}

// The beginning of a pass.

void Reducer::on_output(const WatchedForwards::Forward& forward) {
  const std::lock_guard lock(mutex_);
  check_usable();
  const int task = torch::autograd::get_current_graph_task_id();
  if (pass_ && pass_->task == task) return;
  if (pass_) {
    give_up({.code = ErrorCode::kUnsupportedGraph,
             .what = fmt::format("rank {} started a backward of the model "
                                 "within another one",
                                 world_.rank())});
  }
  open_pass(task, forward);
}

// The graph of a derivative, or of a value inside the model, may reach the
// parameters without going through the outputs.
void Reducer::before_gradient() {
  const std::lock_guard lock(mutex_);
  if (pass_) return;
  const int task = torch::autograd::get_current_graph_task_id();
  if (task != unsynced_task_) {
    if (const auto* forward = forwards_.in_backward()) {
      check_usable();
      return open_pass(task, *forward);
    }
    unsynced_task_ = task;
    local_->begin_backward();
  }
}

void Reducer::begin_pass(const Round& round,
                         const std::vector<int64_t>& expected) {
  pass_ = Pass{.round = round,
               .places = std::vector<Place>(parameters_.size(), Place::kNone)};
  sync_->begin(expected, round.weight);
  // A rank whose backward throws does not take part in the last sum, so that
  // the backward of no other rank ends well.
  sync_->buckets().hold_last();
}

std::optional<std::vector<size_t>> Reducer::check_unused() {
  std::vector<size_t> unused = hooks_->unused_in_backward();
  for (const size_t p : unused) {
    // The graph was made before the parameter's memory was replaced.
    if (!hooks_->leads_to_former_memory(p)) continue;
    give_up({.code = ErrorCode::kModuleChanged,
             .what = fmt::format("parameter '{}' got other memory between a "
                                 "forward and its backward",
                                 trained_.names[p]),
             .fix = "load parameters before the forward"});
  }
  if (!hooks_->trains_in_backward(unused)) return std::nullopt;
  if (torch::GradMode::is_enabled()) {
    give_up({.code = ErrorCode::kUnsupportedGraph,
             .what = "a backward over several ranks can't be differentiated",
             .expected = "create_graph=false",
             .got = "create_graph=true",
             .fix = "take the inner derivative with torch::autograd::grad()"});
  }
  if (!unused.empty() && !options_.static_graph() &&
      !options_.find_unused_parameters()) {
    give_up(
        {.code = ErrorCode::kUnusedParameters,
         .what = fmt::format("parameters of rank {} get no gradient in this "
                             "backward: {}. Nothing was updated",
                             world_.rank(), trained_.names_of(unused)),
         .expected = "every parameter to take part in the loss",
         .fix = "set find_unused_parameters(true) if that varies from step to "
                "step, static_graph(true) if it never does or if parts of the "
                "model are computed again in the backward, or freeze them "
                "before wrapping (requires_grad_(false))"});
  }
  return unused;
}

void Reducer::open_pass(int task, const WatchedForwards::Forward& reached) {
  const auto unused = check_unused();
  if (!unused) {
    share_buffers_after(task);
    return;
  }
  const bool is_static = options_.static_graph();
  const int64_t samples =
      rounds_.counts_samples() ? forwards_.samples_in_backward(reached) : 0;
  std::vector<int64_t> expected = expected_;
  // The graph of a checkpointed module does not lead to all parameters.
  if (!is_static) {
    for (const size_t p : *unused) expected[p] = 0;
  }
  begin_pass(rounds_.next(samples), expected);
  pass_->task = task;
  GradientHooks::at_end_of_backward(
      [self = shared_from_this()] { self->close_pass(); },
      [self = shared_from_this()] { self->abandon(); });
  compare_ranks();
  // Checkpointed parts change the buffers again when they are recomputed.
  if (!is_static) send_buffers();
  prepare_earlier_gradients();
  for (size_t p = 0; p < parameters_.size(); ++p) {
    if (expected[p] == 0) send(p, false);
  }
}

// The gradients of a pass.

void Reducer::on_gradient(size_t p, const Tensor& incoming) {
  const std::lock_guard lock(mutex_);
  if (!pass_) return local_->add(parameters_[p], incoming);
  const int task = torch::autograd::get_current_graph_task_id();
  const bool is_static = options_.static_graph();
  if (pass_->task != task && !is_static) {
    give_up({.code = ErrorCode::kRepeatedGradient,
             .what = fmt::format("parameter '{}' got a gradient in a backward "
                                 "within the backward (checkpointing?)",
                                 trained_.names[p]),
             .fix = "set static_graph(true)"});
  }
  const SyncOutcome outcome = sync_->arrive(p);
  if (outcome == SyncOutcome::kRepeated) {
    give_up({.code = ErrorCode::kRepeatedGradient,
             .what = fmt::format(
                 "parameter '{}' got more gradients than {}", trained_.names[p],
                 is_static ? "in the first step" : "one in this backward"),
             .fix = is_static ? "leave static_graph off: the graph changes"
                              : "set static_graph(true)"});
  }
  const bool is_complete = outcome == SyncOutcome::kComplete;
  if (!is_complete || !options_.gradient_as_bucket_view()) {
    own_memory(parameters_[p], incoming);
  }
  if (incoming.defined()) pass_->places[p] = Place::kGrad;
  if (!is_complete) return;
  send(p, is_static ? parameters_[p].grad().defined() : incoming.defined(),
       incoming);
}

void Reducer::send(size_t p, bool has_gradient, const Tensor& incoming) {
  if (has_gradient && has_own_memory(parameters_[p], incoming) &&
      sync_->buckets().sum_in_place(p, parameters_[p].grad())) {
    pass_->places[p] = Place::kInPlace;
  } else {
    fill_bucket(p, has_gradient);
    pass_->places[p] = has_gradient ? Place::kBucket : Place::kNone;
  }
  sync_->send(p);
}

void Reducer::fill_bucket(size_t p, bool has_gradient) {
  const torch::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  Tensor view = sync_->buckets().view(p);
  Tensor& gradient = parameters_[p].mutable_grad();
  if (gradient.defined() && gradient.layout() != torch::kStrided) {
    give_up({.code = ErrorCode::kBadTensor,
             .what = fmt::format("the gradient of '{}' is sparse",
                                 trained_.names[p]),
             .expected = "a dense one",
             .fix = "make the embedding with sparse(false)"});
  }
  const bool is_view =
      gradient.defined() && gradient.data_ptr() == view.data_ptr();
  // A gradient that is not part of this pass must not change.
  if (!has_gradient && is_view) gradient = gradient.clone();
  if (pass_->is_shadow || !gradient.defined()) {
    view.zero_();
    return;
  }
  const double weight =
      sync_->buckets().applies_weight() ? 1 : pass_->round.weight;
  if (has_gradient && is_view) {
    if (weight != 1) gradient.mul_(weight);
  } else if (weight != 1) {
    at::mul_out(view, gradient, torch::scalar_tensor(weight, torch::kDouble));
  } else {
    view.copy_(gradient);
  }
  if (has_gradient && options_.gradient_as_bucket_view()) gradient = view;
}

void Reducer::prepare_earlier_gradients() {
  if (const auto problem = local_->begin_sum(pass_->round.weight)) {
    give_up(*problem);
  }
  if (rounds_.sums_to_average(pass_->round)) return;
  // Only new gradients may be summed over the ranks.
  pass_->kept = local_->take_sums(parameters_);
}

bool Reducer::trains_buffers_only() const {
  const std::vector<bool> modes = module_.modes();
  return std::find(modes.begin(), modes.end(), true) != modes.end() &&
         std::none_of(
             parameters_.begin(), parameters_.end(),
             [](const Tensor& parameter) { return parameter.requires_grad(); });
}

void Reducer::share_buffers_after(int task) {
  const bool shares = options_.broadcast_buffers() &&
                      !packed_buffers_.empty() && world_.size() > 1 &&
                      !rounds_.is_joining() && trains_buffers_only();
  if (!shares || buffers_task_ == task) return;
  buffers_task_ = task;
  GradientHooks::at_end_of_backward(
      [self = shared_from_this()] { self->share_buffers(); },
      [self = shared_from_this()] { self->give_up_backward(); });
}

void Reducer::share_buffers() {
  const std::lock_guard lock(mutex_);
  try {
    const torch::NoGradGuard no_grad;
    if (world_.rank() == 0) packed_buffers_.pack();
    world_.broadcast(packed_buffers_.message(), 0);
    if (world_.rank() != 0) packed_buffers_.unpack();
  } catch (const std::exception& error) {
    failure_ = text_of(error);
    world_.abort(failure_);
    throw;
  }
}

// Data of a pass that goes to the other ranks besides the gradients.

void Reducer::send_buffers() {
  if (!options_.broadcast_buffers() || packed_buffers_.empty()) return;
  if (world_.size() == 1) return;
  const int root = pass_->round.root;
  if (world_.rank() == root) packed_buffers_.pack();
  sync_->buckets().submit("buffers", -1, [this, root] {
    world_.broadcast(packed_buffers_.message(), root);
  });
}

void Reducer::compare_ranks() {
  const int64_t fingerprint = changes_.fingerprint();
  // Within join(), ranks without inputs don't update their parameters.
  if (world_.size() == 1 || rounds_.is_joining()) return;
  if (!options_.verify_ranks()) return;
  CommonState::Contents& state = pass_->state;
  for (size_t p = 0; p < parameters_.size(); ++p) {
    state.add("", p, parameters_[p]);
  }
  for (size_t i = 0; i < trained_.frozen.size(); ++i) {
    state.add("", parameters_.size() + i, trained_.frozen[i].second);
  }
  const torch::NoGradGuard no_grad;
  const Tensor values = common_state_.next_values(state).to(trained_.device);
  pass_->comparison = comparison_of(torch::stack(
      {torch::scalar_tensor(fingerprint, values.options()), values}));
  sync_->buckets().submit("comparison of the ranks", -1,
                          [this, numbers = pass_->comparison]() mutable {
                            world_.all_reduce(numbers, ReduceOp::MAX);
                          });
}

void Reducer::exchange_used() {
  std::vector<uint8_t> is_used(parameters_.size());
  for (size_t p = 0; p < is_used.size(); ++p) {
    // Gradients added under no_sync() count as used too.
    is_used[p] =
        pass_->places[p] != Place::kNone || local_->has(parameters_[p]);
  }
  pass_->is_used = torch::tensor(is_used, torch::kUInt8).to(trained_.device);
  sync_->buckets().submit("used parameters", -1,
                          [this, used = pass_->is_used]() mutable {
                            world_.all_reduce(used, ReduceOp::MAX);
                          });
}

// The end of a pass.

void Reducer::close_pass() {
  const std::lock_guard lock(mutex_);
  const auto give_up_after = [this](const std::exception& error) {
    if (failure_.empty()) failure_ = text_of(error);
    world_.abort(failure_);
    pass_.reset();
    sync_->abandon(GradientSync::Peers::kStop);
  };
  try {
    finish_pass();
  } catch (const CommError& error) {
    give_up_after(error);
    // The user has called no collective.
    throw CommError(
        {.code = error.code(),
         .what = "backward() can't sum the gradients over the ranks: " +
                 text_of(error)});
  } catch (const std::exception& error) {
    give_up_after(error);
    throw;
  }
}

void Reducer::finish_pass() {
  const bool is_static = options_.static_graph();
  check_complete();
  if (is_static) send_buffers();
  sync_->flush();
  if (is_counting()) {
    for (size_t p = 0; p < parameters_.size(); ++p) {
      expected_[p] = sync_->state().gradients[p].arrived;
    }
    exchange_used();
    for (const size_t p : sync_->unsent()) {
      send(p, pass_->places[p] == Place::kGrad);
    }
  } else if (options_.find_unused_parameters() && !is_static) {
    exchange_used();
  }
  sync_->buckets().release_last();
  sync_->finish();
  check_same_parameters();
  write_back();
  sync_->end_step();
  const int root = pass_->round.root;
  pass_.reset();
  follow_order(root);
}

void Reducer::check_complete() {
  const auto& gradients = sync_->state().gradients;
  const bool may_be_undefined =
      options_.static_graph() || options_.find_unused_parameters();
  std::vector<size_t> missing;
  for (size_t p = 0; p < parameters_.size() && !pass_->is_shadow; ++p) {
    const bool is_awaited = gradients[p].expected != kUntilFlush &&
                            gradients[p].state == GradientState::kAwaited;
    const bool is_undefined =
        !may_be_undefined && pass_->places[p] == Place::kNone;
    if (is_awaited || is_undefined) missing.push_back(p);
  }
  if (missing.empty()) return;
  const bool is_static = options_.static_graph();
  give_up(
      {.code = ErrorCode::kUnusedParameters,
       .what = fmt::format(
           "parameters of rank {} got {} in this backward: {}. "
           "Nothing was updated",
           world_.rank(),
           is_static ? "fewer gradients than in the first step" : "no gradient",
           trained_.names_of(missing)),
       .fix = is_static ? "leave static_graph off: the graph changes"
                        : "set find_unused_parameters(true)"});
}

void Reducer::check_same_parameters() {
  const Tensor& comparison = pass_->comparison;
  if (comparison.defined() && !are_same(comparison)) {
    common_state_.explain(pass_->state, world_);
  }
}

void Reducer::write_back() {
  const torch::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const Pass& pass = *pass_;
  if (pass.is_used.defined()) {
    const Tensor used = pass.is_used.cpu();
    const auto* bytes = used.const_data_ptr<uint8_t>();
    is_used_.assign(bytes, bytes + used.numel());
  }
  for (size_t p = 0; p < parameters_.size() && !pass.is_shadow; ++p) {
    const Tensor& view = sync_->buckets().view(p);
    Tensor& gradient = parameters_[p].mutable_grad();
    const Tensor kept = pass.kept.empty() ? Tensor() : pass.kept[p];
    if (!is_used_.empty() && !is_used_[p]) {
      if (kept.defined()) gradient = kept;
      continue;
    }
    local_->clear(parameters_[p]);
    if (pass.places[p] == Place::kInPlace) {
      // .grad already holds the sum.
    } else if (options_.gradient_as_bucket_view()) {
      gradient = view;
    } else if (gradient.defined()) {
      gradient.copy_(view);
    } else {
      gradient = view.clone();
    }
    if (kept.defined()) gradient.add_(kept);
  }
  const bool takes_buffers =
      options_.broadcast_buffers() && world_.rank() != pass.round.root;
  if (takes_buffers) packed_buffers_.unpack();
}

void Reducer::abandon() noexcept {
  const std::lock_guard lock(mutex_);
  if (!pass_) return;
  pass_.reset();
  sync_->abandon(GradientSync::Peers::kStop);
  give_up_backward();
}

void Reducer::give_up_backward() noexcept {
  if (!failure_.empty()) return;
  failure_ = fmt::format("the backward of rank {} ended with an exception",
                         world_.rank());
  world_.abort(failure_);
}

void Reducer::leave() noexcept {
  const std::lock_guard lock(mutex_);
  if (!failure_.empty()) return;
  failure_ = fmt::format("rank {} left with an exception", world_.rank());
  world_.abort(failure_);
}

// Uneven inputs: ranks without inputs answer those that still have some.

void Reducer::join(const std::function<void()>& steps,
                   const JoinOptions& options) {
  check_usable();
  if (rounds_.is_joining()) {
    throw ParallelError("ddp", {.code = ErrorCode::kUnevenInputs,
                                .what = "join() within join()",
                                .fix = "call it once around all steps"});
  }
  struct Leave {
    Rounds& rounds;
    ~Leave() { rounds.end_join(); }
  } const leave{rounds_};
  rounds_.begin_join(options);
  try {
    steps();
    for (Round round = rounds_.next_without_inputs(); !round.active.empty();
         round = rounds_.next_without_inputs()) {
      shadow(round);
    }
  } catch (const std::exception& error) {
    // If the ranks agreed to end join(), all of them know about it.
    if (rounds_.is_ended() || !failure_.empty()) throw;
    failure_ = fmt::format("rank {} left join() with an exception: {}",
                           world_.rank(), text_of(error));
    world_.abort(failure_);
    throw;
  }
  const std::vector<int>& last = rounds_.last_active();
  // Ranks that had no inputs did not update.
  if (!last.empty() && last.size() < static_cast<size_t>(world_.size())) {
    broadcast(world_, module_.parameters, last.back());
    broadcast(world_, module_.buffers, last.back());
  }
}

void Reducer::shadow(const Round& round) {
  {
    const std::lock_guard lock(mutex_);
    if (is_counting()) {
      give_up({.code = ErrorCode::kUnevenInputs,
               .what = fmt::format("rank {} has no inputs in the first step of "
                                   "a static graph",
                                   world_.rank()),
               .fix = "make that step with inputs on every rank"});
    }
    begin_pass(round, std::vector<int64_t>(parameters_.size(), 0));
    pass_->is_shadow = true;
    if (!options_.static_graph()) send_buffers();
    for (size_t p = 0; p < parameters_.size(); ++p) send(p, false);
  }
  close_pass();
}

}  // namespace lockstep::ddp
