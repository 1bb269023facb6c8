#include "lockstep/parallel/ddp/saved_world.h"

#include <utility>

#include "lockstep/base/error.h"

namespace lockstep::ddp {

using torch::autograd::AutogradContext;

namespace {

constexpr const char* kKey = "lockstep.world";

struct Holder : torch::CustomClassHolder {
  explicit Holder(ProcessGroup ranks) : world(std::move(ranks)) {}
  ProcessGroup world;
};

}  // namespace

void save_world(AutogradContext& context, const ProcessGroup& world) {
  context.saved_data[kKey] =
      c10::IValue::make_capsule(c10::make_intrusive<Holder>(world));
}

ProcessGroup saved_world(const AutogradContext& context) {
  return c10::static_intrusive_pointer_cast<Holder>(
             context.saved_data.at(kKey).toCapsule())
      ->world;
}

void check_no_double_backward(std::string_view component, const char* fix) {
  if (!torch::GradMode::is_enabled()) return;
  throw ParallelError(component,
                      {.code = ErrorCode::kUnsupportedGraph,
                       .what = "a gradient over several ranks can't be "
                               "differentiated",
                       .expected = "create_graph=false",
                       .got = "create_graph=true",
                       .fix = fix});
}

}  // namespace lockstep::ddp
