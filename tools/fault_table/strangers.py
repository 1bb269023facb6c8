"""Opens thousands of connections of strangers to a running job: to the store of
its agent, to its ranks over tcp, and to the Unix sockets of its ranks.
"""

import collections
import hmac
import os
import pathlib
import re
import secrets
import socket
import ssl
import struct
import subprocess
import tempfile
import time

from fault_table.job import Job, children_of, digest_in, steps_in

DEADLINE_S = 240
STEPS = 1500
# A stranger that holds its connection holds this many at once.
HELD = 150
ALERT = 21


def command(program, folder, secret, backend):
    return [str(program), "run", "--nproc-per-node", "2", "--secret-file",
            str(secret), "--", str(program), "train", "--strategy", "ddp",
            "--backend", backend, "--model", "mlp", "--data", "synthetic",
            "--shards", "2", "--intra-op-threads", "1", "--batch-size", "8",
            "--max-steps", str(STEPS), "--no-eval", "--log-every", "50",
            "--out-dir", str(folder)]


def derived(key, *parts):
    """Returns a key as store/key.h derives it."""
    text = b"".join(struct.pack("<Q", len(part)) + part for part in parts)
    return hmac.new(key, text, "sha256").digest()


def agent_key(secret):
    """Returns the key of the job's agents, which strangers do not know."""
    return derived(derived(bytes(32), b"lockstep job secret", secret), b"agent")


def hello_of_openssl(key, name):
    """Returns the first message of a TLS client that knows a key."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = subprocess.Popen(
            ["openssl", "s_client", "-connect",
             f"127.0.0.1:{server.getsockname()[1]}", "-tls1_3", "-psk",
             key.hex(), "-psk_identity", name, "-ciphersuites",
             "TLS_AES_128_GCM_SHA256"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)
        connection, _ = server.accept()
        connection.settimeout(20)
        hello = connection.recv(65536)
        connection.close()
        client.wait(20)
    return hello


def hello_of_python(newest):
    """Returns the first message of a TLS client without a key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = newest
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        context.wrap_bio(incoming, outgoing).do_handshake()
    except ssl.SSLWantReadError:
        pass
    return outgoing.read()


def record(kind, body):
    return struct.pack(">BHH", kind, 0x0303, len(body)) + body


# How a stranger ends.
CLOSE, RESET, HOLD, HALF, DRIP = "close", "reset", "hold", "half", "drip"


def kinds_of(secret):
    """Returns the kinds of strangers: a name, what it sends, how it ends, and
    whether the server may answer more than an alert.
    """
    genuine = hello_of_openssl(agent_key(secret), "agent")
    wrong = hello_of_openssl(secrets.token_bytes(32), "agent")
    unknown = hello_of_openssl(secrets.token_bytes(32), "rank 7 of nothing")
    rank = hello_of_openssl(secrets.token_bytes(32),
                            "collectives to rank 0 from rank 1")
    old = struct.pack("<I", 60) + b"LKSTORE" + bytes(53)
    return [
        ("nothing, and closes", b"", CLOSE, False),
        ("nothing, and resets", b"", RESET, False),
        ("nothing, and stays", b"", HOLD, False),
        ("nothing, and sends no more", b"", HALF, False),
        ("one byte", b"\x16", HOLD, False),
        ("HTTP", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", CLOSE, False),
        ("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", CLOSE, False),
        ("SSH", b"SSH-2.0-OpenSSH_9.2\r\n", HOLD, False),
        ("zeros", bytes(5000), CLOSE, False),
        ("ones", b"\xff" * 2000, RESET, False),
        ("noise", secrets.token_bytes(3000), CLOSE, False),
        ("TLS 1.2", hello_of_python(ssl.TLSVersion.TLSv1_2), HALF, False),
        ("TLS 1.3 without a key", hello_of_python(ssl.TLSVersion.TLSv1_3),
         HALF, False),
        ("a wrong key", wrong, HALF, False),
        ("a wrong key of a rank", rank, HALF, False),
        ("an unknown name", unknown, HALF, False),
        ("a hello that is cut", genuine[:-20], CLOSE, False),
        ("a hello that is altered", genuine[:-1]
         + bytes([genuine[-1] ^ 1]), HALF, False),
        ("a hello byte by byte", genuine, DRIP, False),
        ("a replayed hello", genuine + record(23, secrets.token_bytes(53)),
         HALF, True),
        ("a replayed hello, and stays", genuine, HOLD, True),
        ("a long record", record(22, bytes(16384)), CLOSE, False),
        ("a long message", record(22, b"\x01\x00\xff\xff" + bytes(9000)),
         HALF, False),
        ("an alert", record(ALERT, b"\x02\x28"), CLOSE, False),
        ("data before a handshake", record(23, bytes(100)), HALF, False),
        ("the store's protocol before TLS", old, HALF, False),
        ("the ranks' protocol before TLS", b"LSMESH01" + bytes(40), HALF,
         False),
    ]


def listeners_of(job):
    """Returns the addresses at which the processes of a job listen."""
    found = set()
    pids = [job.pid, *children_of(job.pid)]
    for pid in pids:
        try:
            inodes = {match[1] for path in pathlib.Path(
                f"/proc/{pid}/fd").iterdir()
                      if (match := re.fullmatch(r"socket:\[(\d+)\]",
                                                os.readlink(path)))}
            table = pathlib.Path(f"/proc/{pid}/net/tcp").read_text()
            places = pathlib.Path(f"/proc/{pid}/net/unix").read_text()
        except OSError:
            continue
        for line in table.splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in inodes:
                found.add(int(words[1].rpartition(":")[2], 16))
        for line in places.splitlines()[1:]:
            words = line.split()
            is_ours = len(words) == 8 and words[7].startswith("@lockstep/")
            if is_ours and words[6] in inodes and words[5] == "01":
                found.add(words[7])
    return found


def connect(address):
    if isinstance(address, str):
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        peer.settimeout(10)
        peer.connect("\0" + address[1:])
        return peer
    return socket.create_connection(("127.0.0.1", address), 10)


def answer_of(peer):
    """Returns what the other end says until it closes the connection."""
    said = b""
    try:
        while part := peer.recv(4096):
            said += part
    except OSError:
        pass
    return said


class Strangers:
    """All strangers of one job, and what they got."""

    def __init__(self, kinds):
        self.kinds = kinds
        self.counts = collections.Counter()
        self.held = collections.deque()
        self.problems = []

    def visit(self, address, number):
        name, sent, end, may_answer = self.kinds[number % len(self.kinds)]
        try:
            peer = connect(address)
        except OSError:
            return  # the job has closed it meanwhile
        self.counts[name] += 1
        try:
            if end == DRIP:
                for byte in sent[:20]:
                    peer.sendall(bytes([byte]))
            else:
                peer.sendall(sent)
            if end == RESET:
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER,
                                struct.pack("ii", 1, 0))
            if end == HALF:
                peer.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # refused at once
        if end in (HOLD, DRIP):
            self.held.append((peer, name, may_answer))
            if len(self.held) > HELD:
                self.look_at(*self.held.popleft(), waits=False)
        else:
            self.look_at(peer, name, may_answer, waits=end == HALF)

    def look_at(self, peer, name, may_answer, waits):
        if not waits:
            peer.setblocking(False)
        said = answer_of(peer)
        peer.close()
        if said and said[0] != ALERT and not may_answer:
            self.problems.append(f"'{name}' was answered: {said[:40]!r}")


def disturb(program, options, backend, secret, folder):
    """Returns the problems of a job among strangers, and their number."""
    key = secret.read_bytes().strip()
    strangers = Strangers(kinds_of(key))
    quiet = Job(command(program, f"{folder}/quiet-{backend}", secret, backend))
    if quiet.wait(time.monotonic() + DEADLINE_S) != 0:
        raise RuntimeError("\n".join(text for _, text in quiet.lines[-30:]))
    job = Job(command(program, f"{folder}/run-{backend}", secret, backend))
    number = 0
    places = set()
    try:
        while not job.is_over() and number < options.strangers:
            present = listeners_of(job)
            places |= present
            for place in sorted(present, key=str):
                # All kinds, so that every address gets each of them.
                for _ in strangers.kinds:
                    strangers.visit(place, number)
                    number += 1
            if not present:
                time.sleep(0.002)
        was_over = job.is_over()
        for peer, *_ in strangers.held:
            peer.close()
        code = job.wait(time.monotonic() + DEADLINE_S)
    finally:
        job.end()
    problems = list(strangers.problems)
    count = sum(strangers.counts.values())
    if code != 0:
        problems.append(f"ends with {code}")
    elif digest_in(job.lines) != digest_in(quiet.lines):
        problems.append("another digest")
    if was_over:
        problems.append(f"over after {count} strangers")
    if len(strangers.counts) < len(strangers.kinds):
        problems.append(f"only {len(strangers.counts)} kinds of strangers")
    steps = [time for time, _ in steps_in(job.lines)]
    print(f"[faults] {backend}: {count} strangers of "
          f"{len(strangers.counts)} kinds at {len(places)} addresses; "
          f"{len(steps)} lines of steps, {len(problems)} problems", flush=True)
    if problems:
        print("\n".join(text for _, text in job.lines[-40:]))
    return problems


def strangers(program, options):
    """Returns the problems of jobs among `options.strangers` strangers each."""
    problems = []
    with tempfile.TemporaryDirectory(prefix="lockstep-strangers-") as folder:
        secret = pathlib.Path(folder) / "secret"
        secret.touch(0o600)
        secret.write_text(secrets.token_hex(32))
        for backend in ("tcp", "shm"):
            problems += disturb(program, options, backend, secret, folder)
    return problems
