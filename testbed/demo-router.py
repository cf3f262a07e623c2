#!/usr/bin/env python3
"""The router of `make demo`: takes wakes and prints each in a line or two.

    demo-router.py DIR TOKEN

It writes its URL to DIR/router.url, and each wake as a line of JSON to DIR/wakes. While DIR/slow exists, the next wake is
not answered for a long time: whoever sends it can be killed in mid-delivery. A real one is in docs/guides/router.md.
"""
import datetime
import json
import os
import pathlib
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SLOW = 30  # s; less than the wake timeout, so that the sender does not give up by itself
here, token = pathlib.Path(sys.argv[1]), sys.argv[2]
colour, live = os.environ.get("DEMO_COLOUR") == "1", os.environ.get("DEMO_LIVE") == "1"
one_at_a_time = threading.Lock()


def tint(code, text):
    return f"\033[{code}m{text}\033[0m" if colour else text


def tell(*lines):
    """Takes the place of a line that counts down, if one stands there."""
    mark = tint("36;1", "router ▏")
    with one_at_a_time:
        print(("\r\033[K" if live else "") + "\n".join(f"  {mark} {line}" for line in lines), flush=True)


def payload_of(body):
    """As it came, byte for byte: a parser would make 1.5 of 1.50."""
    start = body.find('"payload":')
    if start < 0:
        return None
    start += len('"payload":')
    return body[start : start + json.JSONDecoder().raw_decode(body[start:])[1]]


class Router(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        if self.path != "/internal/wake" or self.headers["Authorization"] != f"Bearer {token}":
            return self.answer(401)
        now, wake = datetime.datetime.now(datetime.timezone.utc), json.loads(body)
        due = datetime.datetime.fromisoformat((wake.get("scheduled_for") or wake["due_at"]).replace("Z", "+00:00"))
        late = (now - due).total_seconds() * 1000
        slow = here / "slow"
        waits = slow.exists()
        slow.unlink(missing_ok=True)
        delivery, payload = self.headers["Idempotency-Key"], payload_of(body)
        told = wake.get("message") or self.headers["ce-type"]
        tell(
            f"{now:%H:%M:%S}.{now.microsecond // 1000:03}  {tint(1, told)}  {tint(2, f'{late:.0f} ms after its instant')}",
            tint(2, f"delivery {delivery}" + (f" · payload {payload}" if payload else "")),
            *(["… and does not answer yet"] if waits else []),
        )
        with one_at_a_time, open(here / "wakes", "a", encoding="utf-8") as wakes:
            wakes.write(json.dumps({"delivery_id": delivery, "body": wake}) + "\n")
        if waits:
            time.sleep(SLOW)
        self.answer(200)

    def answer(self, status):
        try:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()
        except OSError:
            pass  # whoever sent it is gone

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Router)
server.daemon_threads = True
(here / ".router.url").write_text(f"http://127.0.0.1:{server.server_port}/internal/wake\n")
(here / ".router.url").rename(here / "router.url")
server.serve_forever()
