"""`python -m http.server` on the loopback and urllib, UDP, and descriptors sent over a socket pair."""

import os
import socket
import subprocess
import sys
import urllib.request

os.makedirs("/tmp/site", exist_ok=True)

with open("/tmp/site/index.html", "w") as page:
    page.write("<h1>inside</h1>")

server = subprocess.Popen(
    [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "--directory", "/tmp/site"],
    stdout=subprocess.PIPE,
    stderr=subprocess.DEVNULL,
    text=True,
)
port = server.stdout.readline().split()[5]

with urllib.request.urlopen(f"http://localhost:{port}/", timeout=20) as answer:
    assert answer.read() == b"<h1>inside</h1>"

server.terminate()
server.wait(20)
server.stdout.close()

with (
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
):
    receiver.bind(("127.0.0.1", 0))
    receiver.settimeout(20)
    sender.sendto(b"datagram", receiver.getsockname())
    assert receiver.recv(100) == b"datagram"

left, right = socket.socketpair()

with left, right, open("/etc/hosts") as file:
    socket.send_fds(left, [b"!"], [file.fileno()])
    _, fds, _, _ = socket.recv_fds(right, 1, 1)
    assert os.read(fds[0], 9) == b"127.0.0.1"
    os.close(fds[0])

print("works")
