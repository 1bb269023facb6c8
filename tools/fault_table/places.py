"""Hosts and disks in separate namespaces, which a fault can take away."""

import contextlib
import os
import shutil
import subprocess
import time

ADDRESS = "10.213.0.1"


class Namespace:
    """A process that holds namespaces. They end with the process."""

    def __init__(self, *kinds):
        self.holder = subprocess.Popen(["unshare", *kinds, "sleep", "900"])
        own = os.readlink(f"/proc/self/ns/{self.name_of(kinds)}")
        path = f"/proc/{self.pid}/ns/{self.name_of(kinds)}"
        while os.readlink(path) == own:
            if self.holder.poll() is not None:
                raise OSError("no namespaces: this needs root")
            time.sleep(0.005)
        self.kinds = kinds

    @staticmethod
    def name_of(kinds):
        return {"-n": "net", "-m": "mnt"}[kinds[0]]

    @property
    def pid(self):
        return self.holder.pid

    def prefix(self):
        """Returns the words that run a command in the namespaces."""
        return ["nsenter", *self.kinds, "-t", str(self.pid), "--"]

    def run(self, *command):
        subprocess.run([*self.prefix(), *command], check=True,
                       capture_output=True)

    def close(self):
        self.holder.kill()
        self.holder.wait()


class SmallDisk(Namespace):
    """A folder on a file system with space for a few checkpoints."""

    def __init__(self, folder, megabytes):
        super().__init__("-m")
        self.folder = folder
        self.run("mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "none",
                 str(folder))

    def filler(self):
        return f"/proc/{self.pid}/root{self.folder}/filler"

    def fill(self):
        with open(self.filler(), "wb") as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(1 << 20))
                file.flush()

    def empty(self):
        os.remove(self.filler())


class TwoHosts:
    """Two network namespaces with a link between them."""

    def __init__(self):
        self.hosts = [Namespace("-n"), Namespace("-n")]
        first, second = (str(host.pid) for host in self.hosts)
        subprocess.run(
            ["ip", "link", "add", "wire", "netns", first, "type", "veth",
             "peer", "name", "wire", "netns", second], check=True)
        for number, host in enumerate(self.hosts, 1):
            host.run("ip", "addr", "add", f"10.213.0.{number}/24", "dev",
                     "wire")
            host.run("ip", "link", "set", "lo", "up")
        self.set_link("up")

    def set_link(self, state):
        for host in self.hosts:
            host.run("ip", "link", "set", "wire", state)

    def lose_packets(self, *senders):
        """Loses the packets that these hosts send: they go to a machine that
        does not exist. Without arguments, no packets are lost.
        """
        for number, host in enumerate(self.hosts):
            other = f"10.213.0.{2 - number}"
            if number in senders:
                host.run("ip", "neigh", "replace", other, "lladdr",
                         "02:00:00:00:00:99", "dev", "wire", "nud", "permanent")
            else:
                host.run("ip", "neigh", "flush", "dev", "wire", "nud",
                         "permanent")

    def close(self):
        for host in self.hosts:
            host.close()


def can_make():
    """Returns whether namespaces and the tools for them are available."""
    tools = ("unshare", "nsenter", "ip", "mount")
    return os.geteuid() == 0 and all(map(shutil.which, tools))
