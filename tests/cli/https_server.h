#pragma once

#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <stdexcept>
#include <string>
#include <unistd.h>

#include "lockstep/base/child_process.h"
#include "lockstep/base/process.h"
#include "tests/base/temporary_folder.h"

namespace lockstep {

/// Runs https_server.py on loopback, with its own certificate.
class HttpsServer {
 public:
  HttpsServer() : child_(start()) {
    std::string line;
    for (char letter = 0; ::read(port_.read.get(), &letter, 1) == 1;) {
      if (letter == '\n') break;
      line += letter;
    }
    url_ = "https://127.0.0.1:" + line + "/";
  }

  /// With a slash at the end.
  std::string url(const std::string& manner) const {
    return url_ + manner + "/";
  }
  std::string ca_file() const { return folder_.path("certificate.pem"); }
  void serve(const std::string& name, const std::string& content) const {
    write_text(folder_.path(name), content);
  }
  /// Returns the requests so far, one per line.
  std::string log() const { return content_of(folder_.path("log")); }
  std::string folder() const { return folder_.path(); }

 private:
  ChildProcess start() {
    const std::string key = folder_.path("key.pem");
    const std::string command =
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 "
        "-nodes -days 2 -subj /CN=127.0.0.1 -addext "
        "subjectAltName=IP:127.0.0.1 -keyout " +
        key + " -out " + ca_file() + " 2>/dev/null";
    if (std::system(command.c_str()) != 0) {
      throw std::runtime_error("openssl made no certificate");
    }
    port_ = make_pipe();
    ChildProcess child(
        {.program = "python3",
         .searches_path = true,
         .arguments = {"python3",
                       LOCKSTEP_SOURCE_DIR "/tests/cli/https_server.py",
                       folder_.path(), ca_file(), key},
         .environment = merged_environment({}),
         .out_fd = port_.write.get(),
         .dies_with_thread = true});
    port_.write.close();
    return child;
  }

  TemporaryFolder folder_;
  Pipe port_;
  std::string url_;
  ChildProcess child_;
};

}  // namespace lockstep
