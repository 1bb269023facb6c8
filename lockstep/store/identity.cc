#include "lockstep/store/identity.h"

#include <fmt/format.h>

#include "lockstep/base/printable.h"

namespace lockstep::store {

std::string Identity::text() const {
  const std::string known =
      name.empty() ? "without a name" : printable_ascii(name);
  return role == Role::kAgent ? known : fmt::format("rank {}, {}", rank, known);
}

JobSecret::JobSecret(std::string_view bytes)
    : root_(derived(Key(), {"lockstep job secret", bytes})) {}

JobSecret JobSecret::random() { return JobSecret(as_text(random_nonce())); }

Key JobSecret::key_of(const Identity& identity) const {
  if (identity.role == Role::kAgent) return derived(root_, {"agent"});
  return derived(root_,
                 {"worker", identity.run_id, std::to_string(identity.round),
                  std::to_string(identity.rank)});
}

}  // namespace lockstep::store
