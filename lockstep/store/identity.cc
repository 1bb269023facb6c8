#include "lockstep/store/identity.h"

#include <fmt/format.h>

#include "lockstep/base/printable.h"

namespace lockstep::store {

std::string Identity::text() const {
  const std::string known =
      name.empty() ? "without a name" : printable_ascii(name);
  return role == Role::kAgent ? known : fmt::format("rank {}, {}", rank, known);
}

std::string Identity::key_name() const {
  if (role == Role::kAgent) return "agent";
  return fmt::format("rank {} of round {} of {}", rank, round, run_id);
}

JobSecret::JobSecret(std::string_view bytes)
    : root_(derived(Key(), {"lockstep job secret", bytes})) {}

JobSecret JobSecret::random() {
  return JobSecret(as_text(Key::random().bytes()));
}

Key JobSecret::key_named(std::string_view name) const {
  return derived(root_, {name});
}

}  // namespace lockstep::store
