"""An HTTPS server on loopback that fails on request, for the tests.

https_server.py FOLDER CERTIFICATE KEY serves FOLDER and prints its port. The
first part of a path says how:

  /ranges/NAME    with ETag, ranges and If-Range, like a well-kept server
  /plain/NAME     whole files only, without an ETag
  /cut/NAME       like ranges, but the connection ends after half of the rest
  /slow/NAME      like ranges: the first half, then nothing until FOLDER/go
                  exists
  /endless/NAME   bytes without an end, and no length
  /busy/NAME      503 the first two times, then like ranges
  /moved/NAME     redirects to /ranges/NAME
  /insecure/NAME  redirects to http://
  /around/NAME    redirects to itself

Each request is a line in FOLDER/log: the path and its Range.
"""

import hashlib
import http.server
import pathlib
import ssl
import sys
import threading
import time

FOLDER = pathlib.Path(sys.argv[1])
counts = {}
lock = threading.Lock()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_GET(self):
        with lock:
            counts[self.path] = counts.get(self.path, 0) + 1
            count = counts[self.path]
            with open(FOLDER / "log", "a", encoding="utf-8") as log:
                log.write(f"{self.path} {self.headers.get('Range', '-')}\n")
        _, manner, name = self.path.split("/", 2)
        if manner == "busy" and count <= 2:
            return self.answer(503, b"later")
        to = {"moved": f"/ranges/{name}", "around": self.path,
              "insecure": f"http://127.0.0.1:1/{name}"}.get(manner)
        if to:
            self.send_response(302)
            self.send_header("Location", to)
            self.send_header("Content-Length", "0")
            return self.end_headers()
        path = FOLDER / name
        if not path.is_file():
            return self.answer(404, b"not here")
        self.send_file(manner, path.read_bytes())

    def answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def send_file(self, manner, content):
        tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
        begin = 0
        asked = self.headers.get("Range", "")
        is_same = self.headers.get("If-Range", tag) == tag
        if manner != "plain" and asked and is_same:
            begin = int(asked.removeprefix("bytes=").split("-")[0])
        if begin >= len(content) and begin > 0:
            return self.answer(416, b"")
        body = content[begin:]
        self.send_response(206 if begin else 200)
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-"
                             f"{len(content) - 1}/{len(content)}")
        if manner != "plain":
            self.send_header("ETag", tag)
        if manner == "endless":
            self.send_header("Connection", "close")
            self.end_headers()
            try:
                while True:
                    self.wfile.write(b"x" * 4096)
            except OSError:
                return None
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if manner == "cut":
            self.wfile.write(body[:(len(body) + 1) // 2])
            self.close_connection = True
        elif manner == "slow" and not (FOLDER / "go").exists():
            self.wfile.write(body[:len(body) // 2])
            while not (FOLDER / "go").exists():
                time.sleep(0.01)
        else:
            self.wfile.write(body)


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *args):
        pass


def main():
    server = Server(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(sys.argv[2], sys.argv[3])
    server.socket = context.wrap_socket(server.socket, server_side=True,
                                        do_handshake_on_connect=False)
    print(server.server_address[1], flush=True)
    server.serve_forever()


main()
