#include "lockstep/store/session.h"

#include "lockstep/base/error.h"
#include "lockstep/store/wire.h"

namespace lockstep::store {

Session::Session(const Key& sending, const Key& receiving)
    : sending_(sending), receiving_(receiving) {}

std::string Session::seal(std::string_view body) {
  const std::string number = FieldWriter().u64(sent_++).take();
  const Digest code = sending_.of({number, body});
  return FieldWriter()
      .u32(static_cast<uint32_t>(body.size() + code.size()))
      .raw(as_text(code))
      .raw(body)
      .take();
}

std::string_view Session::open(std::string_view frame) {
  const std::string number = FieldWriter().u64(received_).take();
  FieldReader reader(frame);
  const std::string_view code = reader.raw(sizeof(Digest));
  const std::string_view body = frame.substr(sizeof(Digest));
  if (!is_same(receiving_.of({number, body}), code)) {
    throw CommError({.code = ErrorCode::kStoreProtocol,
                     .what = "a message on a connection of the store is not "
                             "the peer's next one",
                     .got = "one that was altered, repeated or injected"});
  }
  ++received_;
  return body;
}

}  // namespace lockstep::store
