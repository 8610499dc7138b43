"""A program for the inside of a sandbox: HTTP in every manner, and a WebSocket. Python's own library only. Argument: the port."""

import base64
import hashlib
import json
import struct
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

GO_ON, WAITING = threading.Semaphore(0), []
LISTENERS = []


class Handler(BaseHTTPRequestHandler):
    """Answers by the first part of the path."""

    protocol_version = "HTTP/1.1"

    def __getattr__(self, name):
        if name.startswith("do_"):
            return self.answer
        raise AttributeError(name)

    def log_message(self, *args):
        """Keep quiet."""

    def answer(self):
        word, *rest = urlsplit(self.path).path.strip("/").split("/")
        getattr(self, f"on_{word.replace('-', '_')}", self.on_anything)(*rest)

    def say(self, body, status=200, **headers):
        self.send_response(status)
        self.send_header("X-Program", "yes")
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def pieces(self):
        if self.headers.get("Transfer-Encoding") == "chunked":
            while size := int(self.rfile.readline(), 16):
                yield self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return
        left = int(self.headers.get("Content-Length") or 0)
        while left:
            piece = self.rfile.read(min(left, 65536))
            left -= len(piece)
            yield piece

    def on_anything(self, *rest):
        for _ in self.pieces():
            pass
        seen = {"method": self.command, "path": self.path, "headers": dict(self.headers)}
        self.say(json.dumps(seen).encode())

    def on_status(self, code):
        self.say(b"as asked" if code != "204" else b"", int(code))

    def on_closed(self):
        """With what the last WebSocket was closed: a code and a reason."""
        self.say(b"%d %s" % (struct.unpack(">H", self.closed[:2])[0], self.closed[2:]))

    def on_cookie(self):
        """A cookie for the whole program."""
        self.say(b"set", Set_Cookie="a=1; Path=/; HttpOnly")

    def on_redirect(self):
        self.say(b"", 302, Location="/hello?a=1")

    def on_digest(self):
        digest = hashlib.sha256()
        for piece in self.pieces():
            digest.update(piece)
        self.say(digest.hexdigest().encode())

    def on_refuse(self):
        """Answer without reading."""
        self.say(b"unread", 409, Connection="close")
        self.close_connection = True

    def on_size(self, size):
        self.send_response(200)
        self.send_header("Content-Length", size)
        self.end_headers()
        if self.command != "HEAD":
            for _ in range(int(size) // 65536):
                self.wfile.write(b"x" * 65536)

    def on_chunks(self, size):
        self.start_chunks()
        for _ in range(int(size) // 65536):
            self.chunk(b"x" * 65536)
        self.chunk(b"")

    def start_chunks(self, **headers):
        self.send_response(200)
        for name, value in {"Transfer_Encoding": "chunked", **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def chunk(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def on_events(self):
        self.start_chunks(Content_Type="text/event-stream")
        LISTENERS.append(self)
        try:
            for number in range(3):
                self.chunk(b"data: %d\n\n" % number)
                while not GO_ON.acquire(timeout=0.05):
                    self.connection.setblocking(False)
                    try:
                        if self.connection.recv(1) == b"":
                            return
                    except BlockingIOError:
                        pass
                    finally:
                        self.connection.setblocking(True)
            self.chunk(b"")
        finally:
            LISTENERS.remove(self)
            self.close_connection = True

    def on_go_on(self):
        there = bool(LISTENERS)
        if there:
            GO_ON.release()
        self.say(b"somebody" if there else b"nobody")

    def on_wait(self):
        """Never answer; end when the other side has gone."""
        WAITING.append(self)
        self.connection.recv(1)
        WAITING.remove(self)
        self.close_connection = True

    def on_waiting(self):
        self.say(b"%d" % len(WAITING))

    def on_hang_up(self):
        self.close_connection = True

    def on_no_http(self):
        self.wfile.write(b"220 ready\r\n\r\n")
        self.close_connection = True

    def on_break_off(self):
        if "chunked" in self.path:
            self.start_chunks()
            self.chunk(b"half")
        else:
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"half")
        self.close_connection = True

    def on_echo(self):
        """A WebSocket that says what it hears; `close CODE REASON` closes it."""
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
        self.send_response(101)
        for name, value in (("Upgrade", "websocket"), ("Connection", "Upgrade"), ("Sec-WebSocket-Accept", accept)):
            self.send_header(name, value)
        if "a" in self.headers.get("Sec-WebSocket-Protocol", ""):
            self.send_header("Sec-WebSocket-Protocol", "a")
        self.end_headers()
        self.close_connection = True
        while True:
            opcode, data = self.message()
            if opcode == 8:
                Handler.closed = data
                return self.frame(8, data)
            if opcode == 9:
                self.frame(10, data)
                continue
            if data.startswith(b"close "):
                _, code, reason = data.decode().split()
                self.frame(8, struct.pack(">H", int(code)) + reason.encode())
                return None
            self.frame(opcode, data)

    def message(self):
        opcode, data, last = 0, b"", False
        while not last:
            first, second = self.rfile.read(2)
            last, opcode = bool(first & 0x80), (first & 0x0F) or opcode
            size = second & 0x7F
            if size == 126:
                (size,) = struct.unpack(">H", self.rfile.read(2))
            elif size == 127:
                (size,) = struct.unpack(">Q", self.rfile.read(8))
            mask = self.rfile.read(4)
            payload = self.rfile.read(size)
            pad = (mask * (size // 4 + 1))[:size]
            data += (int.from_bytes(payload, "big") ^ int.from_bytes(pad, "big")).to_bytes(size, "big")
        return opcode, data

    def frame(self, opcode, data):
        size = len(data)
        if size < 126:
            head = bytes([0x80 | opcode, size])
        elif size < 65536:
            head = bytes([0x80 | opcode, 126]) + struct.pack(">H", size)
        else:
            head = bytes([0x80 | opcode, 127]) + struct.pack(">Q", size)
        self.wfile.write(head + data)


class Server(ThreadingHTTPServer):
    """One thread for each connection."""

    daemon_threads = True

    def handle_error(self, *args):
        """A client that left is none."""


Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
