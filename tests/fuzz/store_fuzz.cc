// Feeds messages of a client that knows its key to the job's store.
// A message is either a CommError in plain text, or is the same after it is
// written and read again.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/store/hello.h"
#include "lockstep/store/message.h"
#include "lockstep/store/wire.h"

namespace lockstep::fuzz {
namespace {

constexpr store::Limits kLimits{
    .key_bytes = 64, .value_bytes = 256, .keys_a_request = 8};

void require_store(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "[fuzz] store: %s\n", what);
  std::abort();
}

template <class Act>
void expect_plain_words(Act act) {
  try {
    act();
  } catch (const CommError& error) {
    for (const char letter : std::string_view(error.what())) {
      require_store(letter >= ' ' && letter <= '~',
                    "an error's message is not plain");
    }
  }
}

void decode_all(std::string_view body) {
  expect_plain_words([&] {
    const store::Hello hello = store::decode_hello(body);
    if (hello.version != store::kProtocolVersion) return;
    require_store(store::encode(hello) == body, "a hello changes on its way");
    for (const char letter : hello.identity.text()) {
      require_store(letter >= ' ' && letter <= '~', "a name is not plain");
    }
  });
  expect_plain_words([&] {
    const auto reply = store::decode_admission_reply(body);
    require_store(store::encode(reply) == body, "an admission changes");
  });
  expect_plain_words([&] {
    const store::Request request = store::decode_request(body, kLimits);
    require_store(store::encode(request) == body, "a request changes");
    require_store(request.keys.size() <= kLimits.keys_a_request &&
                      request.value.size() <= kLimits.value_bytes,
                  "a request is beyond the limits");
  });
  expect_plain_words([&] {
    require_store(store::encode(store::decode_reply(body, kLimits)) == body,
                  "a reply changes on its way");
  });
}

}  // namespace
}  // namespace lockstep::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  fuzz::decode_all(bytes);
  fuzz::expect_plain_words([&] {
    store::FrameReader reader(store::kMaxHelloBytes);
    std::string body;
    std::string again;
    for (const char byte : bytes) {
      reader.add({&byte, 1});
      while (reader.next(body)) {
        again += store::framed(body);
        fuzz::decode_all(body);
      }
    }
    fuzz::require_store(again == bytes.substr(0, again.size()),
                        "frames don't add up to the stream");
  });
  return 0;
}
