"""The network between two nodes: a TCP forwarder that can break."""

import collections
import contextlib
import dataclasses
import select
import socket
import struct
import threading
import time

TO_SERVER = "to the server"
TO_CLIENT = "to the client"
POLL_S = 0.005


@dataclasses.dataclass
class Pipe:
    """One direction of a connection, with the bytes that are on their way."""

    source: socket.socket
    target: socket.socket
    direction: str
    queue: collections.deque = dataclasses.field(
        default_factory=collections.deque)
    is_over: bool = False  # no more bytes come from the source

    def is_open(self):
        return self.source.fileno() >= 0 and self.target.fileno() >= 0


class Forwarder:
    """Passes connections to a free port of loopback on to `address`."""

    def __init__(self, address, delay_s=0.0):
        self.address = address
        self.delay_s = delay_s  # in each direction
        self.held = frozenset()
        self.pipes = []
        self.lock = threading.Lock()  # guards the pipes
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self.listener.getsockname()[1]
        self.is_closed = False
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def hold(self, *directions):
        """Carries nothing in these directions until release(), over present and
        new connections. Without arguments, in both.
        """
        self.held = frozenset(directions or (TO_SERVER, TO_CLIENT))

    def release(self):
        self.held = frozenset()

    def reset(self):
        """Resets all connections. New ones are possible."""
        with self.lock:
            for pipe in self.pipes:  # some may have ended already
                self.break_off(pipe)
            self.pipes = []

    def close(self):
        self.is_closed = True
        self.thread.join()
        self.reset()
        self.listener.close()

    @staticmethod
    def end(connection, is_reset=False):
        if is_reset:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER,
                                  struct.pack("ii", 1, 0))
        connection.close()

    def break_off(self, pipe):
        for connection in (pipe.source, pipe.target):
            with contextlib.suppress(OSError):
                self.end(connection, is_reset=True)

    def run(self):
        while not self.is_closed:
            with self.lock:
                # A pipe that broke has closed those of the other direction.
                self.pipes = [pipe for pipe in self.pipes if pipe.is_open()]
                sources = {pipe.source: pipe for pipe in self.pipes
                           if not pipe.is_over
                           and pipe.direction not in self.held}
            try:
                ready, _, _ = select.select([self.listener, *sources], [], [],
                                            POLL_S)
            except (OSError, ValueError):  # reset() closed one of them
                continue
            with self.lock:
                for source in ready:
                    if source is not self.listener:
                        self.read(sources[source])
                if self.listener in ready:
                    self.accept()
                self.pipes = [pipe for pipe in self.pipes
                              if self.deliver(pipe)]

    def accept(self):
        client, _ = self.listener.accept()
        try:
            server = socket.create_connection(self.address, timeout=5)
        except OSError:
            self.end(client, is_reset=True)
            return
        self.pipes += [Pipe(client, server, TO_SERVER),
                       Pipe(server, client, TO_CLIENT)]

    def read(self, pipe):
        try:
            data = pipe.source.recv(65536)
        except OSError:  # a reset, which is passed on
            data = b""
            pipe.queue.clear()
            self.break_off(pipe)
        pipe.is_over = not data
        pipe.queue.append((time.monotonic() + self.delay_s, data))

    def deliver(self, pipe):
        """Sends what is due. Returns whether the pipe is still in use."""
        if not pipe.is_open():
            return False
        if pipe.direction in self.held:
            return True
        while pipe.queue and pipe.queue[0][0] <= time.monotonic():
            _, data = pipe.queue.popleft()
            try:
                if not data:
                    pipe.target.shutdown(socket.SHUT_WR)
                    return False
                pipe.target.sendall(data)
            except OSError:
                self.break_off(pipe)
                return False
        return True
