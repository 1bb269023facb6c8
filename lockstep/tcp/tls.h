#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "lockstep/base/file_descriptor.h"

// OpenSSL types.
struct ssl_st;
struct ssl_ctx_st;

namespace lockstep::tcp {

using Ssl = std::unique_ptr<ssl_st, void (*)(ssl_st*)>;

/// A connected stream socket, with its TLS state if it is encrypted.
struct Socket {
  FileDescriptor fd;
  Ssl ssl{nullptr, nullptr};  ///< declared last, to be destroyed before fd
};

/// Interval at which a wait checks whether to give up.
inline constexpr std::chrono::milliseconds kAskEvery{500};

/// Waits for `events` (POLLIN, POLLOUT) or an error on the socket `fd`. Calls
/// `is_over` every kAskEvery. Returns false if nothing happened before the
/// deadline, or if `is_over` returned true.
bool wait_for(int fd, short events,
              std::chrono::steady_clock::time_point deadline,
              const std::function<bool()>& is_over);

/// TLS 1.3 between ranks. Both ends present a certificate signed by the job's
/// authority. Host names in the certificates are not checked, because the
/// addresses of the ranks come from the job's store.
class Tls {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// Reads Gloo's variables: GLOO_DEVICE_TRANSPORT=TCP_TLS asks for TLS with
  /// the files that GLOO_DEVICE_TRANSPORT_TCP_TLS_{PKEY,CERT,CA_FILE} name.
  /// Returns null if the environment does not ask for TLS. Throws
  /// InvalidArgument if a variable is missing or a file can't be used.
  static std::shared_ptr<const Tls> from_environment();

  /// Does the TLS handshake over `fd`, which must be non-blocking. Calls
  /// `is_over` every kAskEvery and gives up if it returns true. Throws
  /// CommError if the peer has no certificate of the authority, or does not
  /// answer before the deadline.
  Ssl shake_hands(int fd, bool is_server, Time deadline,
                  const std::function<bool()>& is_over) const;

 private:
  using Context = std::unique_ptr<ssl_ctx_st, void (*)(ssl_ctx_st*)>;
  explicit Tls(Context context);

  Context context_;
};

}  // namespace lockstep::tcp
