#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/base/file_descriptor.h"
#include "lockstep/store/key.h"

namespace lockstep::store {

/// Returns whether a call on a non-blocking socket that failed with `error` may
/// be repeated later.
bool is_transient(int error);

/// A stream socket both ends of which prove that they know a key, before
/// anything else is read: TLS 1.3 with an external pre-shared key (RFC 8446,
/// section 2.2) and no certificates. The client names its key, and the server
/// looks the name up. What follows is encrypted, unless both ends leave TLS.
///
/// The socket must be non-blocking. No function blocks: kWantsRead and
/// kWantsWrite mean that the call must be repeated when poll() reports that.
/// One thread may use it at a time. Functions throw CommError only if OpenSSL
/// can't be used.
class SecureSocket {
 public:
  /// Returns the key of that name, or nothing if the name is unknown.
  using FindKey = std::function<std::optional<Key>(std::string_view name)>;

  /// The size of the longest TLS record. A read() of this size leaves nothing
  /// in OpenSSL that poll() does not report.
  static constexpr size_t kRecordBytes = 16384;

  enum class Outcome {
    kDone,
    kWantsRead,
    kWantsWrite,
    kClosed,   ///< the other end is gone
    kRefused,  ///< the other end does not know the key, or is no such socket;
               ///< after the handshake: what arrived is not what it sent
  };

  SecureSocket();  ///< closed
  /// Takes a socket whose other end is already known, and leaves it plain.
  explicit SecureSocket(FileDescriptor plain);
  static SecureSocket client(FileDescriptor socket, std::string key_name,
                             const Key& key);
  static SecureSocket server(FileDescriptor socket, FindKey find_key);
  SecureSocket(SecureSocket&&) noexcept;
  SecureSocket& operator=(SecureSocket&&) noexcept;
  ~SecureSocket();  ///< closes the socket

  bool is_open() const { return socket_.is_open(); }
  int fd() const { return socket_.get(); }
  /// Returns whether the bytes of read() and write() are encrypted. False after
  /// leave_tls().
  bool is_encrypted() const { return tls_ != nullptr; }

  /// Goes on with the handshake. After kDone, the other end is proven. A
  /// stranger can make this end read a few KiB, and no more.
  Outcome shake_hands();
  /// Returns the name of the key. On the server, it is proven once
  /// shake_hands() has returned kDone.
  const std::string& key_name() const;

  /// Reads at least one byte, and sets `got`. `bytes` must not be empty.
  Outcome read(std::span<std::byte> bytes, size_t& got);
  /// Writes at least one byte, and sets `put`. After kWantsWrite, the next call
  /// must pass the same bytes, or more. `bytes` must not be empty.
  Outcome write(std::span<const std::byte> bytes, size_t& put);

  /// Ends TLS. Both ends must call this until it returns kDone. What follows is
  /// neither encrypted nor signed.
  Outcome leave_tls();

 private:
  struct Tls;
  Outcome outcome_of(int result) const;

  FileDescriptor socket_;
  std::unique_ptr<Tls> tls_;  // destroyed before the socket
};

}  // namespace lockstep::store
